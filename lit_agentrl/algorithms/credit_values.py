"""Credit assignment with a critic: generalized advantages over tokens or turns, and what values learn from."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from lit_agentrl import functional as F
from lit_agentrl.algorithms.credit import AdvantageEstimator, Episodes

Step: TypeAlias = Literal["token", "turn"]
_KEY = "model.init_args.advantage.init_args"


class CriticEstimator(AdvantageEstimator):
    """An estimator that reads a critic, and says what the critic is to learn."""

    needs_values = True

    @abstractmethod
    def value_targets(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        """Return the targets of the values, [E, T], and before which tokens there is one, bool [E, T]."""


@dataclass(frozen=True, kw_only=True)
class GeneralizedAdvantage(CriticEstimator):
    """Generalized advantage estimation (GAE, arXiv 1506.02438) over the agent's tokens or turns.

    Args:
        gamma: Discount per step.
        lam: Weight of long returns against the critic's values; 1 is unbiased.
        step: `token`, or `turn`: one value before each turn, its advantage on all the turn's tokens (arXiv
            2512.17008). Turns without tokens are no steps.
        critic_lam: `lam` of the critic's targets; default: the same. 1 trains it on Monte-Carlo returns (VC-PPO,
            arXiv 2503.01491).
        length_alpha: Make `lam` of the advantages 1 - 1/(alpha x tokens of the episode) (VAPO, arXiv 2504.05118).
        bootstrap: Whether the value after the last token stands for what a truncated episode would have earned. If
            not, its end counts as an end.
        whiten: Shift and scale the advantages of a rollout to mean 0 and deviation 1.

    Raises:
        ValueError: A number is out of range, or `length_alpha` with turns.
    """

    gamma: float = 1.0
    lam: float = 0.95
    step: Step = "token"
    critic_lam: float | None = None
    length_alpha: float | None = None
    bootstrap: bool = True
    whiten: bool = True

    def __post_init__(self) -> None:
        if self.step not in get_args(Step):
            raise ValueError(f"{_KEY}.step is {self.step!r}: it must be one of {', '.join(get_args(Step))}")
        for name in ("gamma", "lam", "critic_lam"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{_KEY}.{name} is {value}: it must lie in [0, 1]")
        if self.length_alpha is not None:
            if not self.length_alpha > 0:
                raise ValueError(f"{_KEY}.length_alpha is {self.length_alpha}: it must be above 0, or null")
            if self.step == "turn":
                raise ValueError(f"{_KEY}.length_alpha counts tokens and has no meaning with {_KEY}.step: turn")

    def advantages(self, episodes: Episodes) -> Tensor:
        """Return one number per token, or per turn on all its tokens."""
        lam: float | Tensor = self.lam
        if self.length_alpha is not None:
            lam = F.vapo_lambda((episodes.place >= 0).sum(-1), alpha=self.length_alpha)
        advantages, _, steps = self._estimate(episodes, lam)
        if self.whiten:
            # Every step counts once, however many tokens it has.
            whole = episodes.moments(advantages, steps)
            advantages = F.whiten(advantages, episodes.mask, batch_moments=whole)
        return advantages

    def value_targets(self, episodes: Episodes) -> tuple[Tensor, Tensor]:
        """Return the lambda-returns, before every token or before the first of each turn."""
        lam = self.lam if self.critic_lam is None else self.critic_lam
        _, returns, mask = self._estimate(episodes, lam)
        return returns, mask

    def _estimate(self, episodes: Episodes, lam: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return advantages, returns and where values are trained, [E, T] each."""
        assert episodes.values is not None
        bootstrap = episodes.bootstrap if self.bootstrap else None
        if self.step == "token":
            mask = episodes.mask
            advantages, returns = F.gae(
                episodes.token_rewards(), episodes.values, mask, gamma=self.gamma, lam=lam, bootstrap=bootstrap
            )
            return advantages, returns, mask
        rewards, exists, turn = episodes.spoken_turns()
        first, real = episodes.starts, episodes.place >= 0
        values = torch.zeros_like(rewards).scatter_add(1, turn, torch.where(first, episodes.values, 0.0))
        advantages, returns = F.turn_gae(
            rewards, values, exists & episodes.valid[:, None], gamma=self.gamma, lam=lam, bootstrap=bootstrap
        )
        mask = first & episodes.valid[:, None]
        return F.spread_turns(advantages, turn, real), F.spread_turns(returns, turn, real), mask
