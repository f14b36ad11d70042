"""Lightning callbacks of the framework, each usable alone."""

from callbacks.axes import ProgressAxes
from callbacks.checkpoint import RunCheckpoint
from callbacks.progress import RolloutProgressBar
from callbacks.trajectories import TrajectoryLogger

__all__ = ["ProgressAxes", "RolloutProgressBar", "RunCheckpoint", "TrajectoryLogger"]
