"""Writes every algorithm's gradient of one rollout: `python rank_gradients.py RANKS MICRO_BATCH_TOKENS FILE`."""

import sys
import tempfile

import lightning as L
import torch
from rl_support import EndingPolicy, build, rollout_of, trainer, trajectory, turn

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
    VAPO,
    ArCHer,
    Distillation,
    DrGRPO,
    GiGPO,
    OptimizerConfig,
    ReinforcePP,
)
from lit_agentrl.algorithms.action_values import ActionValueConfig
from lit_agentrl.algorithms.terms import EntropyTerm, KLTerm, Objectives, OffPolicyTerm, OverlongTerm
from lit_agentrl.policies.critic import CriticConfig
from lit_agentrl.rollouts.segments import batch_from_demonstrations, batch_from_groups
from lit_agentrl.rollouts.stream import SizedStream

LEARNT = CriticConfig(trunk="shared", shared_gradient=True)
# Four groups in three minibatches: with two ranks, some rank has nothing of a minibatch.
MINIBATCHES = {"num_minibatches": 3}


class UntiedPolicy(EndingPolicy):
    """Its output layer is not its input layer."""

    def _load(self, seed):
        model, tokenizer, chat = super()._load(seed)
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().flip(0))
        return model, tokenizer, chat


def every(teacher):
    """All algorithms over rollouts, with every term that has a normaliser of its own in at least one of them."""
    return {
        "sft": SFT,
        "reinforce": lambda p, **o: REINFORCE(p, gamma=0.9, **o),
        "rloo": RLOO,
        "reinforce_pp": ReinforcePP,
        "reinforce_pp_baseline": lambda p, **o: ReinforcePP(p, group_baseline=True, **o),
        "grpo": GRPO,
        "grpo_batch_scale": lambda p, **o: GRPO(p, advantage_scale="batch", aggregation="seq-mean-token-sum", **o),
        "grpo_kl_entropy": lambda p, **o: GRPO(p, kl=KLTerm(), entropy=EntropyTerm(coefficient=0.1), **o),
        "grpo_kl_minibatches": lambda p, **o: GRPO(p, kl=KLTerm(), **MINIBATCHES, **o),
        "grpo_kl_in_reward": lambda p, **o: GRPO(p, kl=KLTerm(estimator="k1", place="reward"), **o),
        "grpo_corrected": lambda p, **o: GRPO(
            p, correction=OffPolicyTerm(mode="mis", level="geometric", high=1.2, sequence_mask=0.5), **o
        ),
        "gdpo": lambda p, **o: GRPO(
            p, objectives=Objectives(weights={"success": 1.0, "reward": 0.3}, mode="normalise_then_sum"), **o
        ),
        "dr_grpo": lambda p, **o: DrGRPO(p, max_tokens=64, **o),
        "dapo": lambda p, **o: DAPO(p, overlong=OverlongTerm(max_length=12, buffer=8), **o),
        "gspo": GSPO,
        "sapo": SAPO,
        "cispo": CISPO,
        "gigpo": GiGPO,
        "ppo": PPO,
        "ppo_shared": lambda p, **o: PPO(p, step="turn", critic=LEARNT, **o),
        "ppo_untied": lambda p, **o: PPO(UntiedPolicy(), **MINIBATCHES, **o),
        "vapo": lambda p, **o: VAPO(p, critic=CriticConfig(), **o),
        "vapo_minibatches": lambda p, **o: VAPO(p, critic=CriticConfig(), **MINIBATCHES, **o),
        "archer": lambda p, **o: ArCHer(p, critic=ActionValueConfig(updates=1, cql=0.3), **o),
        "distillation": lambda p, **o: Distillation(p, teacher=teacher, **o),
    }


def groups():
    """Four groups of four: shared and own prompts, one to three turns, ragged, one episode empty and one failed."""
    ids = iter(range(10, 5000))

    def some(count):
        return [next(ids) % 500 for _ in range(count)]

    made = []
    for group in range(4):
        prompt = some(3 + 2 * group)
        members = []
        for sample in range(4):
            turns = [turn(prompt, some(1 + (3 * sample + group) % 7))]
            turns += [turn(some(2 + n), some(1 + 2 * n), parent=n) for n in range((sample + group) % 3)]
            episode = trajectory(group, sample, *turns, reward=float((sample * (group + 1)) % 3), success=sample == 1)
            for number, one in enumerate(turns):
                one.state_key = f"{number}"
            members.append(episode)
        made.append(members)
    made[1][2].turns, made[1][2].status = [], "failed"
    made[2][3].turns = []
    made[3][0].status, made[3][0].closing_ids = "truncated", (7, 8, 9)
    return made


class OneRollout(L.LightningDataModule):
    """Hands a rank its share of the rollout, with old log-probs that are a little off."""

    def train_dataloader(self):
        module = self.trainer.lightning_module

        def demonstrations():
            rows = [(tuple(range(5, 7 + n)), (0,) * 2 + (1,) * n) for n in (2, 9, 0, 4, 17, 1, 5, 12)]
            batch = batch_from_demonstrations(rows[self.trainer.global_rank :: self.trainer.world_size])
            module.fold_weights(batch, mode="token-mean")
            yield batch

        def batches():
            if getattr(module, "reference", None) is not None:
                with torch.no_grad():
                    for weight in module.reference.policy.causal_lm.parameters():
                        weight += 0.02 * torch.sin(torch.arange(weight.numel(), dtype=weight.dtype)).view_as(weight)
            mine = groups()[self.trainer.global_rank :: self.trainer.world_size]
            rollout = rollout_of(*mine)
            batch = batch_from_groups(rollout.groups, temperature=0.8)
            own = module.old_logprobs(batch)
            batch.old_logprobs = own + 0.2 * torch.sin(batch.token_ids + batch.position_ids.float())
            batch.behavior_logprobs = batch.old_logprobs - 0.1 * torch.cos(batch.token_ids.float())
            yield from module.batches(rollout, batch)

        if isinstance(module, SFT):
            return SizedStream(demonstrations, 1).loader()
        return SizedStream(batches, module.batches_per_rollout).loader()


def gradients(module, ranks, budget):
    """Return the gradient of each optimizer step, one after the other, before it is clipped."""
    module.micro_batch_tokens = budget
    module.configure_model()
    critic, target = getattr(module, "critic", None), getattr(module, "target", None)
    seen = []
    finish = module.before_step

    def recorded():
        finish()
        named = sorted(module.named_parameters())
        seen.append(torch.cat([p.grad.flatten() for _, p in named if p.grad is not None]).clone())

    module.before_step = recorded
    start = module.on_fit_start

    def started():
        start()
        for part in (critic, target):
            if part is not None:
                with torch.no_grad():
                    weight = part.head.weight
                    weight.copy_(0.1 * torch.sin(torch.arange(weight.numel(), dtype=weight.dtype)).view_as(weight))

    module.on_fit_start = started
    run = trainer(
        max_epochs=1, devices=ranks, strategy="ddp" if ranks > 1 else "auto", precision="64-true", max_steps=-1
    )
    run.fit(module, datamodule=OneRollout())
    return torch.cat(seen)


def main() -> None:
    ranks, budget, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        build(EndingPolicy(), seed=7).export(folder)
        found = {
            name: gradients(make(EndingPolicy(), optimizer=OptimizerConfig(lr=1e-9), seed=0), ranks, budget)
            for name, make in every(folder).items()
        }
    if not (torch.distributed.is_initialized() and torch.distributed.get_rank()):
        torch.save(found, path)


if __name__ == "__main__":
    main()
