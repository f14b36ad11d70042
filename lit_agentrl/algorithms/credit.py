"""Credit assignment: from the rewards of a rollout to an advantage for every sampled token.

All methods are one kind of object, `AdvantageEstimator`, that a policy-gradient algorithm is composed with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from lit_agentrl import functional as F
from lit_agentrl.functional import AdvantageScale, Moments
from lit_agentrl.rollouts.batch import RolloutBatch, TokenReason
from lit_agentrl.rollouts.rollout import Rollout
from lit_agentrl.types import Trajectory

Baseline: TypeAlias = Literal["none", "batch"]
GroupScale: TypeAlias = Literal["std", "none"]
_KEY = "model.init_args.advantage.init_args"


def _check_gamma(gamma: float) -> None:
    if not 0 <= gamma <= 1:
        raise ValueError(f"{_KEY}.gamma is {gamma}: it must lie in [0, 1]")


@dataclass(kw_only=True)
class Episodes:
    """The rollout as an estimator sees it: E episodes, sampled tokens laid out by episode, T the longest."""

    trajectories: list[Trajectory]
    rewards: Tensor
    """[E] float32: what each episode earned, shaping included."""
    groups: Tensor
    """[E] int64"""
    valid: Tensor
    """[E] bool: takes part in baselines and is trained."""
    place: Tensor
    """[E, T] int64: where each sampled token lies in the flat batch; -1 is padding."""
    turns: Tensor
    """[E, T] int64: turn of each token."""
    penalties: Tensor
    """[E, T] float32: subtracted from the reward token by token (KL in the reward)."""
    gather: Callable[[Any], list[Any]]
    """Returns what all ranks handed in."""
    values: Tensor | None = None
    """[E, T] float32: a critic's value before each token."""
    paid_at_end: bool = False
    """Whether all that an episode earned counts as earned by its last turn."""
    bootstrap: Tensor | None = None
    """[E] float32: a critic's value after the last token, 0 where the episode terminated."""

    @classmethod
    def of(
        cls,
        rollout: Rollout,
        batch: RolloutBatch,
        *,
        valid: Tensor,
        rewards: Tensor,
        gather: Callable[[Any], list[Any]],
        penalties: Tensor | None = None,
        values: Tensor | None = None,
        bootstrap: Tensor | None = None,
        paid_at_end: bool = False,
    ) -> Episodes:
        """Lay the sampled tokens of a whole rollout out by episode.

        Args:
            rollout: Its episodes.
            batch: All tokens.
            valid: [E] bool.
            rewards: [E].
            gather: See the field.
            penalties: [N], per token of the flat batch; default: none.
            values: [N], per token of the flat batch; default: there is no critic.
            bootstrap: [E].
            paid_at_end: See the field.
        """
        trajectories = rollout.trajectories
        owner = batch.trajectory[batch.segment]
        sampled = ((batch.reason != TokenReason.CONTEXT) & (owner >= 0)).nonzero().squeeze(-1)
        sampled = sampled[torch.argsort(owner[sampled], stable=True)]
        owner = owner[sampled]
        lengths = torch.bincount(owner, minlength=len(trajectories))
        width = int(lengths.max()) if len(trajectories) else 0
        place = torch.full((len(trajectories), width), -1, dtype=torch.int64)
        column = torch.arange(sampled.numel()) - (lengths.cumsum(0) - lengths)[owner]
        place[owner, column] = sampled
        at = place.clamp_min(0)
        spread = torch.zeros(place.shape) if penalties is None else penalties[at]
        return cls(
            trajectories=trajectories,
            rewards=rewards,
            groups=torch.tensor([t.group for t in trajectories], dtype=torch.int64),
            valid=valid,
            place=place,
            turns=batch.turn[batch.segment[at]] if place.numel() else place,
            penalties=torch.where(place >= 0, spread, 0.0),
            gather=gather,
            values=None if values is None else torch.where(place >= 0, values[at], 0.0),
            bootstrap=bootstrap,
            paid_at_end=paid_at_end,
        )

    @property
    def mask(self) -> Tensor:
        """[E, T] bool: tokens of valid episodes."""
        return (self.place >= 0) & self.valid[:, None]

    @property
    def penalized_rewards(self) -> Tensor:
        """[E]: what each episode earned, penalties subtracted."""
        return self.rewards - self.penalties.sum(-1)

    @property
    def starts(self) -> Tensor:
        """[E, T] bool: the first token of each turn."""
        before = torch.cat([self.turns.new_full((len(self.turns), 1), -1), self.turns], dim=-1)[:, :-1]
        return (self.place >= 0) & (self.turns != before)

    def spoken_turns(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return what each turn with tokens earned, which there are, and each token's turn among them.

        Turns without tokens are no steps: what they earned goes where `token_rewards` puts it. Penalties are
        subtracted.

        Returns:
            [E, K] float32, [E, K] bool, [E, T] int64.
        """
        starts = self.starts
        counts = starts.sum(-1)
        exists = torch.arange(int(counts.max()) if len(counts) else 0) < counts[:, None]
        number = (starts.cumsum(-1) - 1).clamp_min(0)
        earned = torch.where(self.place >= 0, self.token_rewards(), 0.0)
        return torch.zeros(exists.shape).scatter_add(1, number, earned), exists, number

    def penalized_turn_rewards(self) -> tuple[Tensor, Tensor]:
        """Return `turn_rewards` with the penalties of each turn's tokens subtracted."""
        rewards, exists = self.turn_rewards()
        if rewards.numel() and self.place.numel():
            rewards = rewards.scatter_add(1, self.turns.clamp_min(0), -self.penalties)
        return rewards, exists

    def turn_rewards(self) -> tuple[Tensor, Tensor]:
        """Return what each turn earned and which turns exist, [E, K] each.

        What the episode earned beside its turns (reward terms, shaping) goes to the last turn.
        """
        most = max((len(t.turns) for t in self.trajectories), default=0)
        rewards = torch.zeros((len(self.trajectories), most))
        exists = torch.zeros((len(self.trajectories), most), dtype=torch.bool)
        for number, trajectory in enumerate(self.trajectories):
            earned = [0.0 if self.paid_at_end else turn.reward for turn in trajectory.turns]
            if earned:
                earned[-1] += float(self.rewards[number]) - sum(earned)
                rewards[number, : len(earned)] = torch.tensor(earned)
                exists[number, : len(earned)] = True
        return rewards, exists & self.valid[:, None]

    def token_rewards(self) -> Tensor:
        """Return [E, T]: what each turn earned on its last token, penalties subtracted.

        What a turn without tokens earned is paid on the last token before it, or, if there is none, on the first.
        """
        rewards, _ = self.turn_rewards()
        if not (rewards.numel() and self.place.numel()):
            return -self.penalties
        real, most = self.place >= 0, rewards.shape[1]
        numbers = torch.arange(most).expand_as(rewards).contiguous()
        until = torch.searchsorted(torch.where(real, self.turns, most), numbers, right=True)
        paid = torch.zeros(self.place.shape).scatter_add(1, (until - 1).clamp_min(0), rewards)
        return torch.where(real, paid, 0.0) - self.penalties

    def moments(self, values: Tensor, mask: Tensor) -> Moments:
        """Return the moments of the values inside the mask over all ranks."""
        return sum(self.gather(F.moments(values, mask)), Moments())

    def flat(self, by_episode: Tensor, batch: RolloutBatch) -> Tensor:
        """Lay [E, T] out as the batch's tokens, float32 [N]; 0 elsewhere."""
        real = self.place >= 0
        flat = torch.zeros(batch.num_tokens)
        flat[self.place[real]] = by_episode[real].float()
        return flat

    def per_token(self, advantages: Tensor) -> Tensor:
        """Spread one number per episode, [E], over its tokens, [E, T]."""
        return advantages[:, None].expand(self.place.shape)


class AdvantageEstimator(ABC):
    """Says how much better than expected every sampled token was."""

    min_group_size: int = 1
    """Episodes per task from which there is anything to compare."""
    whole_episodes: bool = False
    """Whether all tokens of an episode get the same number."""

    needs_values: bool = False
    """Whether it reads a critic; then it is a `CriticEstimator`."""
    reads_penalties: bool = True
    """Whether a KL in the reward has an effect."""

    @abstractmethod
    def advantages(self, episodes: Episodes) -> Tensor:
        """Return [E, T]; entries of padding and of episodes that are not valid do not matter."""


@dataclass(frozen=True, kw_only=True)
class GroupRelative(AdvantageEstimator):
    """How much better an episode did than its group (GRPO, arXiv 2402.03300).

    Args:
        scale: `std` divides by the group's standard deviation (ddof 1), `none` does not (Dr. GRPO, arXiv 2503.20783),
            `batch` divides by that of all episodes.
    """

    scale: AdvantageScale = "std"
    min_group_size = 2
    whole_episodes = True

    def advantages(self, episodes: Episodes) -> Tensor:
        """Return the same number for all tokens of an episode; exactly 0 in constant groups."""
        rewards, valid = episodes.penalized_rewards, episodes.valid
        whole = episodes.moments(rewards, valid) if self.scale == "batch" else None
        relative = F.group_advantages(rewards, episodes.groups, scale=self.scale, valid=valid, batch_moments=whole)
        return episodes.per_token(relative)


@dataclass(frozen=True, kw_only=True)
class LeaveOneOut(AdvantageEstimator):
    """Reward minus the mean of the group's other episodes (RLOO, arXiv 2402.14740). Unbiased."""

    min_group_size = 2
    whole_episodes = True

    def advantages(self, episodes: Episodes) -> Tensor:
        """Return the same number for all tokens of an episode; exactly 0 in constant groups."""
        return episodes.per_token(F.rloo_advantages(episodes.penalized_rewards, episodes.groups, valid=episodes.valid))


@dataclass(frozen=True, kw_only=True)
class DiscountedReturn(AdvantageEstimator):
    """What was earned from the token's turn on (REINFORCE, Williams 1992).

    Args:
        gamma: Discount per turn.
        baseline: `batch` subtracts the mean first-turn return of all other episodes, which leaves the gradient
            unbiased; `none` subtracts nothing.
    """

    gamma: float = 1.0
    baseline: Baseline = "batch"

    def __post_init__(self) -> None:
        _check_gamma(self.gamma)

    def advantages(self, episodes: Episodes) -> Tensor:
        """Return one number per turn, on all its tokens."""
        rewards, exists = episodes.penalized_turn_rewards()
        returns = F.discounted_returns(rewards, exists, gamma=self.gamma)
        if self.baseline == "batch":
            first = returns[:, :1]  # [E, 0] where no episode has a turn
            whole = episodes.moments(first, exists[:, :1])
            if whole.count > 1:
                others = (whole.total - first) / (whole.count - 1)
                # Sums of equal float32 numbers are off by a digit; equal returns have to give exactly 0.
                constant = whole.highest == whole.lowest
                returns = returns - (torch.full_like(others, whole.mean) if constant else others)
        if not episodes.place.numel():
            return torch.zeros(episodes.place.shape)
        return returns.gather(1, episodes.turns.clamp_min(0))


@dataclass(frozen=True, kw_only=True)
class WhitenedReturn(AdvantageEstimator):
    """Token returns, whitened over the whole rollout (REINFORCE++, arXiv 2501.03262).

    Args:
        gamma: Discount per token; the paper's is 1.
        group_baseline: Subtract the mean of the group first (the paper's variant `-baseline`).
    """

    gamma: float = 1.0
    group_baseline: bool = False

    def __post_init__(self) -> None:
        _check_gamma(self.gamma)

    @property
    def min_group_size(self) -> int:  # type: ignore[override]
        """Episodes per task from which there is anything to compare."""
        return 2 if self.group_baseline else 1

    def advantages(self, episodes: Episodes) -> Tensor:
        """Return one number per token. A constant group is not exactly 0 unless the rollout is constant."""
        mask = episodes.mask
        returns = F.discounted_returns(episodes.token_rewards(), mask, gamma=self.gamma)
        if self.group_baseline:
            returns = F.center_rows(returns, mask, episodes.groups)
        return F.whiten(returns, mask, batch_moments=episodes.moments(returns, mask))


@dataclass(frozen=True, kw_only=True)
class GroupInGroup(AdvantageEstimator):
    """A second baseline over the steps that started from an equal state (GiGPO, arXiv 2505.10978).

    The environment has to give `Observation.state_key`; steps without one are compared with nothing.

    Args:
        omega: Weight of the step advantages.
        gamma: Discount of the step returns.
        scale: Of both advantages: `none` or `std`, as in the paper.
    """

    omega: float = 1.0
    gamma: float = 0.95
    scale: GroupScale = "std"
    min_group_size = 2

    def __post_init__(self) -> None:
        _check_gamma(self.gamma)
        if self.scale not in get_args(GroupScale):
            raise ValueError(
                f"{_KEY}.scale is {self.scale!r}, but model.init_args.advantage: GroupInGroup compares inside groups "
                f"alone; it must be one of {', '.join(get_args(GroupScale))}"
            )

    def advantages(self, episodes: Episodes) -> Tensor:
        """Return one number per turn, on all its tokens."""
        rewards, _ = episodes.penalized_turn_rewards()
        steps = [(e, k) for e, t in enumerate(episodes.trajectories) for k in range(len(t.turns))]
        if not steps:
            return torch.zeros(episodes.place.shape)
        owner = torch.tensor([e for e, _ in steps])
        number = torch.tensor([k for _, k in steps])
        with_steps = torch.unique(owner)
        result = F.gigpo_advantages(
            rewards[owner, number],
            episodes.groups[owner],
            owner,
            number,
            [episodes.trajectories[e].turns[k].state_key for e, k in steps],
            episode_returns=episodes.penalized_rewards[with_steps],
            gamma=self.gamma,
            omega=self.omega,
            scale=self.scale,
            valid=episodes.valid[owner],
        )
        by_turn = torch.zeros(rewards.shape).index_put((owner, number), result)
        return by_turn.gather(1, episodes.turns.clamp_min(0))
