"""Returns and advantages along time: GAE over tokens or turns, discounted returns, VAPO's lambda."""

from __future__ import annotations

import torch
from torch import Tensor

from lit_agentrl.functional._common import as_float, choose, masked


def _check_discount(name: str, value: float | Tensor) -> None:
    if isinstance(value, (int, float)) and not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1]; got {value}")


@torch.no_grad()
def gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    gamma: float,
    lam: float | Tensor,
    bootstrap: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation over the agent's tokens (arXiv 1506.02438).

    With t' the next token inside the mask: A_t = r_t + gamma·V_t' - V_t + gamma·lam·A_t', and the return is A_t + V_t.
    Positions outside the mask (observations, padding) are skipped: V and A are carried through them, and no discount
    is paid.
    verl does the same; a plain scan over positions lets the values of observations leak in.

    Args:
        rewards: [B, T]. Put what the environment paid on the last token of the action that earned it; entries outside
            the mask are ignored.
        values: [B, T].
        mask: bool or 0/1 [B, T], true for the agent's tokens.
        gamma: Discount per token.
        lam: One number or [B] (see `vapo_lambda`).
        bootstrap: [B], the value of the state after the last token: V where the episode was truncated, 0 where it
            terminated. None means that all terminated.

    Returns:
        Advantages and returns, each [B, T], at least float32, 0 outside the mask, no gradient.
    """
    _check_discount("gamma", gamma)
    _check_discount("lam", lam)
    inside = mask.bool()
    values, rewards = masked(as_float(values), inside), masked(as_float(rewards), inside)
    next_value = values.new_zeros(values.shape[0]) if bootstrap is None else bootstrap.to(values.dtype)
    next_advantage = torch.zeros_like(next_value)
    advantages = torch.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        next_advantage = torch.where(inside[:, t], delta + gamma * lam * next_advantage, next_advantage)
        next_value = torch.where(inside[:, t], values[:, t], next_value)
        advantages[:, t] = next_advantage
    return masked(advantages, inside), masked(advantages + values, inside)


@torch.no_grad()
def turn_gae(
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    *,
    gamma: float = 0.99,
    lam: float | Tensor = 0.9,
    bootstrap: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation with a turn as the step (Turn-PPO, arXiv 2512.17008).

    Turns are given, not found by looking for rewards, so turns that earn nothing keep their place.

    Args:
        rewards: [B, K], what each turn earned.
        values: [B, K], the value before each turn.
        mask: bool or 0/1 [B, K], true for turns that exist.
        gamma: Discount per turn.
        lam: One number or [B].
        bootstrap: [B], see `gae`.

    Returns:
        Advantages and returns, each [B, K]; `spread_turns` carries them to the tokens.
    """
    return gae(rewards, values, mask, gamma=gamma, lam=lam, bootstrap=bootstrap)


def spread_turns(turn_values: Tensor, turn_ids: Tensor, mask: Tensor) -> Tensor:
    """Give every token the number of its turn.

    Args:
        turn_values: [B, K].
        turn_ids: int[B, T], index of each token's turn in [0, K); anything outside the mask.
        mask: bool or 0/1 [B, T].

    Returns:
        [B, T], 0 outside the mask.
    """
    return masked(turn_values.gather(1, masked(turn_ids.long(), mask)), mask)


@torch.no_grad()
def discounted_returns(rewards: Tensor, mask: Tensor, *, gamma: float | Tensor) -> Tensor:
    """Return Σ_k gamma^(k-t)·r_k over the positions inside the mask, which alone count as time.

    Args:
        rewards: [B, T]; entries outside the mask are ignored.
        mask: bool or 0/1 [B, T].
        gamma: One discount, or [B, T]: the discount from each position to the next.

    Returns:
        [B, T], at least float32, 0 outside the mask, no gradient.
    """
    _check_discount("gamma", gamma)
    inside = mask.bool()
    rewards = masked(as_float(rewards), inside)
    discounts = torch.as_tensor(gamma, dtype=rewards.dtype, device=rewards.device).expand_as(rewards)
    returns = torch.zeros_like(rewards)
    following = rewards.new_zeros(rewards.shape[0])
    for t in reversed(range(rewards.shape[1])):
        following = torch.where(inside[:, t], rewards[:, t] + discounts[:, t] * following, following)
        returns[:, t] = following
    return masked(returns, inside)


@torch.no_grad()
def cross_episode_returns(
    step_rewards: Tensor, mask: Tensor, *, step_gamma: float = 0.95, episode_gamma: float = 0.6
) -> Tensor:
    """Return step returns that run on into later attempts at the same task (LaMer, arXiv 2512.16848).

    The last step of an attempt also earns `episode_gamma` times the return of the next attempt's first step. A
    reflection written between two attempts earns the return of the later one, `returns[:, e + 1, 0]`.

    Args:
        step_rewards: [B, E, K]: lineage, attempt, step.
        mask: bool or 0/1 [B, E, K].
        step_gamma: Discount between steps of one attempt.
        episode_gamma: Discount between attempts.

    Returns:
        [B, E, K], at least float32, 0 outside the mask, no gradient.
    """
    _check_discount("step_gamma", step_gamma)
    _check_discount("episode_gamma", episode_gamma)
    discounts = choose(_last_of_row(mask), episode_gamma, step_gamma, as_float(step_rewards).dtype)
    returns = discounted_returns(step_rewards.flatten(1), mask.flatten(1), gamma=discounts.flatten(1))
    return returns.view_as(step_rewards)


def _last_of_row(mask: Tensor) -> Tensor:
    """bool, true at the last position inside the mask of each row (last dimension)."""
    inside = mask.bool()
    return inside & (inside.long().flip(-1).cumsum(-1).flip(-1) == 1)


def rewards_at_last_token(rewards: Tensor, mask: Tensor) -> Tensor:
    """Put one reward per row on the row's last trained token.

    Args:
        rewards: [B].
        mask: bool or 0/1 [B, T]. The reward of a row without trained tokens is lost, having nothing to credit.

    Returns:
        [B, T], at least float32.
    """
    return masked(as_float(rewards).unsqueeze(-1).expand(mask.shape), _last_of_row(mask))


def vapo_lambda(lengths: Tensor, *, alpha: float = 0.05) -> Tensor:
    """Return the length-adaptive lam of VAPO's policy advantages: 1 - 1/(alpha·l), in [0, 1] (arXiv 2504.05118).

    The formula is negative below 1/alpha tokens; it is cut at 0 there. VAPO's critic uses lam = 1.

    Args:
        lengths: [N], trained tokens per sequence.
        alpha: Must be positive.

    Returns:
        [N], at least float32.
    """
    if alpha <= 0:
        raise ValueError(f"alpha must be positive; got {alpha}")
    return (1.0 - 1.0 / (alpha * as_float(lengths).clamp(min=1))).clamp(0.0, 1.0)
