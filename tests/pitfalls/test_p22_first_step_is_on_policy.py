"""P22 (local engine): before the first step the trainer's log-probs are the sampler's, and the ratio is 1."""

import pytest
import torch
from rl_support import EndingPolicy, build

from lit_agentrl.algorithms import GRPO
from lit_agentrl.engines.local import LocalEngine
from lit_agentrl.rollouts.batch import TokenReason
from lit_agentrl.rollouts.segments import batch_from_groups
from lit_agentrl.types import GenerationRequest, Message, Sampling, Task, Trajectory, TrajectoryGroup, Turn


@pytest.fixture(scope="module")
def policy():
    return build(EndingPolicy(), seed=2).eval()


def episodes(policy, temperature, batch_size):
    """Eight episodes of two turns with ragged prompts, the second turn on kept keys and values."""
    engine = LocalEngine(max_batch_size=batch_size)
    engine.bind(policy)
    engine.sync(0)
    groups = []
    for number in range(8):
        task = Task(id=str(number), family="f", split="train", seed=number)
        groups.append(TrajectoryGroup(group=number, task=task, trajectories=[]))
        groups[-1].trajectories = [Trajectory(task=task, group=number, sample=0, reward=float(number % 2))]
    contexts = [tuple(range(3, 6 + 4 * number)) for number in range(8)]
    new = list(contexts)
    for place in range(2):
        requests = [
            GenerationRequest(
                identity=(number, 0, 0, place),
                prompt_ids=context,
                seed=10 * number + place,
                sampling=Sampling(temperature=temperature, max_new_tokens=9),
            )
            for number, context in enumerate(contexts)
        ]
        for number, completion in enumerate(engine.generate_batch(requests)):
            parent = None if place == 0 else 0
            reply = Message.of("assistant", "")
            groups[number].trajectories[0].turns.append(
                Turn(parent=parent, prompt_ids=new[number], completion=completion, messages=(), reply=reply)
            )
            new[number] = (40 + number, 41)
            contexts[number] = contexts[number] + completion.token_ids + new[number]
    return groups


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
def test_the_trainers_forward_agrees_with_the_sampler(policy, temperature, batch_size):
    batch = batch_from_groups(episodes(policy, temperature, batch_size), temperature=temperature)
    algorithm = GRPO(policy, seed=0)
    batch.advantages = torch.ones(batch.num_tokens)
    batch.weight = (batch.reason == TokenReason.TRAINED).float()
    with torch.no_grad():
        index, logprobs, _ = algorithm.policy_logprobs(batch, batch.weight != 0)
        assert index.numel() == int(batch.weight.sum()) > 16
        torch.testing.assert_close(logprobs, batch.behavior_logprobs[index], atol=1e-4, rtol=0)
        _, terms = algorithm.loss(batch)
    assert float(terms["ratio"]) == 1.0
    assert float(terms["clip_fraction"]) == 0.0
    assert float(terms["behavior_gap"]) < 1e-4


def test_a_batch_of_one_and_of_eight_draw_the_same(policy):
    def drawn(batch_size):
        groups = episodes(policy, 1.3, batch_size)
        return [turn.completion.token_ids for group in groups for turn in group.trajectories[0].turns]

    assert drawn(1) == drawn(8)
