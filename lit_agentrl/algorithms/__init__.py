"""Learning algorithms, each a LightningModule."""

from lit_agentrl.algorithms.actor_critic import ActorCritic
from lit_agentrl.algorithms.archer import ArCHer
from lit_agentrl.algorithms.base import Algorithm, OnPolicyAlgorithm
from lit_agentrl.algorithms.cispo import CISPO
from lit_agentrl.algorithms.dapo import DAPO
from lit_agentrl.algorithms.distillation import Distillation
from lit_agentrl.algorithms.dpo import DPO
from lit_agentrl.algorithms.dqn import DQN
from lit_agentrl.algorithms.dr_grpo import DrGRPO
from lit_agentrl.algorithms.drrn import DRRN
from lit_agentrl.algorithms.exploration import Exploration
from lit_agentrl.algorithms.gigpo import GiGPO
from lit_agentrl.algorithms.grpo import GRPO
from lit_agentrl.algorithms.gspo import GSPO
from lit_agentrl.algorithms.kto import KTO
from lit_agentrl.algorithms.learner import Learner
from lit_agentrl.algorithms.online_preference import OnlineDPO
from lit_agentrl.algorithms.optimizer import OptimizerConfig
from lit_agentrl.algorithms.orpo import ORPO
from lit_agentrl.algorithms.policy_gradient import PolicyGradient
from lit_agentrl.algorithms.ppo import PPO
from lit_agentrl.algorithms.preference import PreferenceAlgorithm
from lit_agentrl.algorithms.reinforce import REINFORCE
from lit_agentrl.algorithms.reinforce_pp import ReinforcePP
from lit_agentrl.algorithms.rloo import RLOO
from lit_agentrl.algorithms.sapo import SAPO
from lit_agentrl.algorithms.sft import SFT
from lit_agentrl.algorithms.simpo import SimPO
from lit_agentrl.algorithms.step_dpo import StepDPO
from lit_agentrl.algorithms.trajectory_preference import DMPO, ETO
from lit_agentrl.algorithms.vapo import VAPO

__all__ = [
    "CISPO",
    "DAPO",
    "DMPO",
    "DPO",
    "DQN",
    "DRRN",
    "ETO",
    "GRPO",
    "GSPO",
    "KTO",
    "ORPO",
    "PPO",
    "REINFORCE",
    "RLOO",
    "SAPO",
    "SFT",
    "VAPO",
    "ActorCritic",
    "Algorithm",
    "ArCHer",
    "Distillation",
    "DrGRPO",
    "Exploration",
    "GiGPO",
    "Learner",
    "OnPolicyAlgorithm",
    "OnlineDPO",
    "OptimizerConfig",
    "PolicyGradient",
    "PreferenceAlgorithm",
    "ReinforcePP",
    "SimPO",
    "StepDPO",
]
