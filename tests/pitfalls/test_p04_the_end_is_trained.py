"""P04 (batch side): the end-of-sequence id is trained where it was sampled, and nothing is made up where it was not."""

from scripted import CHAT, ScriptedEngine, ScriptedEnv, done, episode

from lit_agentrl.agents.tool_agent import ToolAgent
from lit_agentrl.rollouts.batch import TokenReason
from lit_agentrl.rollouts.segments import batch_from_groups
from lit_agentrl.types import TrajectoryGroup


def trained_ids(trajectory):
    batch = batch_from_groups([TrajectoryGroup(group=0, task=trajectory.task, trajectories=[trajectory])])
    return batch.token_ids[batch.reason == TokenReason.TRAINED].tolist()


def test_the_end_that_was_sampled_is_trained():
    trajectory = episode(ToolAgent(), ScriptedEnv(done()), ScriptedEngine("56"))
    assert trained_ids(trajectory) == [*CHAT.encode("56"), CHAT.end_of_turn_id]


def test_an_end_that_was_not_sampled_is_not_trained():
    trajectory = episode(ToolAgent(), ScriptedEnv(), ScriptedEngine("5678"), max_new_tokens=2)
    assert trajectory.turns[0].completion.stop_reason == "length"
    assert trained_ids(trajectory) == list(CHAT.encode("56"))


def test_an_end_inside_a_completion_is_a_token_like_the_others():
    # Ids of the pad and of the end may be equal, and a template's markers may be drawn as text.
    trajectory = episode(ToolAgent(), ScriptedEnv(done()), ScriptedEngine("5<|im_end|><|pad|>6"))
    assert trained_ids(trajectory) == [*CHAT.encode("5<|im_end|><|pad|>6"), CHAT.end_of_turn_id]
