"""What tests of value functions share: a corridor's data module, networks of known weights, transitions by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from datamodules import ReplayDataModule
from lit_agentrl.algorithms import DQN, DRRN, OptimizerConfig
from lit_agentrl.algorithms.q_replay import QReplay
from lit_agentrl.rollouts.replay import ReplayBatch
from lit_agentrl.types import Message, Observation, Transition

ACTIONS = ["wait", "walk east", "walk west"]


def corridor_data(*, env: dict[str, Any] | None = None, agent: Any = None, **options: Any) -> ReplayDataModule:
    """Forty steps and eight updates an epoch."""
    defaults = {"env_steps_per_epoch": 40, "updates_per_epoch": 8, "batch_size": 16, "max_concurrent_episodes": 4}
    return ReplayDataModule(
        {"class_path": "q_envs.Corridor", "init_args": env or {}},
        agent,
        **({"num_val_episodes": 4, "num_test_episodes": 4, "seed": 0} | defaults | options),
    )


def dqn(**options: Any) -> DQN:
    defaults = {"num_features": 4, "hidden_sizes": (8,), "seed": 0, "optimizer": OptimizerConfig(lr=1e-2)}
    return DQN(actions=ACTIONS, **(defaults | options))


def drrn(**options: Any) -> DRRN:
    defaults = {"num_features": 32, "num_action_features": 32, "hidden_sizes": (8,), "max_actions": 4, "seed": 0}
    return DRRN(**(defaults | {"optimizer": OptimizerConfig(lr=1e-2)} | options))


def seen(text: str, actions: Sequence[str] = (), array: Sequence[float] | None = None) -> Observation:
    return Observation(
        messages=(Message.of("user", text),),
        actions=tuple(actions),
        array=None if array is None else tuple(float(number) for number in array),
    )


def cell(number: int, actions: Sequence[str] = (), *, length: int = 4) -> Observation:
    return seen(f"cell {number}", actions, [place == number for place in range(length)])


def transition(before: Observation, action: str, reward: float, after: Observation | None, **fields: Any) -> Transition:
    return Transition(
        observation=before,
        action=action,
        reward=reward,
        next_observation=after,
        **({"terminated": after is None} | fields),
    )


def batch_of(module: QReplay, transitions: Sequence[Transition], *, weight: float | None = None) -> ReplayBatch:
    """Return transitions as the batch of one step, with equal weights."""
    columns: dict[str, Any] = module.columns(transitions)
    count = len(columns["reward"])
    share = 1 / max(count, 1) if weight is None else weight
    return ReplayBatch(**columns, weight=torch.full((count,), share), place=torch.arange(count))


def random_walk(count: int) -> list[Transition]:
    """Steps from every cell, some of which end the episode, with rewards that tell them apart."""
    steps = []
    for number in range(count):
        here, after = number % 3, (number * 7 + 1) % 4
        offered = ACTIONS if after else ACTIONS[:2]
        ended = number % 5 == 0
        action = ACTIONS[number % (3 if here else 2)]
        following = cell(after, offered)
        steps.append(transition(cell(here, ACTIONS), action, 0.1 * number, following, terminated=ended))
    return steps
