"""DPO on single steps of an agent: sibling branches of one node of a search."""

from __future__ import annotations

from typing import Any

from lit_agentrl import functional as F
from lit_agentrl.algorithms.dpo import DPO
from lit_agentrl.algorithms.preference import PreferenceReference
from lit_agentrl.policies.base import Policy


class StepDPO(DPO):
    """DPO on replies to one context whose values differ clearly (arXiv 2406.18629; with search, arXiv 2408.07199).

    Files hold nodes of a search: the messages so far, and candidate replies with their Q. All pairs of candidates whose
    gap exceeds `min_q_gap` are learnt from.

    Args:
        policy: The policy that is trained.
        min_q_gap: Gap of Q above which the better of two candidates is preferred.
        beta: Strength of the pull to the reference.
        variant: See `DPO`.
        label_smoothing: See `DPO`.
        reference: See `PreferenceAlgorithm`.
        kwargs: See `Algorithm`.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        min_q_gap: float = 0.2,
        beta: float = 0.1,
        variant: F.PreferenceVariant = "sigmoid",
        label_smoothing: float = 0.0,
        reference: PreferenceReference = "start",
        **kwargs: Any,
    ) -> None:
        super().__init__(
            policy, beta=beta, variant=variant, label_smoothing=label_smoothing, reference=reference, **kwargs
        )
        if min_q_gap < 0:
            raise ValueError(f"model.init_args.min_q_gap is {min_q_gap}: it must be 0 or more")
        self.min_q_gap = min_q_gap
