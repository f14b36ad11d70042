"""Direct preference optimization and its variants."""

from __future__ import annotations

from typing import Any, get_args

from torch import Tensor

from lit_agentrl import functional as F
from lit_agentrl.algorithms.preference import Compared, PreferenceAlgorithm, PreferenceReference, Verdict, above_zero
from lit_agentrl.policies.base import Policy
from lit_agentrl.rollouts.comparisons import Side


class DPO(PreferenceAlgorithm):
    """Classifies pairs by the policy's log-ratio to a reference (DPO, arXiv 2305.18290).

    Args:
        policy: The policy that is trained.
        beta: Strength of the pull to the reference.
        variant: `sigmoid`; `ipo` (squared distance to a margin, log-ratios per token, arXiv 2310.12036); `hinge`
            (SLiC, arXiv 2305.10425); `robust` (unbiased if labels are wrong at a known rate, arXiv 2403.00409).
        label_smoothing: Share of labels taken for wrong; of `sigmoid` (conservative DPO) and `robust`.
        reference: See `PreferenceAlgorithm`.
        kwargs: See `Algorithm`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        beta: float = 0.1,
        variant: F.PreferenceVariant = "sigmoid",
        label_smoothing: float = 0.0,
        reference: PreferenceReference = "start",
        **kwargs: Any,
    ) -> None:
        super().__init__(policy, reference=reference, **kwargs)
        check_variant(variant, label_smoothing)
        self.beta = above_zero("beta", beta)
        self.variant = variant
        self.label_smoothing = label_smoothing

    def compare(self, pairs: Compared) -> Verdict:
        """Return the configured variant's loss."""
        return compare_with_reference(pairs, beta=self.beta, variant=self.variant, label_smoothing=self.label_smoothing)


def check_variant(variant: str, label_smoothing: float) -> None:
    """Refuse settings of which a part would be ignored.

    Raises:
        ValueError: Names the key.
    """
    key = "model.init_args.label_smoothing"
    if variant not in get_args(F.PreferenceVariant):
        raise ValueError(
            f"model.init_args.variant is {variant!r}: it must be one of {', '.join(get_args(F.PreferenceVariant))}"
        )
    if not 0 <= label_smoothing < 0.5:
        raise ValueError(f"{key} is {label_smoothing}: it must lie in [0, 0.5)")
    if label_smoothing and variant not in ("sigmoid", "robust"):
        raise ValueError(f"{key} is {label_smoothing}, but variant {variant} has none; set it to 0")
    if variant == "robust" and not label_smoothing:
        raise ValueError(f"{key} is 0, with which variant robust is sigmoid; give the share of wrong labels")


def compare_with_reference(
    pairs: Compared, *, beta: float, variant: F.PreferenceVariant = "sigmoid", label_smoothing: float = 0.0
) -> Verdict:
    """Return DPO's loss over the sums of the trained tokens; implicit rewards are per token for `ipo`."""
    sums = [pairs.total(values, side) for values in (pairs.logprobs, pairs.reference) for side in _SIDES]
    lengths: dict[str, Tensor] = {}
    rewards = [F.implicit_rewards(sums[place], sums[place + 2], beta=beta) for place in range(2)]
    if variant == "ipo":
        lengths = {"chosen_lengths": pairs.length(Side.CHOSEN), "rejected_lengths": pairs.length(Side.REJECTED)}
        rewards = [reward / length for reward, length in zip(rewards, lengths.values(), strict=True)]
    loss = F.dpo_loss(*sums, beta=beta, variant=variant, label_smoothing=label_smoothing, **lengths)
    return Verdict(loss=loss, chosen_reward=rewards[0], rejected_reward=rewards[1])


_SIDES = (Side.CHOSEN, Side.REJECTED)
