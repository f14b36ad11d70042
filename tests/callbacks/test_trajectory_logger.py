"""`TrajectoryLogger`: a file is complete or absent, and written again when a rollout is collected again."""

from types import SimpleNamespace

from callbacks import TrajectoryLogger
from lit_agentrl.reporting.records import read_trajectories
from lit_agentrl.types import Task, Trajectory


def rollout(reward):
    trajectory = Trajectory(task=Task(id="t", family="f", split="val", seed=0), group=0, sample=0, reward=reward)
    return SimpleNamespace(phase="val", index=3, batch=None, trajectories=[trajectory])


def fake_trainer(folder, **fields):
    return SimpleNamespace(**({"default_root_dir": str(folder), "world_size": 1, "global_rank": 0} | fields))


def test_one_file_per_rollout(tmp_path):
    logger = TrajectoryLogger()
    logger.on_rollout_end(fake_trainer(tmp_path), None, rollout(0.25))
    logger.on_rollout_end(fake_trainer(tmp_path), None, rollout(0.5))
    (path,) = (tmp_path / "trajectories").iterdir()
    assert path.name == "val-000003.jsonl"
    assert [record["reward"] for record in read_trajectories(path)] == [0.5]


def test_every_rank_has_a_file_of_its_own(tmp_path):
    TrajectoryLogger().on_rollout_end(fake_trainer(tmp_path, world_size=2, global_rank=1), None, rollout(0.25))
    assert [path.name for path in (tmp_path / "trajectories").iterdir()] == ["val-000003-rank1.jsonl"]


def test_switched_off(tmp_path):
    TrajectoryLogger(enabled=False).on_rollout_end(fake_trainer(tmp_path), None, rollout(0.25))
    assert list(tmp_path.iterdir()) == []
