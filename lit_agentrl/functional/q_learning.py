"""Targets, penalties and weights of off-policy value methods. Rewards, values and flags are [N], one per step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lit_agentrl.functional._common import as_float


class ArcherTargets(NamedTuple):
    """Regression targets of utterance-level critics, no gradient."""

    q: Tensor
    """[N], for Q(state, utterance)."""
    v: Tensor
    """[N], for V(state)."""


@torch.no_grad()
def archer_targets(
    rewards: Tensor, done: Tensor, target_v_next: Tensor, target_q_policy: Tensor, *, gamma: float = 0.9
) -> ArcherTargets:
    """Return the targets of ArCHer's critics: Q ← r + gamma·(1 - d)·V̄(next), V ← Q̄(state, policy's own utterance).

    Each of the twin critics uses its own target networks; the minimum is taken in `archer_advantages` only
    (arXiv 2402.19446).

    Args:
        rewards: [N].
        done: bool or 0/1 [N], true where the episode terminated (a truncated one is not done).
        target_v_next: [N], target V of the next state.
        target_q_policy: [N], target Q of the state with an utterance drawn from the policy.
        gamma: Discount per turn.
    """
    rewards = as_float(rewards)
    next_values = torch.where(done.bool(), torch.zeros_like(rewards), as_float(target_v_next))
    return ArcherTargets(q=rewards + gamma * next_values, v=as_float(target_q_policy))


@torch.no_grad()
def archer_advantages(q1: Tensor, q2: Tensor, v1: Tensor, v2: Tensor) -> Tensor:
    """Return min(Q1, Q2) - min(V1, V2), the advantage of ArCHer's actor (arXiv 2402.19446); all [N]."""
    return torch.minimum(as_float(q1), as_float(q2)) - torch.minimum(as_float(v1), as_float(v2))


@torch.no_grad()
def td_targets(
    rewards: Tensor,
    done: Tensor,
    target_q_next: Tensor,
    *,
    gamma: float,
    online_q_next: Tensor | None = None,
    available: Tensor | None = None,
) -> Tensor:
    """Return r + gamma·(1 - d)·max_a Q̄(next, a), the targets of DQN, or of double DQN (arXiv 1509.06461).

    Args:
        rewards: [N].
        done: bool or 0/1 [N], true where the episode terminated.
        target_q_next: [N, A], target Q of every next action.
        gamma: Discount per step.
        online_q_next: [N, A]; if given it chooses the action (double DQN).
        available: bool[N, A], the actions that exist; needed where texts are the actions (DRRN).

    Returns:
        [N], at least float32.
    """
    rewards, target_q_next = as_float(rewards), as_float(target_q_next)
    choosing = target_q_next if online_q_next is None else as_float(online_q_next)
    if available is not None:
        choosing = choosing.masked_fill(~available.bool(), -torch.inf)
    best = target_q_next.gather(-1, choosing.argmax(-1, keepdim=True)).squeeze(-1)
    return rewards + gamma * torch.where(done.bool(), torch.zeros_like(best), best)


@torch.no_grad()
def polyak_average(target: Tensor, source: Tensor, *, tau: float = 0.1) -> Tensor:
    """Return (1 - tau)·target + tau·source, the slow copy of a parameter that targets are computed with."""
    if not 0.0 <= tau <= 1.0:
        raise ValueError(f"tau must lie in [0, 1]; got {tau}")
    return torch.lerp(target, source, tau)


def cql_penalty(q_values: Tensor, actions: Tensor) -> Tensor:
    """Return logsumexp_a Q(s, a) - Q(s, a_data): pushes down actions that the data lack (CQL(H), arXiv 2006.04779).

    Args:
        q_values: [N, A].
        actions: int[N].

    Returns:
        [N], at least float32, never negative.
    """
    q_values = as_float(q_values)
    return q_values.logsumexp(-1) - q_values.gather(-1, actions.unsqueeze(-1)).squeeze(-1)


def mixed_q(q_search: Tensor, q_critic: Tensor, *, alpha: float = 0.5) -> Tensor:
    """Return alpha·Q_search + (1 - alpha)·Q_critic (Agent Q, arXiv 2408.07199); same shapes."""
    return alpha * as_float(q_search) + (1.0 - alpha) * as_float(q_critic)


class DigirlStep(NamedTuple):
    """How a step is judged, [N] each, no gradient."""

    advantages: Tensor
    """In [0, 1]."""
    weights: Tensor
    """1 where the advantage is positive, else 0; multiplies the log-probs of the action."""


@torch.no_grad()
def digirl_weights(
    values: Tensor, next_values: Tensor, rewards: Tensor, returns: Tensor, *, step_cost: float = 0.05
) -> DigirlStep:
    """Judge steps by a one-step advantage and keep the good ones (DigiRL, arXiv 2406.11896).

    A = clip(V(next) - V - cost + r + R, 0, 1). As in its code, the weight is 1[A > 0].

    Args:
        values: [N].
        next_values: [N].
        rewards: [N], of the step.
        returns: [N], Monte-Carlo return of the episode.
        step_cost: What a step costs.
    """
    raw = as_float(next_values) - as_float(values) - step_cost + as_float(rewards) + as_float(returns)
    advantages = raw.clamp(0.0, 1.0)
    return DigirlStep(advantages=advantages, weights=(advantages > 0).to(advantages.dtype))
