"""P35: members of a group differ, rollouts differ, and one run seed is one run, on any workers."""

import pytest
from lightning.pytorch.callbacks import Callback
from rl_support import EndingPolicy, equal, parity_data, trainer, weights

from lit_agentrl.algorithms import GRPO, OptimizerConfig
from lit_agentrl.rollouts.hooks import RolloutHooks


class Drawn(RolloutHooks, Callback):
    """Keeps what was sampled: per rollout, group and member, the ids of all turns."""

    def __init__(self):
        self.rollouts = []

    def on_rollout_end(self, trainer, pl_module, rollout):
        if rollout.phase == "train":
            self.rollouts.append(
                [[[t.completion.token_ids for t in m.turns] for m in g.trajectories] for g in rollout.groups]
            )


def run(seed=0, **data):
    drawn = Drawn()
    module = GRPO(EndingPolicy(), optimizer=OptimizerConfig(lr=1e-2), num_minibatches=2, seed=seed)
    trainer(max_epochs=2, callbacks=[drawn]).fit(module, datamodule=parity_data(seed=seed, **data))
    return drawn.rollouts, weights(module)


@pytest.fixture(scope="module")
def reference():
    return run()


def test_members_of_a_group_differ(reference):
    for group in reference[0][0]:
        assert len({tuple(member) for member in group}) == len(group)


def test_rollouts_draw_different_tasks_and_numbers(reference):
    first, second = reference[0]
    assert first != second


def test_the_same_seed_gives_the_same_weights_bit_for_bit(reference):
    rollouts, trained = run()
    assert rollouts == reference[0]
    assert equal(trained, reference[1])


def test_another_seed_gives_another_run(reference):
    rollouts, trained = run(seed=1)
    assert rollouts != reference[0]
    assert not equal(trained, reference[1])


@pytest.mark.parametrize("num_workers", [2, 3])
def test_workers_and_their_speed_change_no_bit(reference, num_workers):
    rollouts, trained = run(num_workers=num_workers, env={"sleep_s": 0.01})
    assert rollouts == reference[0]
    assert equal(trained, reference[1])


def test_a_killed_worker_changes_no_bit(reference, tmp_path):
    rollouts, trained = run(num_workers=2, env={"kill_once": str(tmp_path / "killed")})
    assert (tmp_path / "killed").exists()
    assert rollouts == reference[0]
    assert equal(trained, reference[1])
