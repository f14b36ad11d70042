"""The policy that a loss holds on to, and what algorithms that have one share."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from lit_agentrl.algorithms.base import Algorithm
from lit_agentrl.algorithms.terms import ReferenceKind
from lit_agentrl.policies.base import Policy
from lit_agentrl.rollouts.batch import RolloutBatch


class Reference:
    """A frozen policy: the one that training began with, a moving average, or the weights below an adapter.

    It is no module, so that it is neither trained nor wrapped by strategies; `state_dict` goes into checkpoints.

    Args:
        kind: See `KLTerm`.
        policy: The trained policy, built.
        key: Configuration key of the kind, for errors.
        decay: Of a moving average, per optimizer step.

    Raises:
        ValueError: `adapter_off` without an adapter.
    """

    def __init__(self, kind: ReferenceKind, policy: Policy, *, key: str, decay: float = 0.99) -> None:
        self._kind, self._policy, self._decay = kind, policy, decay
        self._adapter: Any = None
        if kind == "adapter_off":
            if not hasattr(policy.model, "peft_config"):
                raise ValueError(f"{key}: adapter_off needs policy.init_args.lora; use start")
            self._adapter = policy.model
            self.policy = policy
        else:
            self.policy = policy.frozen_copy()

    def active(self) -> contextlib.AbstractContextManager[Any]:
        """Inside the block, `policy` computes what the reference computes."""
        self._move()
        return contextlib.nullcontext() if self._adapter is None else self._adapter.disable_adapter()

    @torch.no_grad()
    def follow(self) -> None:
        """Move a moving average by one optimizer step."""
        if self._kind != "average":
            return
        self._move()
        averages = dict(self.policy.causal_lm.named_parameters())
        for name, weight in self._policy.merged_weights():
            averages[name].lerp_(weight.to(averages[name].dtype), 1 - self._decay)

    def _move(self) -> None:
        """Go where the policy is: a checkpoint is read before its weights are put on a device."""
        self.policy.to(next(self._policy.parameters()).device)

    def state_dict(self) -> dict[str, Any]:
        """Return the weights, as far as they are the reference's own."""
        return {} if self._adapter is not None else self.policy.causal_lm.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the weights of a checkpoint."""
        if state:
            self.policy.causal_lm.load_state_dict(state)


class ReferencedAlgorithm(Algorithm):
    """An algorithm that may hold on to a reference. Subclasses say to which one."""

    reference: Reference | None = None

    @abstractmethod
    def make_reference(self) -> Reference | None:
        """Return a new reference to the policy as it is now, or `None` if nothing is held on to."""

    def ensure_reference(self) -> Reference | None:
        """Return the reference, made now if it is missing."""
        if self.reference is None:
            self.reference = self.make_reference()
        return self.reference

    def on_fit_start(self) -> None:
        """Make the reference: the policy as it is now, after the warm start, whatever was evaluated before."""
        super().on_fit_start()
        if not self.resumed:
            self.reference = None
        self.ensure_reference()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the reference: the policy cannot be taken back to its start."""
        super().on_save_checkpoint(checkpoint)
        if self.reference is not None:
            checkpoint["reference"] = self.reference.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take the reference over."""
        super().on_load_checkpoint(checkpoint)
        if "reference" in checkpoint:
            self.policy.build()
            reference = self.ensure_reference()
            if reference is not None:
                reference.load_state_dict(checkpoint["reference"])

    def reference_logprobs(self, batch: RolloutBatch, wanted: Tensor, *, otherwise: Tensor) -> Tensor:
        """Return the reference's log-probs of the wanted tokens, [N]; arguments as in `logprobs_of`."""
        reference = self.ensure_reference()
        assert reference is not None
        with reference.active():
            return self.logprobs_of(batch, wanted, otherwise=otherwise, policy=reference.policy)
