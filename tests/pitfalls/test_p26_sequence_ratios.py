"""P26: sequence ratios neither overflow nor poison a batch."""

import pytest
import torch

from lit_agentrl import functional as F

# One sequence whose log-probs moved by ±100 a token, beside a harmless one.
MASK = torch.ones(2, 4)
OLD = torch.full((2, 4), -101.0)


def moved(shift):
    return torch.cat([OLD[:1] + shift, OLD[1:] + 0.1])


LOSSES = [F.gspo_loss, F.sequence_clip_loss, F.gmpo_loss, F.ppo_clip_loss, F.sapo_loss]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shift", [100.0, -100.0])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_losses_stay_finite(loss, sign, shift, dtype):
    logprobs = moved(shift).to(dtype).requires_grad_()
    value = loss(logprobs, OLD.to(dtype), torch.full((2, 1), sign), MASK)
    value.sum().backward()
    assert value.isfinite().all()
    assert logprobs.grad.isfinite().all()


@pytest.mark.parametrize("loss", LOSSES)
def test_a_wild_sequence_leaves_its_neighbour_alone(loss):
    advantages = torch.ones(2, 1)
    beside_wild = loss(moved(100.0), OLD, advantages, MASK)[1]
    alone = loss(moved(100.0)[1:], OLD[1:], advantages[1:], MASK[1:])[0]
    assert torch.equal(beside_wild, alone)


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("shift", [100.0, -100.0])
def test_importance_weights_stay_finite(level, shift):
    weights = F.importance_weights(moved(shift), OLD, MASK, mode="tis", high=2.0, level=level)
    assert weights.isfinite().all()
    assert weights.max() <= 2.0
    assert F.effective_sample_size(weights, MASK).isfinite()


def test_a_long_sequence_of_small_differences_stays_finite():
    # 0.1 a token over 4096 tokens: e^409 overflows even float64
    old_logprobs = torch.full((1, 4096), -1.0)
    ratio = F.importance_ratio(old_logprobs + 0.1, old_logprobs, torch.ones(1, 4096), level="sequence")
    assert ratio.isfinite().all()
    masked = F.importance_weights(
        old_logprobs + 0.1, old_logprobs, torch.ones(1, 4096), mode="mis", high=3.0, level="sequence"
    )
    assert (masked == 0.0).all()


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_stays_finite(estimator):
    logprobs = torch.tensor([-1000.0, -0.1], requires_grad=True)
    kl = F.kl_divergence(logprobs, torch.tensor([-0.1, -1000.0]), estimator=estimator)
    kl.sum().backward()
    assert kl.isfinite().all()
    assert logprobs.grad.isfinite().all()
    corrected = F.importance_corrected_kl(logprobs, torch.tensor([-0.1, -1000.0]), torch.tensor([-0.1, -1000.0]))
    assert corrected.isfinite().all()


def test_an_empty_row_has_no_ratio():
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 0, 0]])
    for level in ("sequence", "geometric"):
        assert (F.importance_ratio(moved(0.0), OLD, mask, level=level)[1] == 0.0).all()
