"""P17: dynamic sampling filters on spread, not on the mean, refills to a full rollout, and stops if there is none."""

import pytest
import torch
from rl_support import EndingPolicy, equal, parity_data, rollout_of, trainer, trajectory, turn, weights

from lit_agentrl.algorithms import DAPO, OptimizerConfig
from lit_agentrl.algorithms.terms import OverlongTerm
from lit_agentrl.rollouts.batch import TokenReason
from lit_agentrl.rollouts.segments import batch_from_groups


def dapo(**options):
    return DAPO(EndingPolicy(), optimizer=OptimizerConfig(lr=1e-3), seed=0, **options)


def group(number, *rewards, lengths=None, statuses=None):
    count = len(rewards)
    return [
        trajectory(number, s, turn([1], [2] * n), reward=reward, status=status)
        for s, (reward, n, status) in enumerate(
            zip(rewards, lengths or [2] * count, statuses or ["completed"] * count, strict=True)
        )
    ]


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ((1.0, 1.0, 1.0), False),
        ((0.0, 0.0, 0.0), False),
        ((0.5, 0.5, 0.5), False),  # a mean strictly between 0 and 1, and nothing to compare
        ((-2.0, -2.0, -2.0), False),
        ((0.0, 1.0, 0.0), True),
        ((-1.0, 0.0, 1.0), True),  # mean 0
        ((1.0, 0.5, 1.5), True),  # mean 1
        ((0.1 + 0.2, 0.3, 0.3), False),  # equal up to the last digit of a sum
    ],
)
def test_spread_decides(rewards, kept):
    assert dapo().kept_groups(rollout_of(group(0, *rewards))) == ([0] if kept else [])


@pytest.mark.parametrize("rewards", [(0.0, 0.0, 1.0), (1.0, 1.0, 0.0)])
def test_episodes_that_do_not_count_make_no_spread(rewards):
    failed = rollout_of(group(0, *rewards, statuses=["completed", "completed", "failed"]))
    assert dapo().kept_groups(failed) == []
    cut = rollout_of(group(0, *rewards, statuses=["completed", "completed", "truncated"]))
    assert dapo().kept_groups(cut) == [0]
    assert dapo(mask_truncated=True).kept_groups(cut) == []


def test_a_penalty_for_length_is_spread():
    rollout = rollout_of(group(0, 1.0, 1.0, lengths=[2, 8]))
    assert dapo().kept_groups(rollout) == []
    assert dapo(overlong=OverlongTerm(max_length=10, buffer=4)).kept_groups(rollout) == [0]


def test_groups_without_spread_count_nowhere():
    """Neither in the weights of the others nor in what is trained."""
    constant, mixed = group(0, 0.5, 0.5), group(1, 0.0, 1.0)
    whole, alone = rollout_of(constant, mixed), rollout_of(mixed)
    batch, expected = (batch_from_groups(rollout.groups) for rollout in (whole, alone))
    (step,), (lone,) = (dapo().batches(r, b) for r, b in ((whole, batch), (alone, expected)))
    assert step.weight[step.weight != 0].tolist() == lone.weight[lone.weight != 0].tolist() == [0.25] * 4
    reasons = batch.reason[batch.reason != TokenReason.CONTEXT].tolist()
    assert reasons == [TokenReason.FILTERED] * 4 + [TokenReason.TRAINED] * 4


@pytest.fixture(scope="module")
def filled():
    """Pairs with a coin's chance: half of the groups have no spread, and twenty refills are always enough for four."""
    module, data = dapo(max_refills=20), parity_data(num_groups=4, group_size=2)
    seen = []
    original = module.batches
    module.batches = lambda rollout, batch: seen.append((rollout, original(rollout, batch))) or seen[-1][1]
    trainer(max_epochs=3).fit(module, datamodule=data)
    return module, data, seen


def test_a_rollout_is_refilled_until_it_is_full(filled):
    module, _, seen = filled
    assert len(seen) == 3
    assert any(len(rollout.groups) > 4 for rollout, _ in seen)
    for rollout, (step,) in seen:
        assert len(module.kept_groups(rollout)) == 4
        owners = step.trajectory[step.segment[step.weight != 0]].unique().tolist()
        assert len({rollout.trajectories[owner].group for owner in owners}) == 4


def test_refills_are_new_tasks_and_count_as_drawn(filled):
    _, data, seen = filled
    for rollout, _ in seen:
        assert len({g.group for g in rollout.groups}) == len({g.task.id for g in rollout.groups}) == len(rollout.groups)
    assert data.progress.episodes == 2 * sum(len(rollout.groups) for rollout, _ in seen)


def test_no_more_is_drawn_than_is_missing():
    """Each round asks for as many groups as there are without spread."""
    module, data = dapo(max_refills=20), parity_data(num_groups=4, group_size=2)
    asked, original = [], data._collect
    data._collect = lambda groups, index: asked.append(groups) or original(groups, index)
    kept = []
    module.kept_groups = lambda rollout: kept.append(DAPO.kept_groups(module, rollout)) or kept[-1]
    trainer(max_epochs=1).fit(module, datamodule=data)
    missing = [4 - len(found) for found in kept[: len(asked) - 1]]
    assert [len(groups) for groups in asked] == [4, *missing]


def test_where_nothing_has_spread_the_run_stops_and_says_what_to_change():
    """Nine turns are asked for and four are allowed: every episode earns 0."""
    module = dapo(max_refills=2)
    module.configure_model()
    before = weights(module)
    message = (
        r"rollout 0: all 12 groups earned the same reward .*2 refills \(model\.init_args\.max_refills\).*"
        r"data\.init_args\.group_size or data\.init_args\.temperature"
    )
    with pytest.raises(RuntimeError, match=message):
        trainer(max_epochs=3).fit(module, datamodule=parity_data(env={"turns": 9}))
    assert equal(before, weights(module))


def test_the_command_line_says_it_in_one_line(lit_agentrl, game_config, tmp_path):
    """One answer a task: a group of equal episodes has no spread, ever."""
    settings = {
        "model": "lit_agentrl.algorithms.dapo.DAPO",
        "model.init_args.max_refills": 1,
        "data.init_args.temperature": 1e-4,
        "warm_start.num_steps": 1,
        "milestones": "false",
    }
    words = [word for key, value in settings.items() for word in (f"--{key}", value)]
    outcome = lit_agentrl("fit", "--config", game_config, "--run_dir", tmp_path / "run", *words)
    assert outcome.code == 2, outcome.output
    (line,) = [line for line in outcome.output.splitlines() if line.startswith("error: ")]
    assert "earned the same reward" in line
    assert "Traceback" not in outcome.output


def test_without_refills_a_rollout_without_spread_is_skipped():
    module = dapo(max_refills=0)
    module.configure_model()
    before = weights(module)
    run = trainer(max_epochs=1)
    run.fit(module, datamodule=parity_data(env={"turns": 9}))
    assert run.callback_metrics["train/skipped_steps"] == 1.0
    assert equal(before, weights(module))
    assert bool(torch.isfinite(torch.cat([w.flatten() for w in weights(module).values()])).all())
