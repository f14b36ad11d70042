"""P12: how a batch is cut into micro-batches does not change its gradient."""

import pytest
import torch
from rl_support import EndingPolicy, build, rollout_of, trajectory, turn

from lit_agentrl.algorithms import (
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    PPO,
    REINFORCE,
    RLOO,
    SAPO,
    SFT,
    VAPO,
    DrGRPO,
    GiGPO,
    ReinforcePP,
)
from lit_agentrl.algorithms.terms import EntropyTerm, KLTerm, OffPolicyTerm
from lit_agentrl.policies.critic import CriticConfig
from lit_agentrl.rollouts.segments import batch_from_demonstrations, batch_from_groups


@pytest.fixture(scope="module")
def policy():
    return build(EndingPolicy(), dtype=torch.float64).eval()


def gradient(algorithm, batch, budget):
    algorithm.micro_batch_tokens = budget
    algorithm.zero_grad()
    pieces = algorithm.pieces(batch, batch.weight != 0)
    for piece in pieces:
        algorithm.loss(piece)[0].backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in algorithm.parameters()]
    return len(pieces), torch.cat([gradient.flatten() for gradient in gradients])


def ragged_rollout():
    """Groups with shared prompts, several turns, a constant group (no weight), a failed and an empty episode."""
    ids = iter(range(10, 5000))

    def some(count):
        return [next(ids) % 500 for _ in range(count)]

    prompt = some(7)
    mixed = [trajectory(0, s, turn(prompt, some(1 + 3 * s)), reward=float(s % 2)) for s in range(4)]
    mixed[1].turns.append(turn(some(5), some(11), parent=0))
    mixed[2].turns.append(turn(some(9), some(2)))
    constant = [trajectory(1, s, turn(some(3), some(20)), reward=1.0) for s in range(2)]
    rest = [
        trajectory(2, 0, turn(some(30), some(4)), reward=1.0),
        trajectory(2, 1, turn(some(2), some(5)), reward=0.0),
        trajectory(2, 2, turn(some(2), some(5)), status="failed"),
        trajectory(2, 3, status="failed"),
    ]
    return rollout_of(mixed, constant, rest)


def grpo_batch(algorithm):
    rollout = ragged_rollout()
    (batch,) = algorithm.batches(rollout, batch_from_groups(rollout.groups, temperature=0.8))
    return batch


@pytest.mark.parametrize("share_prefixes", [True, False])
@pytest.mark.parametrize("aggregation", ["seq-mean-token-mean", "token-mean", "seq-mean-token-sum"])
def test_of_grpo(policy, aggregation, share_prefixes):
    algorithm = GRPO(policy, aggregation=aggregation, share_prefixes=share_prefixes, seed=0)
    batch = grpo_batch(algorithm)
    count, whole = gradient(algorithm, batch, 100_000)
    assert count == 1
    assert whole.norm() > 0
    for budget in (1, 40, 80):
        pieces, cut = gradient(algorithm, batch, budget)
        assert pieces > 1
        assert float((cut - whole).norm() / whole.norm()) < 1e-6


@pytest.mark.parametrize("share_prefixes", [True, False])
def test_of_sft(policy, share_prefixes):
    algorithm = SFT(policy, share_prefixes=share_prefixes, seed=0)
    rows = [(tuple(range(5, 5 + n)), (0,) * (n // 2) + (1,) * (n - n // 2)) for n in (2, 9, 30, 4, 17)]
    rows.append(((3, 4, 5), (0, 0, 0)))
    batch = batch_from_demonstrations(rows)
    algorithm.fold_weights(batch, mode="token-mean")
    assert float(batch.weight.sum()) == pytest.approx(1.0)
    _, whole = gradient(algorithm, batch, 100_000)
    for budget in (1, 20, 60):
        pieces, cut = gradient(algorithm, batch, budget)
        assert pieces > 1
        assert float((cut - whole).norm() / whole.norm()) < 1e-6


def test_shared_prompts_computed_once_or_per_row_give_the_same_gradient(policy):
    algorithm = GRPO(policy, seed=0)
    batch = grpo_batch(algorithm)
    _, shared = gradient(algorithm, batch, 300)
    algorithm.share_prefixes = False
    _, separate = gradient(algorithm, batch, 300)
    assert float((shared - separate).norm() / separate.norm()) < 1e-6


@pytest.mark.parametrize("share_prefixes", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        REINFORCE,
        RLOO,
        ReinforcePP,
        lambda policy, **options: ReinforcePP(policy, group_baseline=True, **options),
        lambda policy, **options: DrGRPO(policy, max_tokens=64, **options),
        DAPO,
        GSPO,
        SAPO,
        CISPO,
        GiGPO,
        lambda policy, **options: GRPO(
            policy,
            kl=KLTerm(estimator="k3"),
            entropy=EntropyTerm(coefficient=0.1),
            correction=OffPolicyTerm(mode="mis", level="geometric", high=1.2, sequence_mask=0.5),
            **options,
        ),
        PPO,
        lambda policy, **options: PPO(
            policy, step="turn", critic=CriticConfig(trunk="shared", shared_gradient=True), **options
        ),
        lambda policy, **options: VAPO(policy, critic=CriticConfig(), **options),
    ],
    ids=[
        *("reinforce", "rloo", "rpp", "rpp-baseline", "dr-grpo", "dapo", "gspo", "sapo", "cispo", "gigpo", "all-terms"),
        *("ppo", "ppo-turn", "vapo"),
    ],
)
def test_of_every_policy_gradient(policy, make, share_prefixes):
    algorithm = make(policy, share_prefixes=share_prefixes, seed=0)
    algorithm.configure_model()
    if algorithm.gives_values:
        torch.nn.init.constant_(algorithm.critic.head.weight, 0.1)
    rollout = ragged_rollout()
    rollout.trajectories[0].success = True
    batch = batch_from_groups(rollout.groups, temperature=0.8)
    # Old log-probs a little off the present ones, so that ratios differ from 1 and some are clipped.
    index, logprobs, _ = algorithm.policy_logprobs(batch, batch.reason == 1)
    noise = torch.randn(index.numel(), generator=torch.Generator().manual_seed(0))
    batch.old_logprobs = batch.behavior_logprobs.double()
    batch.old_logprobs[index] = logprobs.detach().double() + 0.2 * noise
    batch.behavior_logprobs = batch.old_logprobs + 0.1
    if algorithm.kl is not None:
        batch.columns["ref_logprobs"] = batch.old_logprobs - 0.3
        algorithm._read_reference = lambda batch: None
    (step,) = algorithm.batches(rollout, batch)
    count, whole = gradient(algorithm, step, 100_000)
    assert count == 1
    assert whole.norm() > 0
    for budget in (1, 40, 80):
        pieces, cut = gradient(algorithm, step, budget)
        assert pieces > 1
        assert float((cut - whole).norm() / whole.norm()) < 1e-6
