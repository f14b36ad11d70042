"""Decision processes so small that every episode, and every group of episodes, can be written down.

The policy is a table of logits, one row per last token, so the algorithms run as they are: batches, packing, credit,
weights and losses are the real ones, and only the language model is exchanged.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from rl_support import rollout_of, trajectory, turn
from torch import Tensor, nn

from lit_agentrl.algorithms import PolicyGradient
from lit_agentrl.algorithms.credit import (
    AdvantageEstimator,
    DiscountedReturn,
    GroupInGroup,
    GroupRelative,
    LeaveOneOut,
)
from lit_agentrl.algorithms.credit_values import GeneralizedAdvantage
from lit_agentrl.algorithms.policy_loss import PolicyLoss
from lit_agentrl.policies.base import Policy, TokenScores
from lit_agentrl.rollouts.batch import RolloutBatch
from lit_agentrl.rollouts.segments import batch_from_groups
from lit_agentrl.types import Trajectory

ROOT, X, Y, Z = 1, 2, 3, 4
"""What the environment says."""
A, B, C, D = 5, 6, 7, 8
"""What the policy says."""
_VOCABULARY = 9


@dataclass(frozen=True)
class Path:
    """One possible episode."""

    chance: float
    """Probability of what the environment says, given what the policy does."""
    steps: tuple[tuple[int, tuple[int, ...], float], ...]
    """Observation, reply and reward of each turn."""

    @property
    def reward(self) -> float:
        return sum(reward for _, _, reward in self.steps)

    def choices(self) -> list[tuple[tuple[int, ...], int, float]]:
        """Everything said before a token, the token, and what is earned from its turn on; for each sampled token."""
        said: tuple[int, ...] = ()
        found = []
        for number, (observation, reply, _) in enumerate(self.steps):
            to_go = sum(reward for _, _, reward in self.steps[number:])
            said += (observation,)
            for token in reply:
                found.append((said, token, to_go))
                said += (token,)
        return found


# Four arms, one token each.
BANDIT = tuple(Path(1.0, ((ROOT, (arm,), reward),)) for arm, reward in ((A, 0.0), (B, 0.25), (C, 0.5), (D, 1.0)))

# Depths 1, 2 and 3; a step reward at the root and a cost at Y; after A the environment says X or Y, and what is good
# differs between the two; at X the policy may say C first and then answer, so that turns differ in length.
TREE = (
    Path(1.0, ((ROOT, (B,), 0.5),)),
    Path(0.625, ((ROOT, (A,), 0.25), (X, (A,), 1.0))),
    Path(0.625, ((ROOT, (A,), 0.25), (X, (B,), 0.0))),
    Path(0.625, ((ROOT, (A,), 0.25), (X, (C, A), 0.75))),
    Path(0.625, ((ROOT, (A,), 0.25), (X, (C, B), 0.0))),
    Path(0.375, ((ROOT, (A,), 0.25), (Y, (B,), 0.25))),
    Path(0.375, ((ROOT, (A,), 0.25), (Y, (A,), -0.25), (Z, (A,), 0.0))),
    Path(0.375, ((ROOT, (A,), 0.25), (Y, (A,), -0.25), (Z, (B,), 1.0))),
)


class TabularPolicy(Policy):
    """Softmax over the tokens that may follow the last one; float64.

    Args:
        paths: All episodes; they say what may follow what.
        seed: Of the logits.
        spread: Their standard deviation; 0 is the uniform policy.
    """

    def __init__(self, paths: Sequence[Path], *, seed: int = 0, spread: float = 1.0) -> None:
        super().__init__()
        self.chat = SimpleNamespace(pad_id=0)  # type: ignore[assignment]
        self.paths = tuple(paths)
        pairs = sorted({(said[-1], token) for path in paths for said, token, _ in path.choices()})
        self.register_buffer("choices", torch.zeros(_VOCABULARY, _VOCABULARY, dtype=torch.bool))
        for last, token in pairs:
            self.choices[last, token] = True
        generator = torch.Generator().manual_seed(seed)
        table = spread * torch.randn(_VOCABULARY, _VOCABULARY, generator=generator, dtype=torch.float64)
        self.table = nn.Parameter(table)

    def _load(self, seed: int) -> Any:
        raise NotImplementedError

    def build(self, *, seed: int = 0) -> None:
        pass

    def frozen_copy(self) -> TabularPolicy:
        return copy.deepcopy(self).requires_grad_(False)

    def log_table(self) -> Tensor:
        """Log-probs of every token after every token, [V, V]."""
        # A softmax over nothing would be NaN; rows without a choice are never asked for.
        forbidden = ~self.choices & self.choices.any(-1, keepdim=True)
        return self.table.masked_fill(forbidden, -torch.inf).log_softmax(-1)

    def token_scores(
        self, input_ids, attention_mask, position_ids, rows, columns, *, sources=None, entropy_grad=False, **_
    ):
        sources = columns - 1 if sources is None else sources
        logprobs = self.log_table()[input_ids[rows, sources]]
        entropies = -torch.where(logprobs == -torch.inf, 0.0, logprobs.exp() * logprobs).sum(-1)
        chosen = logprobs.gather(-1, input_ids[rows, columns][:, None]).squeeze(-1)
        return TokenScores(chosen, entropies if entropy_grad else entropies.detach(), states=chosen[:, None])

    def path_logprobs(self) -> Tensor:
        """Log-probability of every path, what the environment does included, [P]."""
        table = self.log_table()
        return torch.stack(
            [
                math.log(path.chance) + sum(table[said[-1], token] for said, token, _ in path.choices())
                for path in self.paths
            ]
        )

    def values(self) -> dict[tuple[int, ...], float]:
        """What is earned on average from each history on."""
        chances = self.path_logprobs().detach().exp().tolist()
        mass: dict[tuple[int, ...], float] = {}
        earned: dict[tuple[int, ...], float] = {}
        for chance, path in zip(chances, self.paths, strict=True):
            for said, _, to_go in path.choices():
                mass[said] = mass.get(said, 0.0) + chance
                earned[said] = earned.get(said, 0.0) + chance * to_go
        return {said: earned[said] / mass[said] for said in mass}


def gradient_of(value: Tensor, policy: TabularPolicy) -> Tensor:
    """Gradient with respect to the logits that can be chosen, flat."""
    (gradient,) = torch.autograd.grad(value, policy.table, retain_graph=True)
    return gradient[policy.choices]


def true_gradient(policy: TabularPolicy) -> Tensor:
    """Gradient of the expected reward, every path summed."""
    rewards = torch.tensor([path.reward for path in policy.paths], dtype=torch.float64)
    return gradient_of((policy.path_logprobs().exp() * rewards).sum(), policy)


def episode(path: Path, *, group: int, sample: int, sampler: TabularPolicy) -> Trajectory:
    """The path as a trajectory, with the log-probs of the policy that drew it."""
    table = sampler.log_table().detach()
    turns = []
    for number, (observation, reply, reward) in enumerate(path.steps):
        before = (observation, *reply[:-1])
        logprobs = [float(table[last, token]) for last, token in zip(before, reply, strict=True)]
        turns.append(turn([observation], reply, parent=number - 1 if number else None, logprobs=logprobs))
        turns[-1].reward, turns[-1].state_key = reward, str(observation)
    return trajectory(group, sample, *turns, reward=path.reward)


def groups_with_chances(policy: TabularPolicy, size: int) -> Iterator[tuple[float, tuple[int, ...]]]:
    """Every group of this size, up to the order of its members, with its probability."""
    chances = policy.path_logprobs().detach().exp().tolist()
    for members in itertools.combinations_with_replacement(range(len(chances)), size):
        yield _orders(members) * math.prod(chances[path] for path in members), members


def _orders(members: Sequence[int]) -> int:
    """In how many orders the members can be drawn."""
    orders = math.factorial(len(members))
    for member in set(members):
        orders //= math.factorial(members.count(member))
    return orders


def expected_gradient(
    algorithm: PolicyGradient,
    *,
    group_size: int,
    num_groups: int = 1,
    sampler: TabularPolicy | None = None,
    at_once: bool | None = None,
) -> Tensor:
    """What the algorithm adds to the logits on average: minus its loss's gradient, every rollout summed.

    Args:
        algorithm: Its policy is a `TabularPolicy`.
        group_size: Episodes per group.
        num_groups: Groups per rollout, all of the same task.
        sampler: Draws the episodes; default: the algorithm's policy.
        at_once: Whether all rollouts of one group are the groups of one large rollout, which is the same and quicker
            where nothing is computed over several groups; default: where that is so.
    """
    policy = algorithm.policy
    assert isinstance(policy, TabularPolicy)
    sampler = sampler or policy
    groups = list(groups_with_chances(sampler, group_size))

    def rollout_and_step(chosen: Sequence[tuple[float, tuple[int, ...]]]) -> RolloutBatch:
        rollout = rollout_of(
            *(
                [episode(policy.paths[p], group=g, sample=s, sampler=sampler) for s, p in enumerate(members)]
                for g, (_, members) in enumerate(chosen)
            )
        )
        (step,) = algorithm.batches(rollout, batch_from_groups(rollout.groups))
        return step

    if at_once if at_once is not None else num_groups == 1 and _each_group_for_itself(algorithm):
        step = rollout_and_step(groups)
        chances = torch.tensor([chance for chance, _ in groups], dtype=torch.float64)
        # The step averages over groups.
        step.weight = step.weight * len(groups) * chances[step.trajectory[step.segment].clamp_min(0) // group_size]
        return gradient_of(-algorithm.loss(step)[0], policy)
    total = torch.zeros((), dtype=torch.float64)
    for numbers in itertools.combinations_with_replacement(range(len(groups)), num_groups):
        chosen = [groups[number] for number in numbers]
        step = rollout_and_step(chosen)
        if bool(step.weight.any()):
            chance = _orders(numbers) * math.prod(chance for chance, _ in chosen)
            total = total - chance * algorithm.loss(step)[0]
    return gradient_of(total + 0.0 * policy.table.sum(), policy)


def _each_group_for_itself(algorithm: PolicyGradient) -> bool:
    advantage = algorithm.advantage
    alone = (
        isinstance(advantage, LeaveOneOut | GroupInGroup)
        or (isinstance(advantage, GroupRelative) and advantage.scale != "batch")
        or (isinstance(advantage, DiscountedReturn) and advantage.baseline == "none")
        or (isinstance(advantage, GeneralizedAdvantage) and not advantage.whiten)
    )
    return alone and algorithm.aggregation != "token-mean"


def algorithm_for(
    policy: TabularPolicy, advantage: AdvantageEstimator, *, kind: type[PolicyGradient] = PolicyGradient, **options: Any
) -> PolicyGradient:
    """Plain policy gradient, episodes averaged: with the true return its expectation is the true gradient."""
    defaults: dict[str, Any] = {
        "policy_loss": PolicyLoss(function="reinforce_loss"),
        "aggregation": "seq-mean-token-sum",
        "seed": 0,
    }
    return kind(policy, advantage=advantage, **(defaults | options))


def angle_and_length(gradient: Tensor, truth: Tensor) -> tuple[float, float]:
    """Angle between the two in degrees, and the length of the first over that of the second."""
    cosine = float(gradient @ truth / (gradient.norm() * truth.norm()))
    return math.degrees(math.acos(min(1.0, cosine))), float(gradient.norm() / truth.norm())
