"""Lightning data modules: where training batches come from."""

from datamodules.demonstrations import DemonstrationDataModule
from datamodules.preference import PreferenceDataModule
from datamodules.replay import ReplayDataModule
from datamodules.rollout import RolloutDataModule

__all__ = ["DemonstrationDataModule", "PreferenceDataModule", "ReplayDataModule", "RolloutDataModule"]
