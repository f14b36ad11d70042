"""A new policy loss is one function and one YAML file; a bad combination is told in one line."""

import csv

import pytest
import yaml

LOSS = '''
"""A loss of one's own."""

from pathlib import Path


def leaning_loss(logprobs, advantages, mask, *, lean: float = 0.0):
    """REINFORCE that learns less from what went badly."""
    assert logprobs.shape == advantages.shape == mask.shape and logprobs.requires_grad
    Path(__file__).with_name("called").write_text(str(lean))
    return -advantages * (1 - lean * (advantages < 0)) * logprobs * mask
'''
MODEL = """
class_path: lit_agentrl.algorithms.policy_gradient.PolicyGradient
init_args:
  advantage: {{class_path: lit_agentrl.algorithms.credit.{advantage}}}
  policy_loss: {{function: {function}, options: {options}}}
  aggregation: {aggregation}
  optimizer: {{lr: 3.0e-3}}
"""
SHORT = ("--trainer.max_epochs", 1, "--trainer.check_val_every_n_epoch", 1, "--milestones", "false")


@pytest.fixture
def fit(lit_agentrl, game_config, tmp_path):
    (tmp_path / "own_losses.py").write_text(LOSS)

    def run(function, options="{}", *, advantage="LeaveOneOut", aggregation="seq-mean-token-sum"):
        name = f"run-{len(list(tmp_path.glob('run-*')))}"
        (tmp_path / "own.yaml").write_text(
            MODEL.format(function=function, options=options, advantage=advantage, aggregation=aggregation)
        )
        outcome = lit_agentrl(
            *("fit", "--config", game_config, "--model", tmp_path / "own.yaml", "--run_dir", tmp_path / name, *SHORT),
            env={"PYTHONPATH": str(tmp_path)},
        )
        return outcome, tmp_path / name

    return run


def test_one_function_and_one_file(fit, tmp_path):
    outcome, run = fit("own_losses.leaning_loss", "{lean: 0.5}")
    assert outcome.code == 0, outcome.output
    written = yaml.safe_load((run / "config.yaml").read_text())["model"]["init_args"]["policy_loss"]
    assert written == {"function": "own_losses.leaning_loss", "options": {"lean": 0.5}}
    with (run / "metrics.csv").open(newline="") as file:
        norms = [float(row["train/grad_norm"]) for row in csv.DictReader(file) if row["train/grad_norm"]]
    assert min(norms) > 0
    assert (tmp_path / "called").read_text() == "0.5"


@pytest.mark.parametrize(
    ("function", "options", "keys"),
    [
        ("own_losses.no_such_loss", "{}", ["policy_loss.function is 'own_losses.no_such_loss'"]),
        ("own_losses.leaning_loss", "{bend: 1}", ["policy_loss.options.bend", "it takes lean"]),
    ],
)
def test_a_mistake_in_the_file_is_one_line(fit, function, options, keys):
    outcome, _ = fit(function, options)
    assert outcome.code == 2, outcome.output
    (line,) = [line for line in outcome.output.splitlines() if line.startswith("error: ")]
    assert all(key in line for key in keys), line
    assert "Traceback" not in outcome.output


def test_a_combination_without_a_meaning_is_one_line_that_names_both_keys(fit):
    outcome, run = fit("gmpo_loss", advantage="GroupInGroup", aggregation="seq-mean-token-mean")
    assert outcome.code == 2, outcome.output
    (line,) = [line for line in outcome.output.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: model.init_args.policy_loss.function: gmpo_loss")
    assert "model.init_args.advantage: GroupInGroup" in line
    assert not (run / "checkpoints").exists()
