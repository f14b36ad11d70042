"""DQN: a network that values a fixed list of actions, learnt from replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lit_agentrl.algorithms.q_replay import Observe, QReplay
from lit_agentrl.policies.q_networks import FixedActionNet
from lit_agentrl.types import Observation


class DQN(QReplay):
    """Deep Q learning (Mnih et al. 2015), double by default (arXiv 1509.06461).

    Args:
        actions: All actions of the environment, as texts. An observation that lists fewer makes the others invalid.
        num_features: See `QReplay`.
        observe: See `QReplay`.
        hidden_sizes: Widths of the hidden layers; none makes the network linear, with one-hot states a table.
        kwargs: See `QReplay`.
    """

    def __init__(
        self,
        *,
        actions: list[str],
        num_features: int,
        observe: Observe = "array",
        hidden_sizes: tuple[int, ...] = (64, 64),
        **kwargs: Any,
    ) -> None:
        if not actions or len(set(actions)) != len(actions):
            raise ValueError(f"model.init_args.actions is {actions}: name every action of the environment, each once")
        if any(size < 1 for size in hidden_sizes):
            raise ValueError(f"model.init_args.hidden_sizes is {list(hidden_sizes)}: each must be at least 1")
        super().__init__(num_features=num_features, observe=observe, max_actions=len(actions), **kwargs)
        self.actions = tuple(actions)
        self.hidden_sizes = tuple(hidden_sizes)
        self._numbers = {action: number for number, action in enumerate(actions)}

    def make_network(self) -> nn.Module:
        """Return a multi-layer perceptron with an output for each action."""
        return FixedActionNet(self.num_features, len(self.actions), hidden_sizes=self.hidden_sizes)

    def valid_actions(self, observation: Observation) -> tuple[str, ...]:
        """Return what the observation lists, or all actions if it lists none."""
        unknown = [action for action in observation.actions if action not in self._numbers]
        if unknown:
            raise ValueError(
                f"model.init_args.actions is {list(self.actions)}, but the environment also offers {unknown}"
            )
        return observation.actions or self.actions

    def action_numbers(self, actions: Sequence[str]) -> list[int]:
        """Return the places of actions in the list."""
        return [self._numbers[action] for action in actions]

    def values_of_numbers(self, network: nn.Module, states: Tensor, numbers: Tensor) -> Tensor:
        """Return Q, [N, A]; see the base class."""
        return network(states).gather(1, numbers.clamp_min(0))

    def values_of_texts(self, states: Tensor, actions: Sequence[Sequence[str]]) -> list[Tensor]:
        """Return Q, [A_i] each; see the base class."""
        values = self.networks[0](states)
        numbers = [torch.tensor(self.action_numbers(texts), device=values.device) for texts in actions]
        return [row[places] for row, places in zip(values, numbers, strict=True)]
