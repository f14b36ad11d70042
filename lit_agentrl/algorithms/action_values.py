"""Q and V over utterances: where they are read, what they learn, and the pieces that ArCHer is made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from lit_agentrl import functional as F
from lit_agentrl.algorithms.credit import AdvantageEstimator, Episodes
from lit_agentrl.policies.critic import Critic, Trunk
from lit_agentrl.rollouts.batch import RolloutBatch, TokenReason
from lit_agentrl.types import Trajectory

ValueRule: TypeAlias = Literal["mean", "expectile"]
_KEY = "model.init_args.critic"
_REWARD, _ENDED, _TURN, _Q, _V, _NEXT = "turn_reward", "turn_ended", "spoken_turn", "q", "v", "next_turn"
_EPISODE, _GROUP = "episode", "group"


@dataclass(frozen=True, kw_only=True)
class ActionValueConfig:
    """Twin Q and V, and how they learn (ArCHer, arXiv 2402.19446).

    Args:
        trunk: `own` starts as a copy of the policy and is trained; `shared` reads the policy's hidden states as they
            are.
        gamma: Discount per turn.
        tau: Share by which the target follows the critic in each of its steps.
        value_rule: `mean`: V regresses to Q of what was said; `expectile`: to an upper expectile of it (implicit Q
            learning, arXiv 2110.06169).
        expectile: Of rule `expectile`.
        cql: Factor of the conservative penalty (arXiv 2006.04779), over the utterances that the members of a group
            said in one state; 0 is off.
        updates: Critic steps per rollout.
        batch_size: Episodes per critic step, over all ranks; default: all of one rollout.
        replay_rollouts: Rollouts that are remembered, the present one included.
        lr: Peak learning rate of the critic; default: the policy's.
        max_grad_norm: Norm to which the critic's gradient is scaled down; 0 is off.
    """

    trunk: Trunk = "own"
    gamma: float = 0.9
    tau: float = 0.1
    value_rule: ValueRule = "mean"
    expectile: float = 0.7
    cql: float = 0.0
    updates: int = 4
    batch_size: int | None = None
    replay_rollouts: int = 1
    lr: float | None = None
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        for name, choices in (("trunk", get_args(Trunk)), ("value_rule", get_args(ValueRule))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{_KEY}.{name} is {getattr(self, name)!r}: it must be one of {', '.join(choices)}")
        for name in ("gamma", "tau"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{_KEY}.{name} is {getattr(self, name)}: it must lie in [0, 1]")
        if not 0 < self.expectile < 1:
            raise ValueError(f"{_KEY}.expectile is {self.expectile}: it must lie in (0, 1)")
        for name in ("cql", "max_grad_norm"):
            if getattr(self, name) < 0:
                raise ValueError(f"{_KEY}.{name} is {getattr(self, name)}: it must be 0 or more")
        for name in ("updates", "batch_size", "replay_rollouts"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{_KEY}.{name} is {getattr(self, name)}: it must be at least 1")
        if self.lr is not None and not self.lr > 0:
            raise ValueError(f"{_KEY}.lr is {self.lr}: it must be above 0, or null")


@dataclass(frozen=True, kw_only=True)
class PrecomputedAdvantage(AdvantageEstimator):
    """Takes the critic's word: its values are advantages already, one per turn.

    Args:
        whiten: Shift and scale them to mean 0 and deviation 1 over the turns of the rollout.
    """

    whiten: bool = True
    needs_values = True
    reads_penalties = False

    def advantages(self, episodes: Episodes) -> Tensor:
        """Return one number per turn, on all its tokens."""
        assert episodes.values is not None
        if not self.whiten:
            return episodes.values
        whole = episodes.moments(episodes.values, episodes.starts & episodes.mask)
        return F.whiten(episodes.values, episodes.mask, batch_moments=whole)


def turn_marks(batch: RolloutBatch) -> tuple[Tensor, Tensor]:
    """Return the first and the last sampled token of every turn, bool [N] each."""
    sampled = batch.reason != TokenReason.CONTEXT
    segment = batch.segment
    differs = torch.ones_like(sampled)
    differs[1:] = (segment[1:] != segment[:-1]) | ~sampled[:-1]
    ends = torch.ones_like(sampled)
    ends[:-1] = (segment[1:] != segment[:-1]) | ~sampled[1:]
    return sampled & differs, sampled & ends


class ActionValueTerm:
    """The loss of Q and V on remembered episodes. All that it needs lies in the columns of the batch.

    Args:
        config: See there.
    """

    def __init__(self, config: ActionValueConfig) -> None:
        self._config = config

    @staticmethod
    def is_in(batch: RolloutBatch) -> bool:
        """Whether a batch is one of remembered episodes."""
        return _REWARD in batch.columns

    @staticmethod
    def mark(batch: RolloutBatch, episodes: Episodes) -> None:
        """Write down what every turn earned, and where Q and V are read.

        An episode that was truncated between two turns goes on: V of where it stopped is read after its last token,
        that of its closing if it has one. A reply that was cut is an end. Episodes that are not valid teach nothing.

        Args:
            batch: All tokens, closings included.
            episodes: The same, laid out by episode.
        """
        before, after = turn_marks(batch)
        owner = batch.trajectory[batch.segment].clamp_min(0)
        taught = episodes.valid[owner]
        cut = torch.tensor([_goes_on(trajectory) for trajectory in episodes.trajectories], dtype=torch.bool)
        rewards, exists, turn = episodes.spoken_turns()
        turns = exists.sum(-1)
        last = turn == turns[:, None] - 1
        stops = batch.last_tokens() & cut[owner] & taught & (turns[owner] > 0)
        batch.columns |= {
            _REWARD: episodes.flat(rewards.gather(1, turn), batch),
            _ENDED: episodes.flat(last & ~cut[:, None], batch),
            _TURN: episodes.flat(turn, batch),
            _Q: (after & taught).float(),
            _V: (before & taught).float(),
            _NEXT: torch.where(stops, turns[owner], 0).float(),
            _GROUP: episodes.groups[owner].float(),
        }

    @staticmethod
    def fold(batch: RolloutBatch, normalized: Callable[..., Tensor]) -> None:
        """Fold the normalisers into weights: every turn of the step counts the same."""
        for name in (_Q, _V):
            batch.further_weights[name] = normalized(batch, batch.columns[name] > 0, mode="token-mean")

    def join_groups(self, batch: RolloutBatch) -> None:
        """Make the episodes of a group one unit, which no micro-batch cuts, if they are compared with each other."""
        if not self._config.cql or not batch.num_tokens:
            return
        owner = batch.trajectory[batch.segment]
        batch.columns[_EPISODE] = owner.float()
        group_of = torch.zeros(int(owner.max()) + 2, dtype=torch.int64)  # the last one is nobody's: owner -1
        group_of[owner] = batch.columns[_GROUP].long()
        batch.trajectory = torch.where(batch.trajectory < 0, -1, group_of[batch.trajectory])

    @staticmethod
    def wanted(batch: RolloutBatch) -> Tensor:
        """Return the tokens at which something is read, bool [N]."""
        nothing = torch.zeros_like(batch.weight)
        return sum((batch.columns.get(name, nothing) for name in (_Q, _V, _NEXT)), nothing) > 0

    def __call__(
        self, batch: RolloutBatch, critic: Critic, target: Critic, states: Callable[..., Any]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted sum over turns, and figures to log.

        Args:
            batch: A micro-batch of whole episodes.
            critic: Q1, Q2, V1, V2.
            target: Its slow copy.
            states: `Algorithm.turn_states`.
        """
        nothing = torch.zeros_like(batch.weight)
        q_at, v_at, next_at = (batch.columns.get(name, nothing) > 0 for name in (_Q, _V, _NEXT))
        marks = {"before": v_at, "after": q_at | next_at}
        # A shared trunk is not trained by the critic.
        with torch.set_grad_enabled(torch.is_grad_enabled() and critic.trunk is not None):
            v_index, v_states, index, q_states = states(batch, **marks, policy=critic.trunk)
        said, stops = q_at[index], next_at[index]
        q, v = critic(q_states[said])[:, :2], critic(v_states)[:, 2:]
        with torch.no_grad():
            if target.trunk is not None:
                _, v_states, _, q_states = states(batch, **marks, policy=target.trunk)
            slow_q, slow_v = target(q_states[said])[:, :2], target(v_states)[:, 2:]
            slow_stops = target(q_states[stops])[:, 2:]
        # A row for every turn, by trajectory and turn: Q and V come in the order of their tokens' rows.
        q_key, v_key = _turn_keys(batch, index[said]), _turn_keys(batch, v_index)
        q_order, v_order = q_key.argsort(), v_key.argsort()
        q, slow_q, places, keys = q[q_order], slow_q[q_order], index[said][q_order], q_key[q_order]
        v, slow_v, v_places = v[v_order], slow_v[v_order], v_index[v_order]
        following = _at_keys(
            torch.cat([v_key[v_order], _turn_keys(batch, index[stops], turn=_NEXT)]),
            torch.cat([slow_v, slow_stops]),
            keys + 1,
        )
        targets = F.archer_targets(
            batch.columns[_REWARD][places][:, None].expand_as(q) if len(places) else torch.zeros_like(q),
            batch.columns[_ENDED][places][:, None].expand_as(q) > 0 if len(places) else torch.zeros_like(q),
            following,
            slow_q,
            gamma=self._config.gamma,
        )
        return self._losses(batch, q, v, targets, places, v_places)

    def _losses(
        self, batch: RolloutBatch, q: Tensor, v: Tensor, targets: F.ArcherTargets, places: Tensor, v_places: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        nothing = torch.zeros_like(batch.weight)
        q_weight = batch.further_weights.get(_Q, nothing)[places].to(q.dtype)
        v_weight = batch.further_weights.get(_V, nothing)[v_places].to(v.dtype)
        q_loss = (q_weight[:, None] * (q - targets.q).square()).sum()
        if self._config.value_rule == "expectile":
            v_terms = F.expectile_loss(targets.v, v, expectile=self._config.expectile)
        else:
            v_terms = (v - targets.v).square()
        v_loss = (v_weight[:, None] * v_terms).sum()
        loss, terms = q_loss + v_loss, {"q_loss": q_loss.detach(), "v_loss": v_loss.detach()}
        if self._config.cql:
            penalty = (q_weight[:, None] * _cql(batch, q, places)).sum()
            loss = loss + self._config.cql * penalty
            terms["cql"] = penalty.detach()
        return loss, terms | {"q": q.detach().mean(), "v": v.detach().mean()}


def _goes_on(trajectory: Trajectory) -> bool:
    """Whether an episode was stopped between two turns."""
    if trajectory.status != "truncated" or not trajectory.turns:
        return False
    return trajectory.turns[-1].completion.stop_reason == "eos"


def _turn_keys(batch: RolloutBatch, index: Tensor, *, turn: str = _TURN) -> Tensor:
    """Return a number per token that is one more for the next turn of the same trajectory, int64."""
    owner = batch.columns.get(_EPISODE, batch.trajectory[batch.segment])
    number = batch.columns.get(turn, batch.weight)  # a filler has no columns
    return owner[index].long() * (1 << 20) + number[index].long()


def _at_keys(keys: Tensor, values: Tensor, wanted: Tensor) -> Tensor:
    """Return the values whose keys are wanted, 0 where there is no such key."""
    if not len(keys) or not len(wanted):
        return values.new_zeros((len(wanted), values.shape[-1]))
    order = keys.argsort()
    place = torch.searchsorted(keys[order], wanted).clamp_max(len(keys) - 1)
    found = keys[order][place] == wanted
    return torch.where(found[:, None], values[order][place], 0.0)


def _cql(batch: RolloutBatch, q: Tensor, places: Tensor) -> Tensor:
    """Return the conservative penalty of each turn: logsumexp of Q over what was said in its state, minus its own Q."""
    parents = batch.parent_segment[batch.segment[places]]
    same = parents[:, None] == parents[None, :]
    columns = [torch.where(same, column[None, :], -torch.inf).logsumexp(-1) - column for column in q.unbind(-1)]
    return torch.stack(columns, dim=-1)
