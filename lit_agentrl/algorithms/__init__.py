"""Learning algorithms, each a LightningModule."""

from lit_agentrl.algorithms.base import Algorithm, Learner, OnPolicyAlgorithm
from lit_agentrl.algorithms.cispo import CISPO
from lit_agentrl.algorithms.dapo import DAPO
from lit_agentrl.algorithms.dqn import DQN
from lit_agentrl.algorithms.dr_grpo import DrGRPO
from lit_agentrl.algorithms.drrn import DRRN
from lit_agentrl.algorithms.exploration import Exploration
from lit_agentrl.algorithms.gigpo import GiGPO
from lit_agentrl.algorithms.grpo import GRPO
from lit_agentrl.algorithms.gspo import GSPO
from lit_agentrl.algorithms.optimizer import OptimizerConfig
from lit_agentrl.algorithms.policy_gradient import PolicyGradient
from lit_agentrl.algorithms.reinforce import REINFORCE
from lit_agentrl.algorithms.reinforce_pp import ReinforcePP
from lit_agentrl.algorithms.rloo import RLOO
from lit_agentrl.algorithms.sapo import SAPO
from lit_agentrl.algorithms.sft import SFT

__all__ = [
    "CISPO",
    "DAPO",
    "DQN",
    "DRRN",
    "GRPO",
    "GSPO",
    "REINFORCE",
    "RLOO",
    "SAPO",
    "SFT",
    "Algorithm",
    "DrGRPO",
    "Exploration",
    "GiGPO",
    "Learner",
    "OnPolicyAlgorithm",
    "OptimizerConfig",
    "PolicyGradient",
    "ReinforcePP",
]
