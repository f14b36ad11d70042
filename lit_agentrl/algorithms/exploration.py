"""How actions are drawn from their values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lit_agentrl.seeding import uniforms


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """With probability epsilon any action, else the best one, or at a temperature above 0 a draw from softmax(Q / T).

    Args:
        epsilon_start: Epsilon at the first environment step.
        epsilon_end: Epsilon once `epsilon_decay_steps` have been made.
        epsilon_decay_steps: Environment steps, over all ranks, over which epsilon falls linearly.
        temperature: Of the softmax; 0 is greedy.
    """

    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_decay_steps: int = 5000
    temperature: float = 0.0

    def __post_init__(self) -> None:
        for key in ("epsilon_start", "epsilon_end"):
            if not 0 <= getattr(self, key) <= 1:
                raise ValueError(
                    f"model.init_args.exploration.{key} is {getattr(self, key)}: it must lie in [0, 1], a probability"
                )
        if self.epsilon_decay_steps < 1:
            raise ValueError(
                f"model.init_args.exploration.epsilon_decay_steps is {self.epsilon_decay_steps}: it must be at least 1"
            )
        if self.temperature < 0:
            raise ValueError(
                f"model.init_args.exploration.temperature is {self.temperature}: it must be 0 (greedy) or more"
            )

    def epsilon(self, env_steps: int) -> float:
        """Return epsilon after some environment steps."""
        done = min(1.0, env_steps / self.epsilon_decay_steps)
        return self.epsilon_start + (self.epsilon_end - self.epsilon_start) * done


def pick(values: np.ndarray, *, seed: int, epsilon: float, temperature: float) -> int:
    """Draw the place of an action.

    Args:
        values: [A] float64: Q of the actions that are valid.
        seed: Of this draw alone.
        epsilon: Probability of any action.
        temperature: Of the softmax; 0 takes the best, of equals the first.
    """
    explores, place = uniforms(seed, 2)
    if explores < epsilon:
        return int(place * len(values))
    if temperature == 0:
        return int(values.argmax())
    shares = np.exp((values - values.max()) / temperature).cumsum()
    return min(int(np.searchsorted(shares, place * shares[-1], side="right")), len(values) - 1)
