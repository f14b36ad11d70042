"""P29: after one step, the parameters that should move did, and no others."""

import pytest
import torch
from rl_support import EndingPolicy, parity_data, trainer, weights

from datamodules import DemonstrationDataModule
from lit_agentrl.agents.tool_agent import ToolAgent
from lit_agentrl.algorithms import (
    CISPO,
    DAPO,
    GRPO,
    GSPO,
    PPO,
    REINFORCE,
    RLOO,
    SAPO,
    SFT,
    DrGRPO,
    GiGPO,
    OnPolicyAlgorithm,
    OptimizerConfig,
    ReinforcePP,
)


def dr_grpo(policy, **options):
    return DrGRPO(policy, max_tokens=12, **options)


POLICY_GRADIENTS = [REINFORCE, RLOO, ReinforcePP, GRPO, dr_grpo, DAPO, GSPO, SAPO, CISPO, GiGPO]


class LoRAPolicy(EndingPolicy):
    def _load(self, seed):
        import peft

        model, tokenizer, chat = super()._load(seed)
        config = peft.LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", task_type="CAUSAL_LM")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return peft.get_peft_model(model, config), tokenizer, chat


def moved_by_one_step(algorithm):
    if isinstance(algorithm, OnPolicyAlgorithm):
        data = parity_data(temperature=1.2)
    else:
        data = DemonstrationDataModule(
            {"class_path": "rl_envs.Parity"}, ToolAgent(), num_workers=1, batch_size=4, batches_per_epoch=1, seed=0
        )
    algorithm.configure_model()
    before = weights(algorithm)
    run = trainer(max_steps=1, max_epochs=1)
    run.fit(algorithm, datamodule=data)
    assert run.global_step == 1
    after = weights(algorithm)
    return {name: not torch.equal(before[name], after[name]) for name in before}


@pytest.mark.parametrize("kind", [*POLICY_GRADIENTS, SFT])
def test_full_training_moves_everything(kind):
    moved = moved_by_one_step(kind(EndingPolicy(), optimizer=OptimizerConfig(lr=1e-3), seed=0))
    assert len(moved) > 10
    assert all(moved.values()), [name for name, did in moved.items() if not did]


def test_a_critic_moves_with_the_policy():
    """Its head starts at zero, so that the trunk below it has no gradient in the very first step."""
    moved = moved_by_one_step(PPO(EndingPolicy(), optimizer=OptimizerConfig(lr=1e-3), seed=0))
    assert {name for name, did in moved.items() if not did} == {n for n in moved if n.startswith("critic.trunk.")}
    assert {"critic.head.weight", "critic.head.bias"} < {name for name, did in moved.items() if did}


@pytest.mark.parametrize("kind", [*POLICY_GRADIENTS, SFT])
def test_lora_moves_the_adapters_only(kind):
    moved = moved_by_one_step(kind(LoRAPolicy(), optimizer=OptimizerConfig(lr=1e-3, weight_decay=0.1), seed=0))
    # The second half of an adapter starts at zero, so the first half has no gradient in the first step; with weight
    # decay AdamW shrinks it all the same.
    assert {name for name, did in moved.items() if did} == {name for name in moved if "lora_" in name}
    assert any("lora_A" in name for name in moved)


def test_frozen_parameters_stay():
    algorithm = GRPO(EndingPolicy(), optimizer=OptimizerConfig(lr=1e-3, weight_decay=0.1), seed=0)
    algorithm.configure_model()
    frozen = algorithm.policy.causal_lm.model.layers[0]
    frozen.requires_grad_(False)
    moved = moved_by_one_step(algorithm)
    assert {name for name, did in moved.items() if not did} == {name for name in moved if ".layers.0." in name}
