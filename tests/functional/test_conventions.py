"""What holds for every loss: dtypes, masks, flat batches, no gradient into constants."""

import pytest
import torch

from lit_agentrl import functional as F


def _cispo(logprobs, old_logprobs, advantages, mask, **options):
    return F.cispo_loss(logprobs, old_logprobs, advantages, mask, clip_high=0.28, **options)


TOKEN_LOSSES = [F.ppo_clip_loss, F.sapo_loss, _cispo]
SEQUENCE_LOSSES = [F.gspo_loss, F.gmpo_loss, F.sequence_clip_loss]
LOSSES = TOKEN_LOSSES + SEQUENCE_LOSSES

OLD = torch.tensor([[-1.0, -2.0, -0.5], [-0.3, -0.7, -1.5]])
NEW = torch.tensor([[-1.1, -1.7, -0.5], [-0.2, -0.9, -1.4]])
ADVANTAGES = torch.tensor([[1.0], [-0.5]])
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])


@pytest.mark.parametrize("loss", LOSSES)
def test_bfloat16_is_computed_in_float32(loss):
    actual = loss(NEW.bfloat16(), OLD.bfloat16(), ADVANTAGES.bfloat16(), MASK)
    assert actual.dtype == torch.float32
    # the very numbers that bfloat16 holds, so only their own rounding remains
    expected = loss(NEW.bfloat16().float(), OLD.bfloat16().float(), ADVANTAGES.bfloat16().float(), MASK)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("garbage", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_garbage_outside_the_mask_changes_nothing(loss, garbage):
    logprobs = NEW.clone()
    logprobs[0, 2] = garbage
    logprobs.requires_grad_()
    old_logprobs = OLD.clone()
    old_logprobs[0, 2] = garbage
    actual = loss(logprobs, old_logprobs, ADVANTAGES, MASK)
    assert torch.equal(actual, loss(NEW, OLD, ADVANTAGES, MASK))
    (gradient,) = torch.autograd.grad(actual.sum(), logprobs)
    assert gradient.isfinite().all()
    assert gradient[0, 2] == 0.0


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("corrected", [True, False])
def test_garbage_outside_the_mask_changes_no_kl(estimator, corrected):
    logprobs, ref_logprobs = NEW.clone(), OLD.clone()
    logprobs[0, 2], ref_logprobs[0, 2] = -torch.inf, torch.nan
    logprobs.requires_grad_()
    kl = F.kl_divergence(logprobs, ref_logprobs, estimator=estimator, corrected_gradient=corrected, mask=MASK)
    assert torch.equal(kl[MASK.bool()], F.kl_divergence(NEW, OLD, estimator=estimator)[MASK.bool()])
    (gradient,) = torch.autograd.grad(kl.sum(), logprobs)
    assert kl[0, 2] == gradient[0, 2] == 0.0
    assert gradient.isfinite().all()


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_empty_batches_crash_nothing(shape):
    empty, rows = torch.zeros(shape), torch.zeros(shape[0], dtype=torch.long)
    for loss in LOSSES:
        assert F.aggregate(loss(empty, empty, empty, empty), empty).item() == 0.0
    assert F.gae(empty, empty, empty, gamma=1.0, lam=1.0)[0].shape == shape
    assert F.discounted_returns(empty, empty, gamma=1.0).shape == shape
    assert F.reinforce_pp_advantages(empty, empty, group_ids=rows).shape == shape
    assert F.kl_penalized_rewards(torch.ones(shape[0]), empty, empty, empty, beta=0.1).shape == shape
    assert F.importance_weights(empty, empty, empty, high=2.0, level="sequence").shape == shape


def test_no_episodes_at_all_crash_nothing():
    rewards, ids = torch.zeros(0), torch.zeros(0, dtype=torch.long)
    assert F.group_advantages(rewards, ids, scale="batch").shape == (0,)
    assert F.rloo_advantages(rewards, ids).shape == (0,)
    assert F.gigpo_advantages(rewards, ids, ids, ids, []).shape == (0,)


@pytest.mark.parametrize("loss", SEQUENCE_LOSSES)
def test_flat_batches_give_the_padded_result(loss):
    inside = MASK.bool()
    rows = torch.tensor([[0] * 3, [1] * 3])[inside]
    flat = loss(NEW[inside], OLD[inside], ADVANTAGES.expand(2, 3)[inside], MASK[inside], sequence_ids=rows)
    torch.testing.assert_close(flat, loss(NEW, OLD, ADVANTAGES, MASK)[inside])


@pytest.mark.parametrize("loss", LOSSES)
def test_old_logprobs_and_advantages_get_no_gradient(loss):
    logprobs, old_logprobs = NEW.clone().requires_grad_(), OLD.clone().requires_grad_()
    advantages = ADVANTAGES.clone().requires_grad_()
    loss(logprobs, old_logprobs, advantages, MASK).sum().backward()
    assert logprobs.grad is not None
    assert old_logprobs.grad is None
    assert advantages.grad is None


def test_gmpo_clips_in_log_space_on_the_side_of_the_advantage():
    old = torch.zeros(1, 2)
    # log ratios 1.0 and 0.2: for A > 0 the first is cut at 0.4, so the mean is 0.3
    up = F.gmpo_loss(torch.tensor([[1.0, 0.2]]), old, torch.tensor([[1.0]]), torch.ones(1, 2))
    torch.testing.assert_close(up, -torch.tensor([[0.3, 0.3]]).exp())
    # for A < 0 nothing is cut above: the mean is 0.6
    down = F.gmpo_loss(torch.tensor([[1.0, 0.2]]), old, torch.tensor([[-1.0]]), torch.ones(1, 2))
    torch.testing.assert_close(down, torch.tensor([[0.6, 0.6]]).exp())
    # log ratios -1.0 and 0.2: for A < 0 the first is cut at -0.4, so the mean is -0.1
    down = F.gmpo_loss(torch.tensor([[-1.0, 0.2]]), old, torch.tensor([[-1.0]]), torch.ones(1, 2))
    torch.testing.assert_close(down, torch.tensor([[-0.1, -0.1]]).exp())


def test_off_policy_mask_drops_only_sequences_with_negative_advantage():
    # both sequences moved away by 0.5 nats a token
    behavior = OLD + 0.5
    keep = F.off_policy_sequence_mask(OLD, behavior, ADVANTAGES, MASK, delta=0.1)
    assert keep.tolist() == [[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: F.ppo_clip_loss(NEW, OLD, ADVANTAGES, MASK, dual_clip=1.0), "dual_clip must be greater than 1"),
        (lambda: F.sapo_loss(NEW, OLD, ADVANTAGES, MASK, tau_neg=0.0), "tau_pos and tau_neg must be positive"),
        (lambda: F.cispo_loss(NEW, OLD, ADVANTAGES, MASK, cap="both", clip_high=1.0), "cap must be one of"),
        (lambda: F.kl_divergence(NEW, OLD, estimator="k4"), "estimator must be one of 'k1', 'k2', 'k3'"),
        (lambda: F.importance_weights(NEW, OLD, MASK, mode="icepop", high=2.0), "low must be a number below high"),
        (lambda: F.importance_weights(NEW, OLD, MASK, low=0.5, high=2.0), "low must be a number below high"),
        (lambda: F.group_advantages(NEW[:, 0], torch.zeros(2), scale="range"), "scale must be one of 'std'"),
        (lambda: F.group_advantages(NEW, torch.zeros(2)), "rewards and group_ids must both be"),
        (lambda: F.gae(NEW, OLD, MASK, gamma=1.5, lam=1.0), r"gamma must lie in \[0, 1\]"),
        (lambda: F.value_loss(NEW, OLD, OLD, MASK, clip=0.0), "clip must be positive"),
        (lambda: F.expectile_loss(NEW[0], OLD[0], expectile=1.0), "expectile must lie in"),
        (lambda: F.overlong_penalty(NEW[0], max_length=8, buffer=9), "buffer must lie in"),
        (lambda: F.token_logprobs(NEW, MASK[:, 0], temperature=0.0), "temperature must be positive"),
        (
            lambda: F.gigpo_advantages(OLD[0], MASK[0], torch.zeros(3), torch.arange(3), [None] * 3),
            "one trajectory lies in two of them",
        ),
        (
            lambda: F.gigpo_advantages(OLD[0], torch.ones(3), torch.zeros(3), torch.zeros(3), [None] * 3),
            "step_ids must differ inside a trajectory",
        ),
        (lambda: F.vapo_lambda(NEW[0], alpha=0.0), "alpha must be positive"),
    ],
)
def test_mistakes_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
