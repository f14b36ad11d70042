"""The plain agent, turn by turn, with an engine and an environment that follow a script."""

import pytest
from scripted import CHAT, ECHO, LOOK, ScriptedEngine, ScriptedEnv, call, done, episode, says

from lit_agentrl.agents.tool_agent import ToolAgent
from lit_agentrl.protocols import EpisodeFailedError
from lit_agentrl.types import Message


def texts(messages):
    return [(message.role, message.text) for message in messages]


def test_a_reply_is_the_action_and_its_reward_is_the_episodes():
    env = ScriptedEnv(says(Message.of("user", "Hm."), reward=0.25, reward_parts={"style": 0.25}), done(1.0))
    trajectory = episode(ToolAgent(), env, ScriptedEngine("first", "second"))
    assert [action.message.text for action in env.actions] == ["first", "second"]
    assert (trajectory.status, trajectory.success, trajectory.env_steps) == ("completed", True, 2)
    assert (trajectory.reward, trajectory.reward_parts) == (1.25, {"style": 0.25})
    assert [turn.reward for turn in trajectory.turns] == [0.25, 1.0]


def test_turns_hold_the_ids_that_are_new_and_continue_one_another():
    env = ScriptedEnv(says(Message.of("user", "Hm.")), done())
    engine = ScriptedEngine("first", "second")
    first, second = episode(ToolAgent(system_prompt="Be brief."), env, engine).turns
    assert (first.parent, second.parent) == (None, 0)
    assert engine.requests[0].prompt_ids == first.prompt_ids
    assert engine.requests[1].prompt_ids == first.prompt_ids + first.completion.token_ids + second.prompt_ids
    assert texts(first.messages) == [("system", "Be brief."), ("user", "Go.")]
    assert texts(second.messages) == [("user", "Hm.")]
    assert engine.requests[0].seed != engine.requests[1].seed


def test_the_agents_own_tools_cost_no_environment_step():
    env = ScriptedEnv(done())
    trajectory = episode(ToolAgent(), env, ScriptedEngine(call("echo", text="42"), "42"), tools=[ECHO])
    assert env.calls == [("echo", {"text": "42"})]
    assert (trajectory.env_steps, trajectory.tool_calls, trajectory.tool_errors) == (1, 1, 0)
    assert texts(trajectory.turns[1].messages) == [("tool", "42")]


def test_calls_of_the_environments_tools_are_the_action():
    env = ScriptedEnv(says(Message.of("tool", "a room", tool_call_id="call_0"), tools=[LOOK]), done(), tools=[LOOK])
    trajectory = episode(ToolAgent(), env, ScriptedEngine(call("look"), "done"), tools=[ECHO])
    assert [c.name for c in env.actions[0].message.tool_calls] == ["look"]
    assert (trajectory.env_steps, trajectory.tool_calls, trajectory.tool_errors) == (2, 1, 0)


def test_a_reply_with_calls_of_both_kinds_serves_both():
    env = ScriptedEnv(says(Message.of("tool", "a room", tool_call_id="call_1"), tools=[LOOK]), done(), tools=[LOOK])
    reply = call("echo", text="1") + call("look") + "<tool_call>broken</tool_call>" + call("echo", text="2")
    trajectory = episode(ToolAgent(), env, ScriptedEngine(reply, "done"), tools=[ECHO])
    assert [c.id for c in env.actions[0].message.tool_calls] == ["call_1"]
    read = trajectory.turns[1].messages
    assert [message.tool_call_id for message in read] == ["call_0", "call_1", "call_2", "call_3"]
    assert [message.text for message in read[:2]] == ["1", "a room"]
    assert read[2].text.startswith("Error: the call is not valid JSON")
    assert (trajectory.tool_calls, trajectory.tool_errors, trajectory.env_steps) == (4, 1, 2)


def test_without_any_tools_a_call_is_just_text():
    env = ScriptedEnv(done())
    trajectory = episode(ToolAgent(), env, ScriptedEngine(call("echo", text="42")))
    assert env.actions[0].message.text == call("echo", text="42")
    assert (trajectory.status, trajectory.tool_calls) == ("completed", 0)


def test_an_unknown_tool_next_to_the_environments_is_told_what_there_is():
    env = ScriptedEnv(done(), tools=[LOOK])
    trajectory = episode(ToolAgent(), env, ScriptedEngine(call("jump"), "done"), tools=[ECHO])
    assert texts(trajectory.turns[1].messages) == [("tool", "Error: there is no tool 'jump'; there are: echo, look")]
    assert (trajectory.tool_errors, trajectory.env_steps) == (1, 1)


def test_tools_that_the_environment_takes_back_are_gone():
    env = ScriptedEnv(says(Message.of("user", "dark"), tools=[]), done(), tools=[LOOK])
    trajectory = episode(ToolAgent(), env, ScriptedEngine(call("look"), call("look"), "done"), tools=[ECHO])
    assert trajectory.tool_errors == 1
    assert trajectory.env_steps == 2


def test_what_stands_at_the_end_is_kept():
    env = ScriptedEnv(says(Message.of("user", "bye"), terminated=True, success=False))
    assert texts(episode(ToolAgent(), env, ScriptedEngine("x")).closing_messages) == [("user", "bye")]


def test_an_episode_of_too_many_turns_is_truncated():
    env = ScriptedEnv(*[says(Message.of("user", "more"), reward=0.5)] * 2)
    trajectory = episode(ToolAgent(max_turns=2), env, ScriptedEngine("a", "b"))
    assert (trajectory.status, trajectory.cause) == ("truncated", "no end after 2 turns")
    assert (trajectory.reward, trajectory.success) == (1.0, False)
    assert texts(trajectory.closing_messages) == [("user", "more")]


def test_a_limit_of_the_environment_truncates():
    env = ScriptedEnv(says(Message.of("user", "late"), truncated=True, success=False, reward=0.5))
    trajectory = episode(ToolAgent(), env, ScriptedEngine("a"))
    assert (trajectory.status, trajectory.cause) == ("truncated", "ended by the environment's limit")
    assert trajectory.reward == 0.5


def test_a_completion_that_is_cut_ends_the_episode_without_a_step():
    env = ScriptedEnv()
    trajectory = episode(ToolAgent(), env, ScriptedEngine("a long story"), max_new_tokens=3)
    assert (trajectory.status, trajectory.cause) == ("truncated", "completion stopped by length")
    assert (env.actions, trajectory.num_tokens) == ([], 3)


def test_a_context_that_ends_in_a_completion_is_named():
    prompt = len(CHAT.prompt([Message.of("user", "Go.")]).ids)
    trajectory = episode(ToolAgent(), ScriptedEnv(), ScriptedEngine("a long story"), max_context=prompt + 2)
    assert trajectory.cause == "completion stopped by context"
    assert trajectory.turns[0].completion.stop_reason == "context"
    assert trajectory.num_tokens == 2


def test_a_context_that_is_full_beforehand_draws_nothing():
    engine = ScriptedEngine()
    trajectory = episode(ToolAgent(), ScriptedEnv(), engine, max_context=3)
    assert (trajectory.status, trajectory.cause, trajectory.turns) == ("truncated", "context is full", [])
    assert engine.requests == []


def test_an_environment_that_goes_on_in_silence_fails_the_episode():
    from lit_agentrl.types import StepResult

    with pytest.raises(EpisodeFailedError, match="no observation, though the episode is not over"):
        episode(ToolAgent(), ScriptedEnv(StepResult(observation=None)), ScriptedEngine("a"))


def test_turns_below_one_name_their_key():
    with pytest.raises(ValueError, match=r"agent\.init_args\.max_turns is 0: it must be at least 1"):
        ToolAgent(max_turns=0)
