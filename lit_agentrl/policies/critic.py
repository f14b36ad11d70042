"""A critic: a scalar head on hidden states, those of the policy or those of a trunk of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor, nn

from lit_agentrl.policies.base import Policy

Trunk: TypeAlias = Literal["shared", "own"]
_KEY = "model.init_args.critic"


@dataclass(frozen=True, kw_only=True)
class CriticConfig:
    """What judges states, and how it is trained.

    Args:
        trunk: `own` is a copy of the policy as it is when reinforcement learning begins, LoRA merged, all of it
            trained; `shared` reads the policy's own hidden states, which costs next to nothing.
        shared_gradient: With trunk `shared`: whether the value loss also trains the policy's trunk.
        lr: Peak learning rate of the critic; default: the policy's.
        coefficient: Factor of the value loss. It acts on what the policy shares with the critic; the critic's own
            gradient is clipped apart.
        clip: Width of the band around the old values in which values are trained, in units of value; `None` is off.
        max_grad_norm: Norm to which the critic's gradient is scaled down; 0 is off.
        warmup_rollouts: Rollouts at the start from which only the critic learns (VC-PPO, arXiv 2503.01491).
    """

    trunk: Trunk = "own"
    shared_gradient: bool = False
    lr: float | None = None
    coefficient: float = 1.0
    clip: float | None = 0.2
    max_grad_norm: float = 1.0
    warmup_rollouts: int = 0

    def __post_init__(self) -> None:
        if self.trunk not in get_args(Trunk):
            raise ValueError(f"{_KEY}.trunk is {self.trunk!r}: it must be one of {', '.join(get_args(Trunk))}")
        if self.shared_gradient and self.trunk != "shared":
            raise ValueError(f"{_KEY}.shared_gradient: true needs {_KEY}.trunk: shared")
        for name in ("lr", "coefficient", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{_KEY}.{name} is {value}: it must be above 0")
        for name in ("max_grad_norm", "warmup_rollouts"):
            if getattr(self, name) < 0:
                raise ValueError(f"{_KEY}.{name} is {getattr(self, name)}: it must be 0 or more")


class Critic(nn.Module):
    """Values of states. A single head starts at zero, so that the first values are 0 rather than noise.

    Several heads start a little apart: equal twins would stay equal.

    Args:
        trunk: See `CriticConfig`.
        num_values: Numbers per state.
    """

    def __init__(self, trunk: Trunk, *, num_values: int = 1) -> None:
        super().__init__()
        self._kind = trunk
        self._num_values = num_values
        self.trunk: Policy | None = None
        self.head: nn.Linear | None = None

    def build(self, policy: Policy, *, seed: int = 0) -> None:
        """Make the weights beside a built policy, once; later calls do nothing."""
        if self.head is not None:
            return
        if self._kind == "own":
            self.trunk = policy.trainable_copy()
            head, words = (getattr(self.trunk.causal_lm, f"get_{side}_embeddings")() for side in ("output", "input"))
            # No value depends on a head of its own; parameters without a gradient would keep ranks waiting.
            head.requires_grad_(head.weight is words.weight)
        weight = policy.causal_lm.get_output_embeddings().weight
        self.head = nn.Linear(policy.hidden_size, self._num_values, device=weight.device, dtype=weight.dtype)
        nn.init.zeros_(self.head.weight)
        if self._num_values > 1:
            generator = torch.Generator().manual_seed(seed)
            noise = torch.randn(self.head.weight.shape, generator=generator) / policy.hidden_size
            self.head.weight.data.copy_(noise)
        nn.init.zeros_(self.head.bias)

    def restart(self, policy: Policy) -> None:
        """Give a trunk of its own the policy's weights of this moment."""
        if self.trunk is not None:
            policy.sync_inference_copy(self.trunk.causal_lm)

    def forward(self, states: Tensor) -> Tensor:
        """Return the values of hidden states [M, H]: [M], or [M, K] for several a state."""
        assert self.head is not None, "build() was not called"
        # Not in bfloat16: a value is one number, and its last digits are what advantages are made of.
        with torch.autocast(states.device.type, enabled=False):
            values: Tensor = self.head(states.to(self.head.weight.dtype))
        return values.squeeze(-1) if self._num_values == 1 else values
