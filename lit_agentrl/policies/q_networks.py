"""Small networks that value actions: a fixed list of them, or any action that is given as features."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def mlp(sizes: Sequence[int]) -> nn.Sequential:
    """Return linear layers of these sizes with ReLU between them; two sizes are one linear layer."""
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        layers += ([nn.ReLU()] if number else []) + [nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers)


class FixedActionNet(nn.Module):
    """Q of every action of a fixed list, from the state.

    Args:
        num_features: Length of a state.
        num_actions: Actions.
        hidden_sizes: Widths of the hidden layers; none makes it linear, which with one-hot states is a table.
    """

    def __init__(self, num_features: int, num_actions: int, *, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.layers = mlp([num_features, *hidden_sizes, num_actions])

    def forward(self, states: Tensor) -> Tensor:
        """Return Q, [N, A], of states [N, D]."""
        return self.layers(states)


class RelevanceNet(nn.Module):
    """Q of a state and an action, each read by an encoder of its own (DRRN, arXiv 1511.04636).

    Args:
        num_features: Length of a state.
        num_action_features: Length of an action.
        hidden_sizes: Widths of the layers of both encoders; the last one is the dimension in which they meet.
    """

    def __init__(self, num_features: int, num_action_features: int, *, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.state_encoder = mlp([num_features, *hidden_sizes])
        self.action_encoder = mlp([num_action_features, *hidden_sizes])

    def forward(self, states: Tensor, actions: Tensor, places: Tensor) -> Tensor:
        """Return Q, [N, A]: inner products of the encodings. Each action is encoded once, however often it occurs.

        Args:
            states: [N, D].
            actions: [U, E]: different actions.
            places: [N, A] int64: which of them each state has.
        """
        return torch.einsum("nh,nah->na", self.state_encoder(states), self.action_encoder(actions)[places])
