"""What all algorithms that learn from preferred answers share: sums over answers, the reference, what is logged."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from lit_agentrl import functional as F
from lit_agentrl.algorithms.reference import Reference, ReferencedAlgorithm
from lit_agentrl.policies.base import Policy
from lit_agentrl.rollouts.batch import RolloutBatch, TokenReason
from lit_agentrl.rollouts.comparisons import SIDE, Side

PreferenceReference: TypeAlias = Literal["start", "adapter_off"]
REF_LOGPROBS = "ref_logprobs"
_KEY = "model.init_args.reference"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The trained tokens of a micro-batch and the comparisons that they belong to. M tokens, P comparisons."""

    logprobs: Tensor
    """[M], with gradient"""
    place: Tensor
    """[M] int64: comparison of each token, 0 to P - 1"""
    turn: Tensor
    """[M] int64: turn of the answer"""
    weight: Tensor
    """[P]: factor of the comparison's loss"""
    columns: Mapping[str, Tensor]
    """[M] each: what was prepared for each token"""

    @classmethod
    def of(cls, batch: RolloutBatch, index: Tensor, logprobs: Tensor) -> Compared:
        """Gather what a micro-batch knows of its trained tokens.

        Args:
            batch: A micro-batch; comparisons are whole in it.
            index: [M] int64, into the flat batch.
            logprobs: [M].
        """
        segment = batch.segment[index]
        numbers, place = torch.unique(batch.trajectory[segment], return_inverse=True)
        weight = logprobs.new_zeros(numbers.numel())
        weight[place] = batch.weight[index].to(logprobs.dtype)
        return cls(
            logprobs=logprobs,
            place=place,
            turn=batch.turn[segment],
            weight=weight,
            columns={name: column[index] for name, column in batch.columns.items()},
        )

    def column(self, name: str) -> Tensor:
        """Return one of the columns, [M].

        Raises:
            KeyError: It is missing: a loss against a reference never runs without one.
        """
        # The batch that fills up ranks has neither tokens nor columns.
        return self.columns[name] if self.logprobs.numel() else torch.zeros_like(self.place)

    @property
    def reference(self) -> Tensor:
        """[M], without gradient: log-probs of the reference."""
        return self.column(REF_LOGPROBS).to(self.logprobs.dtype)

    def total(self, values: Tensor, side: Side | None = None) -> Tensor:
        """Return the sum of [M] values over each comparison's tokens, of one side or of both, [P]."""
        if side is not None:
            values = torch.where(self.column(SIDE) == side, values, torch.zeros_like(values))
        return torch.zeros_like(self.weight).index_add(0, self.place, values)

    def length(self, side: Side | None = None) -> Tensor:
        """Return the trained tokens of one side or of both, [P]."""
        return self.total(torch.ones_like(self.logprobs), side)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a loss makes of P comparisons."""

    loss: Tensor
    """[P]"""
    chosen_reward: Tensor
    """[P]: the implicit reward of the preferred answer"""
    rejected_reward: Tensor
    """[P]: of the other one"""


class PreferenceAlgorithm(ReferencedAlgorithm):
    """Raises the probability of preferred answers against that of the others. Subclasses give the loss of a pair.

    The loss of an optimizer step is the mean over the comparisons of all ranks. Both answers of a pair are in one
    micro-batch. Log-probs of the reference are computed once per batch, before the step.

    Args:
        policy: The policy that is trained.
        reference: `start` is a frozen copy of the policy that training began with, an adapter merged into it;
            `adapter_off` the weights below a LoRA adapter, which cost no memory; `None` is for losses without one.
        kwargs: See `Algorithm`.
    """

    whole_trajectories = True
    needs_pairs: bool = True
    """Whether answers are only learnt from in pairs."""
    needs_mismatched: bool = False
    """Whether batches have to hold mismatched answers."""
    min_q_gap: float | None = None
    """Gap of Q from which two siblings of a search node make a pair; `None`: nodes of a search are not learnt from."""
    sampled_by_policy: bool = False
    """Whether the answers are the policy's own; decides which way round the logged KL is estimated."""

    def __init__(self, policy: Policy, *, reference: PreferenceReference | None = "start", **kwargs: Any) -> None:
        super().__init__(policy, **kwargs)
        if reference is not None and reference not in get_args(PreferenceReference):
            raise ValueError(f"{_KEY} is {reference!r}: it must be one of {', '.join(get_args(PreferenceReference))}")
        self.reference_kind = reference

    @abstractmethod
    def compare(self, pairs: Compared) -> Verdict:
        """Return the loss and the implicit rewards of each comparison."""

    def fold_comparisons(self, batch: RolloutBatch) -> None:
        """Write the weights of one optimizer step's batch: one part in the number of comparisons of all ranks."""
        trained = batch.reason == TokenReason.TRAINED
        mine = torch.unique(batch.trajectory[batch.segment[trained]]).numel()
        total = float(self.sum_over_ranks(torch.tensor(float(mine), device=batch.token_ids.device)))
        batch.weight = torch.where(trained, self.gradient_ranks / max(total, 1.0), 0.0)
        batch.metrics["train/comparisons"] = total

    # Reference ------------------------------------------------------------------------------------------------------

    def on_fit_start(self) -> None:
        """Make the reference: the policy as it is now.

        Raises:
            ValueError: `adapter_off` would not be the policy that training begins with.
        """
        if self.reference_kind == "adapter_off" and not self.resumed and _adapter_acts(self.policy):
            raise ValueError(
                f"{_KEY}: adapter_off is not the policy that training begins with, because the adapter has been "
                "trained before; use start, or merge the adapter first (python -m lit_agentrl export)"
            )
        super().on_fit_start()

    def make_reference(self) -> Reference | None:
        """Return a new reference, as configured."""
        return None if self.reference_kind is None else Reference(self.reference_kind, self.policy, key=_KEY)

    def prepare(self, batch: RolloutBatch) -> None:
        """Write the reference's log-probs."""
        if self.reference_kind is None:
            return
        wanted = (batch.weight != 0) | (batch.columns[SIDE] == Side.MISMATCHED)
        nothing = torch.zeros_like(batch.behavior_logprobs)
        batch.columns[REF_LOGPROBS] = self.reference_logprobs(batch, wanted, otherwise=nothing)

    # Loss -----------------------------------------------------------------------------------------------------------

    def loss(self, batch: RolloutBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted sum over comparisons, and means over them."""
        index, logprobs, _ = self.policy_logprobs(batch, batch.weight != 0)
        compared = Compared.of(batch, index, logprobs)
        verdict = self.compare(compared)
        with torch.no_grad():
            figures = self.figures(compared, verdict)
        return (compared.weight * verdict.loss).sum(), figures

    def count(self, piece: RolloutBatch) -> int:
        """Return the comparisons of a micro-batch."""
        return torch.unique(piece.trajectory[piece.segment[piece.weight != 0]]).numel()

    def figures(self, compared: Compared, verdict: Verdict) -> dict[str, Tensor]:
        """Return what is logged, as means over comparisons. Log-probs are sums over an answer's tokens, in nats."""
        chosen, rejected = verdict.chosen_reward, verdict.rejected_reward
        logprobs = compared.logprobs
        return {
            "chosen_reward": chosen.mean(),
            "rejected_reward": rejected.mean(),
            "reward_margin": (chosen - rejected).mean(),
            "reward_accuracy": (chosen > rejected).float().mean(),
            "chosen_logprob": compared.total(logprobs, Side.CHOSEN).mean(),
            "rejected_logprob": compared.total(logprobs, Side.REJECTED).mean(),
            **self.kl_figure(compared),
        }

    def kl_figure(self, compared: Compared) -> dict[str, Tensor]:
        """Return the estimated KL in nats a token, which is never negative; nothing without a reference.

        On answers of the policy itself it estimates KL(policy ‖ reference). Answers of a data set are taken for the
        reference's, so that it estimates KL(reference ‖ policy).
        """
        if self.reference_kind is None:
            return {}
        sampler, other = compared.reference, compared.logprobs
        if self.sampled_by_policy:
            sampler, other = other, sampler
        divergence = F.kl_divergence(sampler, other, estimator="k3")
        return {"kl": (compared.total(divergence) / compared.length()).mean()}


def above_zero(name: str, value: float) -> float:
    """Return the value of `model.init_args.<name>`.

    Raises:
        ValueError: It is not above 0.
    """
    if not value > 0:
        raise ValueError(f"model.init_args.{name} is {value}: it must be above 0")
    return value


def _adapter_acts(policy: Policy) -> bool:
    """Say whether a LoRA adapter changes what the model computes."""
    adapted = (module for module in policy.causal_lm.modules() if hasattr(module, "get_delta_weight"))
    return any(bool(m.get_delta_weight(name).any()) for m in adapted for name in m.active_adapters)
