"""GRPO: whose tokens are trained, by how much, and in which minibatch."""

import pytest
import torch
from rl_support import EndingPolicy, parity_data, rollout_of, trainer, trajectory, turn

from lit_agentrl.algorithms import GRPO
from lit_agentrl.rollouts.batch import TokenReason
from lit_agentrl.rollouts.segments import batch_from_groups


def credited(*groups, **options):
    rollout = rollout_of(*groups)
    batch = batch_from_groups(rollout.groups)
    algorithm = GRPO(EndingPolicy(), seed=0, **options)
    return algorithm.batches(rollout, batch), batch


def test_every_sampled_token_gets_the_advantage_of_its_episode():
    # Rewards 1 and 0: mean 0.5, std (ddof 1) 0.7071, so the advantages are ±0.7071.
    won = trajectory(0, 0, turn([1], [2, 3]), turn([4], [5], parent=0), reward=1.0)
    lost = trajectory(0, 1, turn([1], [6]), reward=0.0)
    _, batch = credited([won, lost])
    expected = [0, 0.7071, 0.7071, 0, 0.7071, -0.7071]
    assert batch.advantages.tolist() == pytest.approx(expected, abs=1e-4)
    # Mean over each sequence's tokens, then over two sequences: 1 / (2 x 3) and 1 / (2 x 1).
    assert batch.weight.tolist() == pytest.approx([0, 1 / 6, 1 / 6, 0, 1 / 6, 1 / 2])


def test_a_constant_group_counts_but_is_not_computed():
    constant = [trajectory(0, s, turn([1], [2, 3]), reward=1.0) for s in range(2)]
    mixed = [trajectory(1, s, turn([1], [2, 3]), reward=float(s)) for s in range(2)]
    (step,), batch = credited(constant, mixed, aggregation="token-mean")
    assert batch.reason.tolist() == [0, 2, 2, 2, 2, 0, 1, 1, 1, 1]
    # 8 sampled tokens in the normaliser, of which 4 are computed.
    assert step.weight.tolist() == pytest.approx([0] * 6 + [1 / 8] * 4)


def test_truncated_episodes_are_trained_unless_they_are_masked():
    def group():
        cut = trajectory(0, 2, turn([1], [4]), reward=0.0, status="truncated")
        return [trajectory(0, 0, turn([1], [2]), reward=1.0), trajectory(0, 1, turn([1], [3]), reward=0.0), cut]

    _, trained = credited(group())
    assert trained.reason.tolist() == [0, 1, 1, 1]
    _, masked = credited(group(), mask_truncated=True)
    assert masked.reason.tolist() == [0, 1, 1, TokenReason.TRUNCATED]
    # The mean is then that of the other two: 0.5, not 1/3.
    assert masked.advantages.tolist() == pytest.approx([0, 0.7071, -0.7071, 0], abs=1e-4)


def test_scales_differ_by_what_they_divide_by():
    rollouts = [[trajectory(0, s, turn([1], [2]), reward=float(s)) for s in range(2)]]
    rollouts += [[trajectory(1, s, turn([1], [2]), reward=10.0 * s) for s in range(2)]]

    def advantages(scale):
        return credited(*rollouts, advantage_scale=scale)[1].advantages[[1, 2, 4, 5]].tolist()

    assert advantages("none") == pytest.approx([-0.5, 0.5, -5.0, 5.0])
    assert advantages("std") == pytest.approx([-0.7071, 0.7071, -0.7071, 0.7071], abs=1e-4)
    # All four rewards 0, 1, 0, 10: mean 2.75, squares 7.5625 + 3.0625 + 7.5625 + 52.5625 = 70.75, /3, root 4.8563.
    assert advantages("batch") == pytest.approx([-0.5 / 4.8563, 0.5 / 4.8563, -5 / 4.8563, 5 / 4.8563], abs=1e-4)


def test_minibatches_hold_whole_groups_once_an_epoch():
    module = GRPO(EndingPolicy(), num_minibatches=2, num_inner_epochs=2, seed=0)
    data = parity_data()
    seen = []
    module.training_step = lambda batch, batch_idx: seen.append(batch)
    trainer(max_epochs=1).fit(module, datamodule=data)
    groups = [sorted({int(t) // 4 for t in batch.trajectory.tolist() if t >= 0}) for batch in seen]
    assert len(groups) == 4
    assert sorted(groups[0] + groups[1]) == sorted(groups[2] + groups[3]) == [0, 1, 2, 3]
    assert all(batch.old_logprobs is not None for batch in seen)
    assert [bool(batch.metrics) for batch in seen] == [True, False, False, False]


def test_old_log_probs_are_the_trainers_and_equal_the_samplers_before_the_first_step():
    module = GRPO(EndingPolicy(), num_minibatches=2, micro_batch_tokens=64, seed=0)
    seen = []
    module.training_step = lambda batch, batch_idx: seen.append(batch)
    trainer(max_epochs=1).fit(module, datamodule=parity_data(temperature=1.4))
    trained = [batch.reason == TokenReason.TRAINED for batch in seen]
    old = torch.cat([batch.old_logprobs[mask] for batch, mask in zip(seen, trained, strict=True)])
    behavior = torch.cat([batch.behavior_logprobs[mask] for batch, mask in zip(seen, trained, strict=True)])
    assert old.numel() > 0
    torch.testing.assert_close(old, behavior, atol=1e-4, rtol=0)
    assert not torch.equal(old, behavior)  # computed anew, not copied


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_low": -0.1}, r"model\.init_args\.clip_low is -0\.1: it must be 0 or more"),
        ({"dual_clip": 1.0}, r"model\.init_args\.dual_clip is 1\.0: it must be greater than 1"),
        ({"aggregation": "constant"}, r"model\.init_args\.aggregation_constant belongs to"),
        ({"aggregation_constant": 5.0}, r"model\.init_args\.aggregation_constant belongs to"),
        ({"aggregation": "constant", "aggregation_constant": 0.0}, r"aggregation_constant is 0\.0: it must be above 0"),
        ({"num_minibatches": 0}, r"model\.init_args\.num_minibatches is 0: it must be at least 1"),
    ],
)
def test_values_out_of_range_name_their_key(options, message):
    with pytest.raises(ValueError, match=message):
        GRPO(EndingPolicy(), **options)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        ({}, {"group_size": 1}, r"data\.init_args\.group_size is 1: GRPO compares"),
        (
            {"num_minibatches": 5},
            {},
            r"model\.init_args\.num_minibatches is 5, but data\.init_args\.num_groups is only 4",
        ),
    ],
)
def test_sizes_from_which_nothing_can_be_learnt_are_refused_before_any_work(model, data, message):
    datamodule = parity_data(**data)
    with pytest.raises(ValueError, match=message):
        trainer().fit(GRPO(EndingPolicy(), **model), datamodule=datamodule)
