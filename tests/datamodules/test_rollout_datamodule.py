"""Rollouts as training batches, and held-out episodes as validation."""

import math

import pytest
from lightning.pytorch.callbacks import Callback
from rl_support import EndingPolicy, parity_data, trainer

from datamodules import RolloutDataModule
from lit_agentrl.agents.tool_agent import ToolAgent
from lit_agentrl.algorithms import GRPO, SFT
from lit_agentrl.rollouts.hooks import RolloutHooks


class Log(RolloutHooks, Callback):
    """Keeps what the hooks were told, in order."""

    def __init__(self):
        self.events = []

    def on_rollout_start(self, trainer, pl_module, phase, episodes):
        self.events.append(("start", phase, episodes))

    def on_episode_end(self, trainer, pl_module, trajectory):
        self.events.append(("episode", trajectory.id))

    def on_rollout_end(self, trainer, pl_module, rollout):
        self.events.append(("end", rollout.phase, rollout))

    def ends(self, phase):
        return [event[2] for event in self.events if event[:2] == ("end", phase)]


@pytest.fixture(scope="module")
def fitted():
    """Two rollouts, each followed by six held-out episodes that run four at a time."""
    log = Log()
    data = parity_data(num_val_episodes=6, max_concurrent_episodes=4, val_samples_per_task=2, val_temperature=1.0)
    module = GRPO(EndingPolicy(), seed=0)
    run = trainer(max_epochs=2, limit_val_batches=1.0, callbacks=[log])
    run.fit(module, datamodule=data)
    return log, data, run


def test_hooks_hear_of_every_phase_and_episode(fitted):
    log, _, _ = fitted
    kinds = [event[:2] if event[0] != "episode" else "episode" for event in log.events]
    once = [("start", "train"), *["episode"] * 16, ("end", "train"), ("start", "val"), *["episode"] * 6, ("end", "val")]
    assert kinds == once * 2


def test_a_training_rollout_holds_credit_and_figures(fitted):
    first, second = fitted[0].ends("train")
    assert (first.index, second.index) == (0, 1)
    assert first.batch is not None
    assert second.metrics["progress/episodes"] == 32.0


def test_a_validation_is_told_as_a_whole(fitted):
    for number, rollout in enumerate(fitted[0].ends("val")):
        assert rollout.index == number
        assert len(rollout.trajectories) == 6
        # Two batches of two tasks and one: the engine's work is that of both.
        assert rollout.engine.generated_tokens == sum(t.num_tokens for t in rollout.trajectories)


def test_validations_use_the_same_held_out_tasks_every_time(fitted):
    first, second = fitted[0].ends("val")
    assert [t.task for t in first.trajectories] == [t.task for t in second.trajectories]
    assert {t.task.split for t in first.trajectories} == {"val"}


def test_runs_of_other_seeds_share_the_held_out_tasks():
    def tasks(seed):
        log = Log()
        trainer(limit_val_batches=1.0, callbacks=[log]).validate(
            GRPO(EndingPolicy(), seed=seed), datamodule=parity_data(seed=seed), verbose=False
        )
        return [t.task.id for t in log.ends("val")[0].trajectories]

    assert tasks(0) == tasks(1)


def test_pass_at_k_is_reported_where_tasks_are_sampled_several_times(fitted):
    metrics = fitted[2].callback_metrics
    assert "val/pass_at_2" in metrics
    assert not math.isnan(metrics["val/avg_at_k"])


def test_the_state_of_a_checkpoint_continues_the_count(fitted):
    _, data, _ = fitted
    state = data.state_dict()
    assert state["progress"]["rollouts"] == 2
    fresh = parity_data()
    fresh.load_state_dict(state)
    assert fresh.progress == data.progress
    assert fresh.state_dict() == state


def test_test_and_predict_run_the_same_episodes_of_the_test_split():
    log = Log()
    module, data = GRPO(EndingPolicy(), seed=0), parity_data()
    run = trainer(callbacks=[log])
    run.test(module, datamodule=data, verbose=False)
    predicted = run.predict(module, datamodule=data)
    (tested,) = log.ends("test")
    assert [t.task for t in tested.trajectories] == [t.task for part in predicted for t in part.trajectories]
    assert {t.task.split for t in tested.trajectories} == {"test"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_groups": 0}, r"data\.init_args\.num_groups is 0: it must be at least 1"),
        ({"temperature": 0.0}, r"data\.init_args\.temperature is 0\.0: training needs samples"),
        ({"val_temperature": -1.0}, r"data\.init_args\.val_temperature is -1\.0"),
        ({"max_context": 0}, r"data\.init_args\.max_context is 0"),
        ({"num_workers": 17, "max_concurrent_episodes": 32}, r"data\.init_args\.num_workers is 17, but a rollout has"),
        ({"num_workers": 8, "max_concurrent_episodes": 4}, r"data\.init_args\.num_workers is 8, but only 4 episodes"),
        ({"num_val_episodes": 5, "val_samples_per_task": 2}, r"num_val_episodes is 5: it must be a multiple of"),
    ],
)
def test_values_that_do_not_fit_name_their_key(options, message):
    with pytest.raises(ValueError, match=message):
        parity_data(**options)


def test_a_missing_environment_is_named():
    with pytest.raises(ValueError, match="env: RolloutDataModule needs one"):
        RolloutDataModule(None, ToolAgent())


def test_a_context_beyond_the_models_is_refused():
    with pytest.raises(ValueError, match=r"data\.init_args\.max_context is 4000, but the model reads at most 160"):
        trainer(max_epochs=1).fit(GRPO(EndingPolicy()), datamodule=parity_data(max_context=4000))


def test_an_algorithm_that_needs_demonstrations_is_refused():
    with pytest.raises(ValueError, match=r"model\.class_path: SFT does not learn from rollouts"):
        trainer(max_epochs=1).fit(SFT(EndingPolicy()), datamodule=parity_data())


def test_exclusive_environments_train_too():
    data = parity_data(env={"exclusive": True}, num_workers=2, num_groups=2)
    run = trainer(max_epochs=1)
    run.fit(GRPO(EndingPolicy(), seed=0), datamodule=data)
    assert run.callback_metrics["progress/episodes"] == 8.0
