"""P07: ids, masks and log-probs of a completion that was cut have one length."""

import pytest
from rl_support import EndingPolicy, build, rollout_of, trajectory

from lit_agentrl.engines.local import LocalEngine
from lit_agentrl.rollouts.batch import TokenReason
from lit_agentrl.rollouts.segments import batch_from_groups
from lit_agentrl.types import GenerationRequest, Message, Sampling, Turn


@pytest.mark.parametrize("max_new_tokens", [1, 2, 5, 40])
def test_a_cut_completion_has_a_log_prob_for_each_id_and_no_other(max_new_tokens):
    policy = build(EndingPolicy())
    engine = LocalEngine()
    engine.bind(policy)
    engine.sync(0)
    requests = [
        GenerationRequest(
            identity=(0, n, 0, 0),
            prompt_ids=(3,) * (n + 1),
            seed=n,
            sampling=Sampling(max_new_tokens=max_new_tokens),
        )
        for n in range(6)
    ]
    drawn = engine.generate_batch(requests)
    members = []
    for number, (request, completion) in enumerate(zip(requests, drawn, strict=True)):
        assert len(completion.token_ids) == len(completion.logprobs) <= max_new_tokens
        reply = Message.of("assistant", "")
        only = Turn(parent=None, prompt_ids=request.prompt_ids, completion=completion, messages=(), reply=reply)
        members.append(trajectory(0, number, only))
    batch = batch_from_groups(rollout_of(members).groups)
    sampled = batch.reason == TokenReason.TRAINED
    assert batch.token_ids[sampled].tolist() == [i for c in drawn for i in c.token_ids]
    assert batch.behavior_logprobs[sampled].tolist() == pytest.approx([p for c in drawn for p in c.logprobs])
    assert batch.behavior_logprobs[~sampled].abs().sum() == 0
