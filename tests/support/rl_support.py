"""What tests of rollouts and algorithms share: a policy that ends its replies, short trajectories, a quiet trainer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from torch import Tensor

from datamodules import RolloutDataModule
from lit_agentrl.agents.tool_agent import ToolAgent
from lit_agentrl.policies.tiny import TinyPolicy
from lit_agentrl.rollouts.rollout import Rollout
from lit_agentrl.types import Completion, EngineStats, Message, Task, Trajectory, TrajectoryGroup, Turn

TASK = Task(id="t", family="f", split="train", seed=0)


class EndingPolicy(TinyPolicy):
    """Random weights would almost never draw the one id that ends a reply; here one id in four does."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"hidden_size": 32, "num_layers": 2, "num_heads": 2, "max_context": 160} | kwargs)

    def _load(self, seed: int) -> Any:
        model, tokenizer, chat = super()._load(seed)
        chat._eos_ids = frozenset({*range(0, len(tokenizer), 4), chat.end_of_turn_id})
        return model, tokenizer, chat


def build(policy: TinyPolicy, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> TinyPolicy:
    policy.build(seed=seed)
    policy.to(dtype)
    return policy


def turn(
    prompt: Sequence[int], sampled: Sequence[int], *, parent: int | None = None, logprobs: Sequence[float] | None = None
) -> Turn:
    return Turn(
        parent=parent,
        prompt_ids=tuple(prompt),
        completion=Completion(
            token_ids=tuple(sampled),
            logprobs=tuple([-1.0] * len(sampled) if logprobs is None else logprobs),
            stop_reason="eos",
            policy_version=3,
        ),
        messages=(),
        reply=Message.of("assistant", ""),
    )


def trajectory(group: int, sample: int, *turns: Turn, reward: float = 0.0, **fields: Any) -> Trajectory:
    return Trajectory(task=TASK, group=group, sample=sample, turns=list(turns), reward=reward, **fields)


def rollout_of(*groups: Sequence[Trajectory], index: int = 0) -> Rollout:
    return Rollout(
        phase="train",
        index=index,
        groups=[
            TrajectoryGroup(group=members[0].group if members else place, task=TASK, trajectories=list(members))
            for place, members in enumerate(groups)
        ],
        engine=EngineStats(),
        wall_s=1.0,
    )


def parity_data(*, env: dict[str, Any] | None = None, **options: Any) -> RolloutDataModule:
    """Four groups of four two-turn episodes."""
    defaults = {"num_groups": 4, "group_size": 4, "max_new_tokens": 6, "max_concurrent_episodes": 16, "num_workers": 1}
    return RolloutDataModule(
        {"class_path": "rl_envs.Parity", "init_args": env or {}},
        ToolAgent(max_turns=4),
        **({"num_val_episodes": 4, "num_test_episodes": 4, "seed": 0} | defaults | options),
    )


def trainer(**options: Any) -> L.Trainer:
    warnings.simplefilter("ignore")
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    defaults = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "limit_val_batches": 0, "num_sanity_val_steps": 0}
    return L.Trainer(**(quiet | defaults | {"use_distributed_sampler": False} | options))


def weights(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def equal(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
