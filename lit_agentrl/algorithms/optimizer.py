"""Optimizer settings, shared by all algorithms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

Schedule: TypeAlias = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, kw_only=True)
class ParameterGroup:
    """Parameters that are trained with settings of their own.

    Args:
        match: Pattern over parameter names, `*` for anything: `critic.*`, `policy.*lora_B*`.
        lr: Peak learning rate; default: that of all. The schedule is shared.
        weight_decay: Decoupled weight decay; default: that of all.
        max_grad_norm: Norm to which their gradient is scaled down, apart from all others; 0 switches that off. By
            default they are clipped together with the parameters that are in no group.
    """

    match: str
    lr: float | None = None
    weight_decay: float | None = None
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        key = "model.init_args.optimizer.groups"
        if self.lr is not None and not self.lr > 0:
            raise ValueError(f"{key}: lr of {self.match!r} is {self.lr}: it must be above 0, or null")
        for name in ("weight_decay", "max_grad_norm"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{key}: {name} of {self.match!r} is {value}: it must be 0 or more, or null")


@dataclass(frozen=True, kw_only=True)
class ClipGroup:
    """Parameters whose gradient is clipped together."""

    name: str
    """Empty for all that is in no group."""
    parameters: list[nn.Parameter]
    limit: float


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
        groups: Parameters with settings of their own, by a name of one's choice; the first that matches counts.
    """

    lr: float = 1e-5
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    warmup_steps: int = 0
    schedule: Schedule = "constant"
    final_lr_fraction: float = 0.0
    max_grad_norm: float = 1.0
    groups: dict[str, ParameterGroup] = field(default_factory=dict)

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

    def make_optimizer(
        self, parameters: Iterable[tuple[str, nn.Parameter]], *, further: Mapping[str, ParameterGroup] | None = None
    ) -> torch.optim.AdamW:
        """Return AdamW over the parameters that require gradients.

        Args:
            parameters: Names and parameters.
            further: An algorithm's own groups; those of the configuration come first and replace those of their name.

        Raises:
            ValueError: A configured group matches nothing.
        """
        groups: list[dict[str, Any]] = []
        settings = self._groups(further)
        for name, members in self._members(parameters, settings).items():
            own = settings[name] if name else ParameterGroup(match="*")
            decay = self.weight_decay if own.weight_decay is None else own.weight_decay
            lr = self.lr if own.lr is None else own.lr
            groups += [
                {"params": [p for p in members if p.ndim >= 2], "weight_decay": decay, "lr": lr, "name": name},
                {"params": [p for p in members if p.ndim < 2], "weight_decay": 0.0, "lr": lr, "name": name},
            ]
        return torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=self.lr, betas=self.betas, eps=self.eps
        )

    def clip_groups(
        self, parameters: Iterable[tuple[str, nn.Parameter]], *, further: Mapping[str, ParameterGroup] | None = None
    ) -> list[ClipGroup]:
        """Return what is clipped apart, all that has no limit of its own first; arguments as in `make_optimizer`."""
        settings = self._groups(further)
        together: list[nn.Parameter] = []
        apart: list[ClipGroup] = []
        for name, members in self._members(parameters, settings).items():
            limit = settings[name].max_grad_norm if name else None
            if limit is None:
                together += members
            else:
                apart.append(ClipGroup(name=name, parameters=members, limit=limit))
        return [ClipGroup(name="", parameters=together, limit=self.max_grad_norm), *apart]

    def _groups(self, further: Mapping[str, ParameterGroup] | None) -> dict[str, ParameterGroup]:
        """Return all groups in the order in which they are matched."""
        return self.groups | {name: group for name, group in (further or {}).items() if name not in self.groups}

    def _members(
        self, parameters: Iterable[tuple[str, nn.Parameter]], settings: Mapping[str, ParameterGroup]
    ) -> dict[str, list[nn.Parameter]]:
        """Return trained parameters by group, those in no group under the empty name, first."""
        patterns = {name: group.match for name, group in settings.items()}
        members: dict[str, list[nn.Parameter]] = {name: [] for name in ("", *patterns)}
        names = []
        for name, parameter in parameters:
            if parameter.requires_grad:
                names.append(name)
                group = next((group for group, pattern in patterns.items() if fnmatchcase(name, pattern)), "")
                members[group].append(parameter)
        for group in self.groups:
            if not members[group]:
                raise ValueError(
                    f"model.init_args.optimizer.groups.{group}.match is {patterns[group]!r}: it matches none of the "
                    f"{len(names)} trained parameters, such as {', '.join(names[:2])}"
                )
        return members

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
