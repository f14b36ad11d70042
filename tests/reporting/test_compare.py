import argparse
import json

import pytest
import yaml

from lit_agentrl.reporting import compare
from lit_agentrl.reporting.compare import compare_runs, markdown_table
from lit_agentrl.reporting.runs import find_runs, read_metric


def make_run(folder, values, *, seed=0, config=None, metric="val/success"):
    """A run that logged `metric` every 10 steps, a training metric in between, and its configuration."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed_everything": seed, **(config or {})}))
    rows = [f"epoch,rollout/success,step,{metric}"]
    for index, value in enumerate(values):
        rows += [f"{index},0.1,{index * 10 + 5},", f"{index},,{index * 10 + 9},{value}"]
    (folder / "metrics.csv").write_text("\n".join(rows) + "\n")
    return folder


def make_ablation(out, finals, states=None):
    """An ablation folder: `finals[variant][seed]`, and the state and cause of runs that are not done."""
    entries = []
    for variant, by_seed in finals.items():
        for seed, final in by_seed.items():
            state, cause = (states or {}).get((variant, seed), ("done", ""))
            folder = f"{variant}/seed-{seed}"
            make_run(out / folder, [0.0, final], seed=seed)
            entries.append({"variant": variant, "seed": seed, "folder": folder, "state": state, "cause": cause})
    (out / "ablation.json").write_text(json.dumps({"schema": 1, "runs": entries}))
    return out


def test_the_last_logged_value_counts(tmp_path):
    assert read_metric(make_run(tmp_path / "run", [0.2, 0.6, 0.5]), "val/success") == (0.5, 29)


def test_variants_of_an_ablation_are_compared_over_paired_seeds(tmp_path):
    out = make_ablation(
        tmp_path, {"base": {0: 0.50, 1: 0.52, 2: 0.55, 3: 0.54}, "memory": {0: 0.61, 1: 0.55, 2: 0.70, 3: 0.58}}
    )
    comparison = compare_runs(find_runs([out]))
    base, memory = comparison.rows
    assert base.interval.mean == pytest.approx(0.5275)
    assert base.difference is None
    # (0.11 + 0.03 + 0.15 + 0.04) / 4; scipy.stats.ttest_rel gives p = 0.0637
    assert memory.difference.mean == pytest.approx(0.0825)
    assert memory.difference.p_value == pytest.approx(0.0637, abs=5e-5)
    assert comparison.notes == []


def test_the_table_is_markdown(tmp_path):
    out = make_ablation(tmp_path, {"base": {0: 0.1, 1: 0.3}, "a|b": {0: 0.4, 1: 0.4}})
    table = markdown_table(compare_runs(find_runs([out]))).splitlines()
    assert table[0] == "| variant | seeds | val/success | 95 % interval | against base | 95 % interval | p |"
    # mean 0.2, standard deviation 0.1414, t(0.975, 1) = 12.706: half width 12.706 * 0.1414 / sqrt(2) = 1.271
    assert table[2] == "| base | 2 | 0.200 | [-1.071, 1.471] | - | - | - |"
    assert table[3].startswith("| a\\|b | 2 | 0.400 | - | +0.200 | [-1.071, +1.471] | 0.295 |")
    assert "- a|b: no spread between seeds: no interval" in table


def test_failed_and_unfinished_runs_are_named_and_left_out(tmp_path):
    out = make_ablation(
        tmp_path,
        {"base": {0: 0.1, 1: 0.3, 2: 0.2}, "x": {0: 0.5, 1: 0.6, 2: 0.9}},
        states={("x", 1): ("failed", "exit 1: ValueError: bad"), ("base", 2): ("running", "")},
    )
    comparison = compare_runs(find_runs([out]))
    base, x = comparison.rows
    assert base.values == {0: 0.1, 1: 0.3}
    assert x.values == {0: 0.5, 2: 0.9}
    assert "x seed 1: left out, failed: exit 1: ValueError: bad" in comparison.notes
    assert "base seed 2: left out, unfinished (running)" in comparison.notes
    assert "x: not the same seeds as base, paired over seeds 0 only" in comparison.notes
    assert "| x | 2 of 3 |" in markdown_table(comparison)


def test_one_seed_gives_no_interval_and_says_so(tmp_path):
    comparison = compare_runs(find_runs([make_ablation(tmp_path, {"base": {0: 0.1}, "x": {0: 0.4}})]))
    table = markdown_table(comparison)
    assert "| x | 1 | 0.400 | - | +0.300 | - | - |" in table
    assert "- x: one seed: no interval" in table


def test_runs_are_named_by_what_their_configurations_differ_in(tmp_path):
    runs = [
        make_run(
            tmp_path / f"run-{lr}-{seed}",
            [lr + seed / 100],
            seed=seed,
            config={"model": {"init_args": {"lr": lr, "group_size": 4}}, "run_dir": f"runs/{lr}-{seed}"},
        )
        for lr in (0.1, 0.2)
        for seed in (0, 1)
    ]
    assert [(run.variant, run.seed) for run in find_runs(runs)] == [
        ("lr=0.1", 0),
        ("lr=0.1", 1),
        ("lr=0.2", 0),
        ("lr=0.2", 1),
    ]


def test_runs_can_be_grouped_by_a_key(tmp_path):
    runs = [
        make_run(tmp_path / f"{index}", [0.5], seed=index, config={"env": {"name": name}, "other": index})
        for index, name in enumerate(["sum", "maze"])
    ]
    assert [run.variant for run in find_runs(runs, by="env.name")] == ["env.name=sum", "env.name=maze"]


def test_grouping_by_an_unknown_key_is_refused(tmp_path):
    with pytest.raises(ValueError, match="--by nothing"):
        find_runs([make_run(tmp_path / "run", [0.5])], by="nothing")


def test_a_single_run_of_an_ablation_keeps_its_variant(tmp_path):
    out = make_ablation(tmp_path, {"base": {0: 0.1}, "x": {0: 0.4, 1: 0.5}})
    (run,) = find_runs([out / "x" / "seed-1"])
    assert (run.variant, run.seed) == ("x", 1)


def test_a_folder_of_runs_needs_no_record(tmp_path):
    make_run(tmp_path / "x" / "seed-0", [0.3], seed=0)
    make_run(tmp_path / "y" / "seed-0", [0.4], seed=0)
    assert [run.variant for run in find_runs([tmp_path])] == ["x", "y"]


@pytest.mark.parametrize(
    ("second", "note"),
    [
        (["nan"], "all seed 1: left out, its val/success is nan"),
        ([], "all seed 1: left out, it logged no val/success"),
        ([0.1, 0.2], "all seed 0: ended at step 9, the longest run at 19"),
    ],
)
def test_odd_runs_are_named(tmp_path, second, note):
    runs = [make_run(tmp_path / "a", [0.5], seed=0), make_run(tmp_path / "b", second, seed=1)]
    assert note in compare_runs(find_runs(runs)).notes


def test_the_same_seed_twice_counts_once_and_is_named(tmp_path):
    runs = [make_run(tmp_path / "a", [0.5]), make_run(tmp_path / "b", [0.7])]
    comparison = compare_runs(find_runs(runs))
    assert comparison.rows[0].values == {0: 0.5}
    assert any("this seed is there already" in note for note in comparison.notes)


def call(*arguments):
    parser = argparse.ArgumentParser()
    compare.add_arguments(parser)
    return compare.main(parser.parse_args([str(argument) for argument in arguments]))


def test_the_command_prints_the_table(tmp_path, capsys):
    assert call(make_ablation(tmp_path, {"base": {0: 0.25}})) == 0
    assert "| base | 1 | 0.250 |" in capsys.readouterr().out


def test_a_metric_that_no_run_logged_names_those_there_are(tmp_path, capsys):
    assert call(make_run(tmp_path / "run", [0.5]), "--metric", "val/nothing") == 2
    assert "Metrics found: rollout/success, val/success" in capsys.readouterr().err


def test_a_folder_that_is_no_run_is_named(tmp_path, capsys):
    assert call(tmp_path) == 2
    assert f"{tmp_path} is neither a run" in capsys.readouterr().err


def test_an_unknown_base_is_refused(tmp_path, capsys):
    assert call(make_run(tmp_path / "run", [0.5]), "--base", "nope") == 2
    assert "variants: all" in capsys.readouterr().err
