"""GRPO without its two biases."""

from __future__ import annotations

from typing import Any

from lit_agentrl.algorithms.grpo import GRPO
from lit_agentrl.policies.base import Policy


class DrGRPO(GRPO):
    """No division by the group's deviation, and a constant divisor instead of each length (arXiv 2503.20783).

    Args:
        policy: The policy that is trained.
        max_tokens: The divisor: the most tokens that an episode may sample (`max_new_tokens` x turns).
        kwargs: See `GRPO`.
    """

    def __init__(self, policy: Policy, *, max_tokens: int, **kwargs: Any) -> None:
        if max_tokens < 1:
            raise ValueError(f"model.init_args.max_tokens is {max_tokens}: it must be at least 1")
        super().__init__(
            policy,
            advantage_scale="none",
            aggregation="constant",
            aggregation_constant=float(max_tokens),
            **kwargs,
        )
