"""What can be added around a policy loss: KL, entropy, corrections for another sampler, shaping, several objectives."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from lit_agentrl import functional as F
from lit_agentrl.functional import CorrectionMode, KLEstimator, ObjectiveMode, RatioLevel
from lit_agentrl.types import Trajectory

KLPlace: TypeAlias = Literal["loss", "reward"]
ReferenceKind: TypeAlias = Literal["start", "adapter_off", "average"]


@dataclass(frozen=True, kw_only=True)
class KLTerm:
    """Holds the policy near a reference.

    Args:
        coefficient: Factor of the KL.
        estimator: `k1`, `k2` or `k3`; see `functional.kl_divergence`. As a loss, `k1` has no gradient on average, the
            gradient of `k2` is that of KL(policy ‖ reference), that of `k3` is that of KL(reference ‖ policy). In the
            reward it is the other way round: only `k1` has the gradient of KL(policy ‖ reference), of whole episodes;
            those of `k2` and `k3` vanish near the reference, so that they would hold nothing.
        place: `loss` adds it to the loss, `reward` subtracts it from the reward token by token, detached.
        corrected_gradient: In the loss: the value of the estimator with the gradient of KL(policy ‖ reference).
        reference: `start` is a frozen copy of the policy with which reinforcement learning began (after the warm
            start); `adapter_off` the weights below a LoRA adapter, which cost no memory but know nothing of a warm
            start; `average` an exponential moving average of the policy.
        decay: Of the moving average, per optimizer step.
        target: Adapt the coefficient so that the mean KL, in nats a token, comes to this (arXiv 1909.08593).
        horizon: Optimizer steps over which the adaptation acts.
    """

    coefficient: float = 0.04
    estimator: KLEstimator = "k3"
    place: KLPlace = "loss"
    corrected_gradient: bool = False
    reference: ReferenceKind = "start"
    decay: float = 0.99
    target: float | None = None
    horizon: float = 1000.0

    def __post_init__(self) -> None:
        key = "model.init_args.kl"
        if not self.coefficient > 0:
            raise ValueError(f"{key}.coefficient is {self.coefficient}: it must be above 0; for no KL, set {key}: null")
        for name, value, choices in (
            ("estimator", self.estimator, get_args(KLEstimator)),
            ("place", self.place, get_args(KLPlace)),
            ("reference", self.reference, get_args(ReferenceKind)),
        ):
            if value not in choices:
                raise ValueError(f"{key}.{name} is {value!r}: it must be one of {', '.join(choices)}")
        if not 0 <= self.decay < 1:
            raise ValueError(f"{key}.decay is {self.decay}: it must lie in [0, 1)")
        if self.target is not None and self.target <= 0:
            raise ValueError(f"{key}.target is {self.target}: it must be above 0, or null")
        if self.horizon <= 0:
            raise ValueError(f"{key}.horizon is {self.horizon}: it must be above 0")
        if self.place == "loss" and self.estimator == "k1" and not self.corrected_gradient:
            raise ValueError(
                f"{key}.estimator: k1 in {key}.place: loss has no gradient on average; use k2 or k3, or set "
                f"{key}.corrected_gradient: true"
            )
        if self.place == "reward" and self.estimator != "k1":
            raise ValueError(
                f"{key}.estimator: {self.estimator} in {key}.place: reward has next to no gradient near the reference "
                "(that of KL(policy ‖ reference) less another of the same size); use k1"
            )
        if self.place == "reward" and self.corrected_gradient:
            raise ValueError(f"{key}.corrected_gradient: true has no meaning with {key}.place: reward")


@dataclass(frozen=True, kw_only=True)
class EntropyTerm:
    """Keeps the policy from settling too early.

    Args:
        coefficient: Factor of the mean entropy, in nats a token, that is subtracted from the loss.
        target: Adapt the coefficient so that the mean entropy comes to this (arXiv 2505.22312).
        step: By how much the coefficient moves in an optimizer step.
    """

    coefficient: float = 0.01
    target: float | None = None
    step: float = 1e-4

    def __post_init__(self) -> None:
        key = "model.init_args.entropy"
        if self.coefficient < 0 or (self.coefficient == 0 and self.target is None):
            raise ValueError(
                f"{key}.coefficient is {self.coefficient}: it must be above 0; for no bonus, set {key}: null"
            )
        if self.target is not None and self.target <= 0:
            raise ValueError(f"{key}.target is {self.target}: it must be above 0, or null")


@dataclass(frozen=True, kw_only=True)
class OffPolicyTerm:
    """Corrects for tokens that were drawn by a sampler other than the trainer's policy.

    Args:
        mode: `tis` cuts the weights off, `mis` drops tokens above `high`, `icepop` those outside [`low`, `high`];
            `none` weighs nothing.
        low: Lower end of `icepop`.
        high: Upper end.
        level: What one ratio covers: `token`, `sequence` or `geometric`.
        sequence_mask: Drop episodes of negative advantage whose mean log-ratio exceeds this (OPSM, arXiv 2512.02556).
    """

    mode: CorrectionMode | Literal["none"] = "tis"
    low: float | None = None
    high: float = 2.0
    level: RatioLevel = "token"
    sequence_mask: float | None = None

    def __post_init__(self) -> None:
        key = "model.init_args.correction"
        modes = (*get_args(CorrectionMode), "none")
        if self.mode not in modes:
            raise ValueError(f"{key}.mode is {self.mode!r}: it must be one of {', '.join(modes)}")
        if (self.mode == "icepop") != (self.low is not None):
            raise ValueError(f"{key}.low belongs to {key}.mode: icepop; set both or neither")
        if self.low is not None and self.low >= self.high:
            raise ValueError(f"{key}.low is {self.low}: it must be below {key}.high ({self.high})")
        if self.mode == "none" and self.sequence_mask is None:
            raise ValueError(f"{key}.mode is none and {key}.sequence_mask is null: nothing would be corrected")

    @property
    def whole_sequences(self) -> bool:
        """Whether all tokens of an episode have to be in one call."""
        return (self.mode != "none" and self.level != "token") or self.sequence_mask is not None

    def factors(
        self, logprobs: Tensor, old: Tensor, behavior: Tensor, advantages: Tensor, sequence_ids: Tensor
    ) -> Tensor:
        """Return the factor of each token's loss, without gradient; all [M]."""
        everything = torch.ones_like(old, dtype=torch.bool)
        factors = torch.ones_like(old)
        if self.mode != "none":
            factors = F.importance_weights(
                old,
                behavior,
                everything,
                mode=self.mode,
                low=self.low,
                high=self.high,
                level=self.level,
                sequence_ids=sequence_ids,
            )
        if self.sequence_mask is not None:
            factors = factors * F.off_policy_sequence_mask(
                logprobs, behavior, advantages, everything, delta=self.sequence_mask, sequence_ids=sequence_ids
            )
        return factors


@dataclass(frozen=True, kw_only=True)
class OverlongTerm:
    """A soft penalty for long episodes, added to the reward (DAPO, arXiv 2503.14476).

    Args:
        max_length: Sampled tokens of an episode from which the penalty is 1.
        buffer: Tokens below it from which the penalty grows.
    """

    max_length: int
    buffer: int

    def __post_init__(self) -> None:
        key = "model.init_args.overlong"
        if self.max_length < 1 or not 0 < self.buffer <= self.max_length:
            raise ValueError(
                f"{key}: max_length is {self.max_length} and buffer {self.buffer}; they must satisfy "
                "0 < buffer <= max_length"
            )


@dataclass(frozen=True, kw_only=True)
class Objectives:
    """Which rewards an episode is judged by, and how they become one number. All is paid at the end of the episode.

    Args:
        weights: Weight by name of a reward part, as the environment and the reward terms name them; `reward` is what
            the episode earned altogether, `success` is 1 if it was solved. Negative weights prefer less. The order
            counts in mode `lexicographic`.
        mode: `weighted`, `normalise_then_sum`, `sum_then_normalise` or `lexicographic`; see
            `functional.combine_rewards`.
        tolerance: In mode `lexicographic`: values are rounded to multiples of this before they are compared.
    """

    weights: dict[str, float]
    mode: ObjectiveMode = "weighted"
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        key = "model.init_args.objectives"
        if not self.weights:
            raise ValueError(f"{key}.weights is empty: name at least one reward part, or set {key}: null")
        for name, weight in self.weights.items():
            if not math.isfinite(weight) or weight == 0:
                raise ValueError(f"{key}.weights.{name} is {weight}: it must be finite and not 0")
        if self.mode not in get_args(ObjectiveMode):
            raise ValueError(f"{key}.mode is {self.mode!r}: it must be one of {', '.join(get_args(ObjectiveMode))}")
        if self.tolerance < 0 or (self.tolerance and self.mode != "lexicographic"):
            raise ValueError(
                f"{key}.tolerance is {self.tolerance}: it must be 0 or more, and belongs to {key}.mode: lexicographic"
            )

    @property
    def compares(self) -> bool:
        """Whether a reward says how an episode did against its group."""
        return self.mode != "weighted"

    def rewards(
        self, trajectories: Sequence[Trajectory], *, valid: Tensor, gather: Callable[[Any], list[Any]]
    ) -> Tensor:
        """Return one reward per episode, [E].

        Args:
            trajectories: Whole groups.
            valid: bool [E].
            gather: Returns what all ranks handed in.

        Raises:
            ValueError: A part is in no episode of any rank.
        """
        seen = {"reward", "success"}
        for trajectory, counts in zip(trajectories, valid.tolist(), strict=True):
            if counts:
                seen.update(trajectory.reward_parts)
        some = any(gather(bool(valid.any())))
        everywhere = {name for names in gather(sorted(seen)) for name in names}
        for name in self.weights:
            if some and name not in everywhere:
                raise ValueError(
                    f"model.init_args.objectives.weights.{name}: no episode has such a reward part; there are "
                    f"{', '.join(sorted(everywhere))}"
                )
        parts = [[_part(trajectory, name) for name in self.weights] for trajectory in trajectories]
        return F.combine_rewards(
            torch.tensor(parts, dtype=torch.float32).reshape(len(parts), len(self.weights)),
            torch.tensor(list(self.weights.values())),
            torch.tensor([trajectory.group for trajectory in trajectories], dtype=torch.int64),
            mode=self.mode,
            tolerance=self.tolerance,
            valid=valid,
        )


def _part(trajectory: Trajectory, name: str) -> float:
    if name == "reward":
        return trajectory.reward
    if name == "success":
        return float(trajectory.success)
    return trajectory.reward_parts.get(name, 0.0)
