"""Preference algorithms: they learn what is preferred, pair the right episodes, and log what happened."""

import math

import pytest
import torch
from preference_support import EVERY, answer, batch_for, pair, ragged_pairs, sums, write_lines
from rl_support import EndingPolicy, build, equal, parity_data, rollout_of, trainer, trajectory, turn, weights

from datamodules import PreferenceDataModule
from lit_agentrl import functional as F
from lit_agentrl.algorithms import DMPO, DPO, ETO, KTO, OnlineDPO, OptimizerConfig, SimPO, StepDPO
from lit_agentrl.algorithms.preference import REF_LOGPROBS
from lit_agentrl.rollouts.batch import TokenReason
from lit_agentrl.rollouts.comparisons import SIDE, Answer, Comparison, Side, with_mismatched
from lit_agentrl.rollouts.segments import batch_from_groups
from lit_agentrl.types import Message

LR = OptimizerConfig(lr=3e-3)
OFFLINE = [name for name in EVERY if name not in ("online_dpo", "step_dpo")]


def said(role, text):
    return {"role": role, "content": text}


def probability(module, prompt, reply):
    """Log-prob of a whole reply to a prompt."""
    chat = module.policy.chat
    ids = (*chat.encode(reply), chat.end_of_turn_id)
    single = Comparison(chosen=answer((chat.prompt([Message.of("user", prompt)]).ids, ids)))
    batch = batch_for(module, [single])
    found = module.logprobs_of(batch, batch.weight != 0, otherwise=torch.zeros(batch.num_tokens))
    return float(found.sum())


def fit(module, tmp_path, records, *, epochs=4, **options):
    file = write_lines(tmp_path / "pairs.jsonl", records)
    data = PreferenceDataModule([file], **({"batch_size": 8, "held_out": 0.0, "seed": 0} | options))
    run = trainer(max_epochs=epochs)
    run.fit(module, datamodule=data)
    return run


@pytest.mark.parametrize("name", OFFLINE)
def test_the_preferred_reply_gains_on_the_other_one(tmp_path, name):
    """Two replies, of which one is always preferred: also after a prompt that was never shown."""
    module = EVERY[name](EndingPolicy(), optimizer=LR, seed=0)
    module.configure_model()
    before = [probability(module, "9?", reply) for reply in ("yes", "no")]
    run = fit(module, tmp_path, [{"prompt": f"{n}?", "chosen": "yes", "rejected": "no"} for n in range(8)])
    after = [probability(module, "9?", reply) for reply in ("yes", "no")]
    assert (after[0] - after[1]) - (before[0] - before[1]) > 0.5
    metrics = run.callback_metrics
    assert float(metrics["train/reward_accuracy"]) == 1.0
    assert float(metrics["train/reward_margin"]) > 0
    assert all(math.isfinite(float(value)) for value in metrics.values())


def test_dpo_raises_the_probability_of_what_is_preferred(tmp_path):
    module = DPO(EndingPolicy(), optimizer=OptimizerConfig(lr=1e-3), seed=0)
    module.configure_model()
    before = probability(module, "9?", "yes")
    fit(module, tmp_path, [{"prompt": f"{n}?", "chosen": "yes", "rejected": "no"} for n in range(8)], epochs=8)
    assert probability(module, "9?", "yes") > before + 0.5


def test_step_dpo_learns_from_siblings(tmp_path):
    candidates = [{"reply": "go", "q": 0.9}, {"reply": "stop", "q": 0.1}, {"reply": "wait", "q": 0.8}]
    nodes = [{"messages": [said("user", f"{n}?")], "candidates": candidates} for n in range(8)]
    module = StepDPO(EndingPolicy(), optimizer=LR, min_q_gap=0.5, seed=0)
    module.configure_model()
    before = {word: probability(module, "9?", word) for word in ("go", "stop", "wait")}
    run = fit(module, tmp_path, nodes)
    gain = {word: probability(module, "9?", word) - before[word] for word in before}
    assert gain["go"] > gain["stop"] + 0.5
    assert gain["wait"] > gain["stop"] + 0.5
    assert run.callback_metrics["train/comparisons"] == 8.0


def test_figures_are_means_over_pairs_however_the_batch_is_cut():
    figures = []
    for budget in (1, 100_000):
        module = DPO(build(EndingPolicy()), micro_batch_tokens=budget, seed=0)
        batch = batch_for(module, ragged_pairs(6))
        module.prepare(batch)
        batch.columns[REF_LOGPROBS] -= 0.1 * (batch.columns[SIDE] == Side.CHOSEN)
        totals: dict = {}
        for piece in module.pieces(batch, batch.weight != 0):
            for name, value in module._sums(piece, *module.loss(piece)).items():
                totals[name] = totals.get(name, 0) + value
        means = module._means_over_ranks(totals)
        figures.append({name: float(value.detach()) for name, value in means.items()})
    assert figures[0] == pytest.approx(figures[1], rel=1e-4)
    chosen = [sum(len(t.reply) for t in p.chosen.turns) for p in ragged_pairs(6)]
    assert figures[0]["chosen_reward"] == pytest.approx(0.1 * 0.1 * sum(chosen) / 6, rel=1e-4)
    assert figures[0]["reward_accuracy"] == 1.0


def test_figures_of_kto_are_means_over_each_kind_of_answers(tmp_path):
    records = [{"prompt": f"{n}?", "completion": "yes", "label": True} for n in range(6)]
    records += [{"prompt": f"{n}!", "completion": "no", "label": False} for n in range(2)]
    module = KTO(EndingPolicy(), optimizer=LR, seed=0)
    module.configure_model()
    yes = sum(probability(module, f"{n}?", "yes") for n in range(6)) / 6
    no = sum(probability(module, f"{n}!", "no") for n in range(2)) / 2
    run = fit(module, tmp_path, records, epochs=1)
    metrics = {name: float(value) for name, value in run.callback_metrics.items()}
    assert metrics["train/chosen_logprob"] == pytest.approx(yes, rel=1e-4)
    assert metrics["train/rejected_logprob"] == pytest.approx(no, rel=1e-4)
    assert metrics["train/desirable"] == 0.75
    assert metrics["train/kl_baseline"] == 0.0


def test_mismatched_answers_are_those_of_the_next_other_prompt():
    a, b = pair([1, 2], [3], [4]).singles()
    (c,) = [Comparison(chosen=answer(([5], [6, 7])))]
    matched = with_mismatched([a, b, c], max_context=10)
    prompts = [comparison.mismatched.prompt for comparison in matched]
    replies = [comparison.mismatched.turns[0].reply for comparison in matched]
    assert prompts == [(1, 2), (1, 2), (5,)]
    assert replies == [(6, 7), (6, 7), (3,)]
    # Prompt and foreign answer are 4 tokens: they do not fit in 3.
    assert [c.mismatched is None for c in with_mismatched([a, c], max_context=3)] == [True, False]
    assert with_mismatched([a, b], max_context=10)[0].mismatched is None


# Pairs of episodes ---------------------------------------------------------------------------------------------------


def group(number, *rewards, **fields):
    return [
        trajectory(number, s, turn([1, 2], [3 + s, 9]), reward=float(r), success=r > 0, **fields)
        for s, r in enumerate(rewards)
    ]


def steps_of(module, *groups, demonstrations=None):
    rollout = rollout_of(*groups)
    rollout.demonstrations = demonstrations or {}
    batch = batch_from_groups(rollout.groups, temperature=0.7)
    return batch, module.batches(rollout, batch)


def replies(batch):
    """First trained id of chosen and rejected, by comparison."""
    trained = batch.reason == TokenReason.TRAINED
    owner = batch.trajectory[batch.segment]
    return [
        tuple(
            int(batch.token_ids[(owner == n) & trained & (batch.columns[SIDE] == side)][0])
            for side in (Side.CHOSEN, Side.REJECTED)
        )
        for n in sorted(set(owner.tolist()))
    ]


def test_online_dpo_compares_the_best_with_the_worst():
    broken = trajectory(0, 4, turn([1, 2], [8]), reward=9.0, status="failed")
    batch, (step,) = steps_of(
        OnlineDPO(EndingPolicy(), seed=0), [*group(0, 0.5, 1.0, 0.0, 0.5), broken], group(1, 1, 1)
    )
    assert replies(step) == [(4, 5)]
    assert step.temperature == 0.7
    owner = batch.trajectory[batch.segment]
    reasons = [int(batch.reason[owner == n][-1]) for n in range(7)]
    trained, dropped, failed = TokenReason.TRAINED, TokenReason.FILTERED, TokenReason.FAILED
    assert reasons == [dropped, trained, trained, dropped, failed, dropped, dropped]
    # What trajectory files show: each token of the pair with the weight of the pair.
    assert [float(batch.weight[owner == n].max()) for n in range(3)] == [0.0, 1.0, 1.0]


def test_eto_pairs_successes_with_failures():
    _, (step,) = steps_of(ETO(EndingPolicy(), seed=0), group(0, 1, 0, 0, 1, 0), group(1, 0, 0), group(2, 1, 1))
    assert replies(step) == [(3, 4), (6, 5)]
    assert set(step.weight[step.weight != 0].tolist()) == {0.5}


def test_eto_pairs_failures_that_are_left_with_the_demonstration():
    shown = {0: Answer.from_rows([((1, 2, 50, 51), (0, 0, 1, 1))])}
    module = ETO(EndingPolicy(), demonstrations=True, seed=0)
    _, (step,) = steps_of(module, group(0, 1, 0, 0), group(1, 0, 0), demonstrations=shown)
    # The second group has no demonstration that fits.
    assert replies(step) == [(3, 4), (50, 5)]


def test_pairs_are_cut_into_minibatches_by_group():
    module = OnlineDPO(EndingPolicy(), num_minibatches=2, num_inner_epochs=2, seed=0)
    module.logprobs_of = lambda batch, wanted, **options: torch.zeros(batch.num_tokens)
    _, steps = steps_of(module, *(group(g, 1, 0) for g in range(3)))
    counts = [len(set(step.trajectory.tolist())) for step in steps]
    assert counts == [2, 1, 2, 1]
    assert [float(step.weight.max()) for step in steps] == [0.5, 1.0, 0.5, 1.0]


@pytest.mark.parametrize("name", ["online_dpo", "eto", "dmpo"])
def test_rollouts_train(name):
    module = EVERY[name](EndingPolicy(), optimizer=OptimizerConfig(lr=1e-3), num_minibatches=2, seed=0)
    module.configure_model()
    before = weights(module)
    run = trainer(max_epochs=2)
    run.fit(module, datamodule=parity_data())
    assert run.global_step > 0
    assert not equal(before, weights(module))
    metrics = run.callback_metrics
    assert float(metrics["train/comparisons"]) > 0
    tokens = sum(float(value) for name, value in metrics.items() if name.startswith("tokens/"))
    assert tokens > 0


def test_demonstrations_of_the_environment_are_learnt_from():
    module = ETO(EndingPolicy(), optimizer=LR, demonstrations=True, seed=0)
    seen = []
    original = module.batches
    module.batches = lambda rollout, batch: seen.append((rollout, original(rollout, batch))) or seen[-1][1]
    trainer(max_epochs=1).fit(module, datamodule=parity_data())
    ((rollout, (step,)),) = seen
    failures = sum(not t.success for t in rollout.trajectories)
    assert set(rollout.demonstrations) == {g.group for g in rollout.groups}
    assert len(set(step.trajectory.tolist())) == failures


def test_groups_of_one_have_nothing_to_compare():
    for module in (OnlineDPO(EndingPolicy(), seed=0), ETO(EndingPolicy(), seed=0)):
        with pytest.raises(ValueError, match=r"data\.init_args\.group_size is 1: .* needs at least 2"):
            trainer(max_epochs=1).fit(module, datamodule=parity_data(group_size=1))


def test_dmpo_is_the_golden_loss_over_turns():
    """The module's loss on a batch equals the function on sums by turn, and gamma decides."""
    pairs = ragged_pairs(5)
    losses = []
    for gamma in (0.3, 1.0):
        module = DMPO(build(EndingPolicy()), gamma=gamma, seed=0)
        batch = batch_for(module, pairs)
        module.prepare(batch)
        batch.columns[REF_LOGPROBS] -= 0.05 * torch.arange(batch.num_tokens)
        loss, _ = module.loss(batch)
        own = module.logprobs_of(batch, batch.weight != 0, otherwise=torch.zeros(batch.num_tokens))
        by_side = {side: torch.zeros(2, 5, 3) for side in (Side.CHOSEN, Side.REJECTED)}
        for n in (batch.weight != 0).nonzero().squeeze(-1).tolist():
            segment = int(batch.segment[n])
            place = (int(batch.trajectory[segment]), int(batch.turn[segment]))
            cell = by_side[Side(int(batch.columns[SIDE][n]))]
            cell[(0, *place)] += own[n]
            cell[(1, *place)] += batch.columns[REF_LOGPROBS][n]
        chosen, rejected = by_side[Side.CHOSEN], by_side[Side.REJECTED]
        masks = {"chosen_mask": chosen[0] != 0, "rejected_mask": rejected[0] != 0}
        expected = F.dmpo_loss(chosen[0], rejected[0], chosen[1], rejected[1], gamma=gamma, **masks).mean()
        assert float(loss.detach()) == pytest.approx(float(expected), rel=1e-4)
        losses.append(float(loss.detach()))
    assert losses[0] != pytest.approx(losses[1], rel=1e-3)


def test_observations_are_not_part_of_an_episodes_sum():
    module = ETO(build(EndingPolicy()), seed=0)
    batch = batch_for(module, [Comparison(chosen=answer(([1], [2]), ([3, 4], [5])), rejected=answer(([1], [6])))])
    assert batch.token_ids[batch.weight != 0].tolist() == [2, 5, 6]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SimPO(EndingPolicy(), margin=-1), r"model\.init_args\.margin is -1"),
        (lambda: KTO(EndingPolicy(), undesirable_weight=0), r"model\.init_args\.undesirable_weight is 0"),
        (lambda: EVERY["orpo"](EndingPolicy(), odds_weight=0), r"model\.init_args\.odds_weight is 0"),
        (lambda: DMPO(EndingPolicy(), gamma=0), r"model\.init_args\.gamma is 0: it must lie in"),
        (lambda: StepDPO(EndingPolicy(), min_q_gap=-1), r"model\.init_args\.min_q_gap is -1"),
        (lambda: OnlineDPO(EndingPolicy(), variant="x"), r"model\.init_args\.variant is 'x'"),
    ],
)
def test_bad_settings_name_their_key(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_pair_that_both_answers_share_leaves_the_policy_where_it_is(tmp_path):
    """The gradient of DPO is that of the difference: what both answers say alike cancels."""
    module = DPO(build(EndingPolicy()), seed=0)
    batch = batch_for(module, [pair([1, 2], [3, 4], [3, 4])])
    module.prepare(batch)
    module.loss(batch)[0].backward()
    assert max(float(p.grad.abs().max()) for p in module.parameters()) < 1e-7


def test_every_step_of_dpo_keeps_the_number_of_pairs(tmp_path):
    run = fit(DPO(EndingPolicy(), optimizer=LR, seed=0), tmp_path, sums(10), epochs=1)
    assert run.global_step == 2
    assert run.callback_metrics["train/comparisons"] == 2.0
