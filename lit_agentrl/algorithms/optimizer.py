"""Optimizer settings, shared by all algorithms."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

Schedule: TypeAlias = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its learning-rate schedule.

    Args:
        lr: Peak learning rate.
        weight_decay: Decoupled weight decay; not applied to vectors (norms, biases).
        betas: Decay rates of the moments.
        eps: Added to the root of the second moment.
        warmup_steps: Optimizer steps over which the rate rises linearly from 0.
        schedule: What follows: `constant`, or `linear` or `cosine` down to `final_lr_fraction` at the end of the run;
            the last step is still above it.
        final_lr_fraction: Share of `lr` that is left at the end.
        max_grad_norm: Gradients are scaled down to this norm; 0 switches clipping off.
    """

    lr: float = 1e-5
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    warmup_steps: int = 0
    schedule: Schedule = "constant"
    final_lr_fraction: float = 0.0
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"model.init_args.optimizer.lr is {self.lr}: it must be above 0")
        for key in ("weight_decay", "warmup_steps", "max_grad_norm"):
            if getattr(self, key) < 0:
                raise ValueError(f"model.init_args.optimizer.{key} is {getattr(self, key)}: it must be 0 or more")
        if not self.eps > 0:
            raise ValueError(f"model.init_args.optimizer.eps is {self.eps}: it must be above 0")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"model.init_args.optimizer.betas is {self.betas}: both must lie in [0, 1)")
        if self.schedule not in get_args(Schedule):
            raise ValueError(
                f"model.init_args.optimizer.schedule is {self.schedule!r}: it must be one of "
                f"{', '.join(get_args(Schedule))}"
            )
        if not 0 <= self.final_lr_fraction <= 1:
            raise ValueError(
                f"model.init_args.optimizer.final_lr_fraction is {self.final_lr_fraction}: it must lie in [0, 1]"
            )

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
        """Return AdamW over the parameters that require gradients."""
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        groups = [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=self.lr, betas=self.betas, eps=self.eps
        )

    def make_scheduler(self, optimizer: torch.optim.Optimizer, *, total_steps: int) -> LambdaLR:
        """Return the schedule; `total_steps` is where `linear` and `cosine` end."""
        return LambdaLR(optimizer, lambda step: self.lr_factor(step, total_steps=total_steps))

    def lr_factor(self, step: int, *, total_steps: int) -> float:
        """Return the share of `lr` that is used at a step, counted from 0."""
        if step < self.warmup_steps:
            return (step + 1) / (self.warmup_steps + 1)
        if self.schedule == "constant":
            return 1.0
        done = min(1.0, (step - self.warmup_steps) / max(1, total_steps - self.warmup_steps))
        shape = 1 - done if self.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
        return self.final_lr_fraction + (1 - self.final_lr_fraction) * shape
