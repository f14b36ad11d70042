"""Learning algorithms, each a LightningModule."""

from lit_agentrl.algorithms.base import Algorithm, OnPolicyAlgorithm
from lit_agentrl.algorithms.grpo import GRPO
from lit_agentrl.algorithms.optimizer import OptimizerConfig
from lit_agentrl.algorithms.sft import SFT

__all__ = ["GRPO", "SFT", "Algorithm", "OnPolicyAlgorithm", "OptimizerConfig"]
