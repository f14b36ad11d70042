"""DRRN: values of text actions in text states, for sets of actions that change from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lit_agentrl.algorithms.exploration import Exploration
from lit_agentrl.algorithms.q_replay import Observe, QReplay
from lit_agentrl.policies.q_networks import RelevanceNet
from lit_agentrl.policies.text_features import text_features
from lit_agentrl.rollouts.replay import ReplayBuffer
from lit_agentrl.types import Observation

_DEFAULT_EXPLORATION = Exploration(epsilon_start=0.0, epsilon_end=0.0, temperature=1.0)
_TEXTS, _FULL_AT = "replayed_actions", "replayed_actions_full_at"
_NUMBERED = ("action", "next_actions")
_FULL = 1024


class DRRN(QReplay):
    """Deep reinforcement relevance network: Q is the inner product of a state's and an action's encoding.

    The environment lists the valid actions in each observation (arXiv 1511.04636).

    Args:
        num_features: See `QReplay`.
        num_action_features: Length of an action's hashed features.
        observe: See `QReplay`.
        hidden_sizes: Widths of the layers of both encoders.
        max_actions: Most actions that are valid at a time.
        exploration: How training episodes choose; default: softmax at temperature 1.
        kwargs: See `QReplay`.
    """

    def __init__(
        self,
        *,
        num_features: int = 256,
        num_action_features: int = 256,
        observe: Observe = "text",
        hidden_sizes: tuple[int, ...] = (64, 64),
        max_actions: int = 32,
        exploration: Exploration = _DEFAULT_EXPLORATION,
        **kwargs: Any,
    ) -> None:
        if num_action_features < 1:
            raise ValueError(f"model.init_args.num_action_features is {num_action_features}: it must be at least 1")
        if not hidden_sizes or any(size < 1 for size in hidden_sizes):
            raise ValueError(
                f"model.init_args.hidden_sizes is {list(hidden_sizes)}: encoders need one size or more, each at least 1"
            )
        super().__init__(
            num_features=num_features, observe=observe, max_actions=max_actions, exploration=exploration, **kwargs
        )
        self.num_action_features = num_action_features
        self.hidden_sizes = tuple(hidden_sizes)
        self._texts: list[str] = []
        """The actions of the replay buffer, and some of earlier ones, in the order of their numbers."""
        self._numbers: dict[str, int] = {}
        self._table = torch.zeros(0, num_action_features)
        self._full_at = _FULL
        """How many actions there may be before those that are no longer in the replay buffer are forgotten."""

    def make_network(self) -> nn.Module:
        """Return the two encoders."""
        return RelevanceNet(self.num_features, self.num_action_features, hidden_sizes=self.hidden_sizes)

    def valid_actions(self, observation: Observation) -> tuple[str, ...]:
        """Return what the observation lists."""
        if not observation.actions:
            raise ValueError(
                "model.class_path: DRRN chooses among the actions that an observation lists, but the environment lists "
                "none (Observation.actions)"
            )
        if len(observation.actions) > self.max_actions:
            raise ValueError(
                f"model.init_args.max_actions is {self.max_actions}, but the environment offers "
                f"{len(observation.actions)} actions"
            )
        return observation.actions

    def _can_bootstrap(self, observation: Observation | None) -> bool:
        return observation is not None and bool(observation.actions)

    def action_numbers(self, actions: Sequence[str]) -> list[int]:
        """Return the numbers of actions; new ones get the next number."""
        for action in actions:
            if action not in self._numbers:
                self._numbers[action] = len(self._texts)
                self._texts.append(action)
        return [self._numbers[action] for action in actions]

    def forget_unused(self, replay: ReplayBuffer) -> None:
        """Renumber the actions when half of them may be in no transition any more: their table would grow for ever."""
        if len(self._texts) < self._full_at:
            return
        used = torch.cat([replay.columns[name][: len(replay)].flatten() for name in _NUMBERED]).unique()
        used = used[used >= 0]
        places = torch.full((len(self._texts) + 1,), -1)  # the last one is that of -1: no action
        places[used] = torch.arange(len(used))
        for name in _NUMBERED:
            replay.columns[name].copy_(places[replay.columns[name]])
        self._renumber([self._texts[number] for number in used.tolist()])
        self._full_at = max(_FULL, 2 * len(used))

    def _renumber(self, texts: list[str]) -> None:
        self._texts = texts
        self._numbers = {text: number for number, text in enumerate(texts)}
        self._table = torch.zeros(0, self.num_action_features)

    def _features(self, actions: Sequence[str]) -> Tensor:
        """Return the features of actions, [A, E]."""
        return torch.from_numpy(np.stack([text_features(action, self.num_action_features) for action in actions]))

    def values_of_numbers(self, network: nn.Module, states: Tensor, numbers: Tensor) -> Tensor:
        """Return Q, [N, A]; see the base class."""
        if len(self._table) < len(self._texts):
            new = self._features(self._texts[len(self._table) :])
            self._table = torch.cat([self._table, new.to(self._table)])
        self._table = self._table.to(states)
        # Before anything was replayed only a filler comes here, whose values do not matter.
        table = self._table if len(self._table) else states.new_zeros(1, self.num_action_features)
        used, places = numbers.clamp_min(0).unique(return_inverse=True)
        return network(states, table[used], places)

    def values_of_texts(self, states: Tensor, actions: Sequence[Sequence[str]]) -> list[Tensor]:
        """Return Q, [A_i] each; see the base class."""
        place = {text: number for number, text in enumerate(dict.fromkeys(text for row in actions for text in row))}
        rows = [torch.tensor([place[text] for text in texts]) for texts in actions]
        places = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        values = self.networks[0](states, self._features(list(place)).to(states), places.to(states.device))
        return [row[: len(texts)] for row, texts in zip(values, actions, strict=True)]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the texts of the numbers in the replay buffer."""
        super().on_save_checkpoint(checkpoint)
        checkpoint |= {_TEXTS: list(self._texts), _FULL_AT: self._full_at}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Take them over."""
        super().on_load_checkpoint(checkpoint)
        self._full_at = checkpoint.get(_FULL_AT, _FULL)
        self._renumber(list(checkpoint.get(_TEXTS, [])))
