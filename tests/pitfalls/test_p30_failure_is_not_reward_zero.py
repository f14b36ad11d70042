"""P30 (rollout): a grader that crashes is not a wrong answer, from the environment to the metrics."""

import pytest
from rl_support import EndingPolicy, parity_data, trainer

from lit_agentrl.algorithms import GRPO
from lit_agentrl.rollouts.batch import TokenReason
from lit_agentrl.rollouts.hooks import RolloutHooks


@pytest.fixture(scope="module")
def run():
    from lightning.pytorch.callbacks import Callback

    class Keep(RolloutHooks, Callback):
        rollout = None

        def on_rollout_end(self, trainer, pl_module, rollout):
            if rollout.phase == "train":
                self.rollout = rollout

    keep = Keep()
    run = trainer(max_epochs=1, limit_val_batches=1.0, callbacks=[keep])
    data = parity_data(env={"fails": True}, num_val_episodes=24, val_temperature=1.0)
    run.fit(GRPO(EndingPolicy(), seed=1), datamodule=data)
    return keep.rollout, {name: float(value) for name, value in run.callback_metrics.items()}


def test_statuses_are_kept_apart(run):
    rollout, metrics = run
    counts = {s: sum(t.status == s for t in rollout.trajectories) for s in ("completed", "truncated", "failed")}
    assert min(counts.values()) > 0
    assert metrics["rollout/failed"] == pytest.approx(counts["failed"] / 16)
    assert metrics["rollout/truncated"] == pytest.approx(counts["truncated"] / 16)
    solved = sum(t.success for t in rollout.trajectories)
    assert metrics["rollout/success"] == pytest.approx(solved / (16 - counts["failed"]))


def test_a_failed_episode_says_why_and_has_no_reward(run):
    failed = [t for t in run[0].trajectories if t.status == "failed"]
    assert all("RuntimeError: the grader crashed" in t.cause for t in failed)
    assert all((t.reward, t.reward_parts, t.success) == (0.0, {}, False) for t in failed)
    assert all(t.turns for t in failed)  # what was sampled stays, and is counted


def test_its_tokens_are_counted_and_not_trained(run):
    rollout, metrics = run
    failed = sum(t.num_tokens for t in rollout.trajectories if t.status == "failed")
    assert metrics["tokens/failed"] == failed
    batch = rollout.batch
    assert not bool(batch.weight[batch.reason == TokenReason.FAILED].any())


def test_validation_counts_failures_apart(run):
    _, metrics = run
    assert metrics["val/failed"] > 0
    assert metrics["val/episodes"] == 24 - metrics["val/failed"]
