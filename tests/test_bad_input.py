"""What a user can get wrong: one readable line that names the key and what is accepted, status 2, before any work."""

import pytest

CASES = {
    # what is given -> what the message must hold
    "unknown key": (["--nonsense", "1"], ["nonsense", "no such key"]),
    "abbreviated key": (["--trainer.max_epoch", "3"], ["trainer.max_epoch", "no such key"]),
    "wrong type": (["--trainer.max_epochs", "x"], ["trainer.max_epochs", "expected int or null", "x"]),
    "wrong type in a part": (["--model.init_args.clip_low", "abc"], ["model.init_args.clip_low", "expected float"]),
    "wrong choice": (
        ["--model.init_args.optimizer.schedule", "step"],
        ["model.init_args.optimizer.schedule", "'constant', 'linear', 'cosine'"],
    ),
    "wrong logger": (["--loggers", "[foo]"], ["loggers", "'csv', 'tensorboard', 'wandb'"]),
    "missing file": (["--config", "nofile.yaml"], ["config", "nofile.yaml"]),
    "unknown argument of the environment": (
        ["--env", '{"class_path": "lit_agentrl.envs.arithmetic.TinyArithmetic", "init_args": {"digitz": 3}}'],
        ["env.init_args.digitz", "digits"],
    ),
    "unknown argument of the agent": (["--agent.init_args.max_turn", "2"], ["agent.init_args.max_turn", "max_turns"]),
    "unknown argument of the algorithm": (["--model.init_args.foo", "2"], ["model.init_args.foo", "clip_low"]),
    "unknown environment": (
        ["--env.class_path", "lit_agentrl.envs.arithmetic.TinyArithmetc"],
        ["env.class_path", "lit_agentrl.envs.arithmetic.TinyArithmetic"],
    ),
    "unknown agent": (["--agent.class_path", "Foo"], ["agent.class_path", "lit_agentrl.agents.tool_agent.ToolAgent"]),
    "unknown algorithm": (
        ["--model.class_path", "lit_agentrl.algorithms.grpo.GRPOO"],
        ["model.class_path", "lit_agentrl.algorithms.grpo.GRPO"],
    ),
    "unknown policy": (
        ["--policy.class_path", "lit_agentrl.policies.tiny.Tiny"],
        ["policy.class_path", "lit_agentrl.policies.tiny.TinyPolicy"],
    ),
    "no environment": (["--env", "null"], ["env", "needs one"]),
    "unknown model": (
        ["--policy", '{"class_path": "lit_agentrl.policies.hf.HFPolicy", "init_args": {"model": "nobody/nothing"}}'],
        ["policy.init_args.model", "nobody/nothing", "local transformers folder"],
    ),
    "unknown tool": (["--agent.init_args.tools", "[foo.bar]"], ["agent.init_args.tools", "calculator.calculator"]),
    "value that the environment refuses": (
        ["--env", '{"class_path": "lit_agentrl.envs.arithmetic.TinyArithmetic", "init_args": {"digits": 12}}'],
        ["env.init_args.digits", "1 to 9"],
    ),
    "group of one": (["--data.init_args.group_size", "1"], ["data.init_args.group_size", "at least 2"]),
    "more workers than episodes": (["--data.init_args.num_workers", "25"], ["data.init_args.num_workers is 25", "24"]),
    "no completion tokens": (["--data.init_args.max_new_tokens", "0"], ["data.init_args.max_new_tokens", "at least 1"]),
    "completions longer than the context": (
        ["--data.init_args.max_new_tokens", "64"],
        ["data.init_args.max_new_tokens is 64", "64 tokens"],
    ),
    "context longer than the model's": (
        ["--data.init_args.max_context", "65"],
        ["data.init_args.max_context is 65", "at most 64"],
    ),
    "negative learning rate": (["--model.init_args.optimizer.lr", "-1"], ["optimizer.lr", "above 0"]),
    "negative warm start": (["--warm_start.num_steps", "-1"], ["warm_start.num_steps", "0 (none) or more"]),
    "wrong mode of the best checkpoint": (["--checkpoint.mode", "most"], ["checkpoint.mode", "max or min"]),
    "missing checkpoint": (["--ckpt_path", "nofile.ckpt"], ["ckpt_path", "nofile.ckpt"]),
    "folder that cannot be written": (["--run_dir", "/proc/run"], ["run_dir", "/proc/run", "choose another folder"]),
}


def error_line(outcome):
    """The message, which is one line and no traceback."""
    assert "Traceback" not in outcome.output, outcome.output
    (line,) = [line for line in outcome.output.splitlines() if line.startswith("error: ")]
    assert outcome.output.rstrip().endswith(line)
    return line


@pytest.mark.parametrize("name", CASES)
def test_one_line_that_names_the_key(lit_agentrl, game_config, tmp_path, name):
    given, expected = CASES[name]
    run = tmp_path / "run"
    outcome = lit_agentrl("fit", "--config", game_config, "--run_dir", run, *given)
    assert outcome.code == 2, outcome.output
    line = error_line(outcome)
    assert line.startswith(f"error: {expected[0]}"[:11]) or expected[0] in line
    assert all(text in line for text in expected), line
    # Nothing was evaluated, warmed up or sampled before it was found.
    assert not run.exists() or not any(run.iterdir())


def test_without_a_configuration(lit_agentrl):
    outcome = lit_agentrl("fit")
    assert outcome.code == 2
    line = error_line(outcome)
    assert all(text in line for text in ("data, model:", "--config FILE", "init DIR"))


def test_wrong_key_in_a_file(lit_agentrl, game_config, tmp_path):
    (tmp_path / "wrong.yaml").write_text("polizy: 3\n")
    outcome = lit_agentrl("fit", "--config", game_config, "--config", tmp_path / "wrong.yaml", cwd=tmp_path)
    assert outcome.code == 2
    assert "polizy" in error_line(outcome)


def test_unknown_command(lit_agentrl):
    outcome = lit_agentrl("train")
    assert outcome.code == 2
    assert "accepted are fit, validate, test, predict" in error_line(outcome)


def test_a_run_is_not_overwritten(lit_agentrl, game_config, tmp_path):
    (tmp_path / "config.yaml").write_text("# of an earlier run\n")
    outcome = lit_agentrl("fit", "--config", game_config, "--run_dir", tmp_path)
    assert outcome.code == 2
    assert "--resume true" in error_line(outcome)
    assert (tmp_path / "config.yaml").read_text() == "# of an earlier run\n"


def test_what_is_no_checkpoint(lit_agentrl, game_config, tmp_path):
    (tmp_path / "broken.ckpt").write_bytes(b"not a checkpoint")
    outcome = lit_agentrl(
        "fit", "--config", game_config, "--run_dir", tmp_path / "run", "--ckpt_path", tmp_path / "broken.ckpt"
    )
    assert outcome.code == 2
    assert "broken.ckpt is no checkpoint of a training run" in error_line(outcome)


@pytest.mark.parametrize("command", [["export", "RUN", "--out", "DIR"], ["view", "RUN"]])
def test_what_is_no_run(lit_agentrl, tmp_path, command):
    outcome = lit_agentrl(*[{"RUN": tmp_path, "DIR": tmp_path / "out"}.get(word, word) for word in command])
    assert outcome.code == 2
    assert "is no run folder" in outcome.output or "a run folder?" in outcome.output
    assert "Traceback" not in outcome.output
