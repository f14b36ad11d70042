"""The policy that a KL term holds on to."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from lit_agentrl.algorithms.terms import KLTerm
from lit_agentrl.policies.base import Policy


class Reference:
    """A frozen policy: the one that training began with, a moving average, or the weights below an adapter.

    It is no module, so that it is neither trained nor wrapped by strategies; `state_dict` goes into checkpoints.

    Args:
        term: Which reference.
        policy: The trained policy, built.

    Raises:
        ValueError: `adapter_off` without an adapter.
    """

    def __init__(self, term: KLTerm, policy: Policy) -> None:
        self._term, self._policy = term, policy
        self._adapter: Any = None
        if term.reference == "adapter_off":
            if not hasattr(policy.model, "peft_config"):
                raise ValueError("model.init_args.kl.reference: adapter_off needs policy.init_args.lora; use start")
            self._adapter = policy.model
            self.policy = policy
        else:
            self.policy = policy.frozen_copy()

    def active(self) -> contextlib.AbstractContextManager[Any]:
        """Inside the block, `policy` computes what the reference computes."""
        return contextlib.nullcontext() if self._adapter is None else self._adapter.disable_adapter()

    @torch.no_grad()
    def follow(self) -> None:
        """Move a moving average by one optimizer step."""
        if self._term.reference != "average":
            return
        averages = dict(self.policy.causal_lm.named_parameters())
        for name, weight in self._policy.merged_weights():
            averages[name].lerp_(weight.to(averages[name].dtype), 1 - self._term.decay)

    def state_dict(self) -> dict[str, Any]:
        """Return the weights, as far as they are the reference's own."""
        return {} if self._adapter is not None else self.policy.causal_lm.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the weights of a checkpoint."""
        if state:
            self.policy.causal_lm.load_state_dict(state)
