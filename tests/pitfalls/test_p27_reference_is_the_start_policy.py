"""P27: the reference is the policy that training began with, adapters included, and no loss runs without it."""

import pytest
import torch
from preference_support import batch_for, pair, ragged_pairs, sums, write_lines
from rl_support import EndingPolicy, build, equal, trainer, weights

from datamodules import PreferenceDataModule
from lit_agentrl.algorithms import DPO, KTO, OptimizerConfig

LR = OptimizerConfig(lr=5e-3)


class LoRAPolicy(EndingPolicy):
    """An adapter over random weights; `trained` gives it the state of one that comes from fine-tuning."""

    def __init__(self, *, trained=False, **options):
        super().__init__(**options)
        self.trained = trained

    def _load(self, seed):
        import peft

        model, tokenizer, chat = super()._load(seed)
        config = peft.LoraConfig(r=2, lora_alpha=4, target_modules="all-linear", task_type="CAUSAL_LM")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = peft.get_peft_model(model, config)
            if self.trained:
                for name, weight in model.named_parameters():
                    if "lora_B" in name:
                        torch.nn.init.normal_(weight, std=0.1)
        return model, tokenizer, chat


def data(tmp_path, **options):
    file = write_lines(tmp_path / "pairs.jsonl", sums(12))
    return PreferenceDataModule([file], **({"batch_size": 6, "held_out": 0.0, "seed": 0} | options))


def logprobs(policy, module, batch):
    """All trained log-probs under a policy, apart from the algorithm's own way to them."""
    with torch.no_grad():
        return module.logprobs_of(batch, batch.weight != 0, otherwise=torch.zeros(batch.num_tokens), policy=policy)


@pytest.mark.parametrize(
    ("policy", "reference"),
    [
        (EndingPolicy, "start"),
        (LoRAPolicy, "start"),
        (LoRAPolicy, "adapter_off"),
        (lambda: LoRAPolicy(trained=True), "start"),
    ],
    ids=["full", "lora", "lora-adapter-off", "lora-after-fine-tuning"],
)
def test_the_margin_starts_at_zero_and_the_reference_stays_where_it_was(tmp_path, policy, reference):
    module = DPO(policy(), optimizer=LR, reference=reference, seed=0)
    module.configure_model()
    start = build(policy(), seed=0)
    start.load_state_dict(module.policy.state_dict())
    first = []
    original = module.log_dict
    module.log_dict = lambda values, **options: first.append(values) or original(values, **options)
    trainer(max_epochs=2).fit(module, datamodule=data(tmp_path))

    assert float(first[0]["train/reward_margin"]) == pytest.approx(0.0, abs=1e-5)
    assert float(first[0]["train/kl"]) == pytest.approx(0.0, abs=1e-5)
    assert abs(float(first[-1]["train/reward_margin"])) > 1e-3
    batch = batch_for(module, ragged_pairs(4))
    module.prepare(batch)
    expected = logprobs(start, module, batch)
    torch.testing.assert_close(batch.columns["ref_logprobs"], expected, atol=1e-5, rtol=0)
    assert (logprobs(module.policy, module, batch) - expected).abs().max() > 1e-3


def test_weights_below_a_trained_adapter_are_not_the_start_policy(tmp_path):
    module = DPO(LoRAPolicy(trained=True), reference="adapter_off", seed=0)
    with pytest.raises(ValueError, match=r"model\.init_args\.reference: adapter_off is not the policy that training"):
        trainer(max_epochs=1).fit(module, datamodule=data(tmp_path))


def test_adapter_off_needs_an_adapter(tmp_path):
    module = DPO(EndingPolicy(), reference="adapter_off", seed=0)
    with pytest.raises(ValueError, match=r"model\.init_args\.reference: adapter_off needs policy\.init_args\.lora"):
        trainer(max_epochs=1).fit(module, datamodule=data(tmp_path))


@pytest.mark.parametrize("kind", [DPO, KTO])
def test_there_is_no_loss_without_a_reference(kind):
    module = kind(build(EndingPolicy()), seed=0)
    batch = batch_for(module, [pair([1, 2], [3], [4, 5]), pair([6], [7], [8])])
    with pytest.raises(KeyError, match="ref_logprobs"):
        module.loss(batch)
    with pytest.raises(ValueError, match=r"model\.init_args\.reference is 'none'"):
        kind(EndingPolicy(), reference="none")


@pytest.mark.parametrize("policy", [EndingPolicy, LoRAPolicy])
def test_a_resumed_run_keeps_the_reference(tmp_path, policy):
    reference = "adapter_off" if policy is LoRAPolicy else "start"

    def module():
        return DPO(policy(), optimizer=LR, reference=reference, seed=0)

    whole, first, second = module(), module(), module()
    trainer(max_epochs=3).fit(whole, datamodule=data(tmp_path))
    run = trainer(max_epochs=1)
    run.fit(first, datamodule=data(tmp_path))
    run.save_checkpoint(tmp_path / "half.ckpt")
    trainer(max_epochs=3).fit(second, datamodule=data(tmp_path), ckpt_path=tmp_path / "half.ckpt")
    assert equal(weights(whole), weights(second))


@pytest.mark.parametrize("policy", [EndingPolicy, LoRAPolicy])
def test_an_evaluation_before_the_warm_start_does_not_make_the_reference(tmp_path, policy):
    """The reference that a validation needed is that of other weights."""
    module = DPO(policy(), optimizer=LR, seed=0)
    files = data(tmp_path, held_out=0.5)
    trainer(limit_val_batches=1.0).validate(module, datamodule=files, verbose=False)
    with torch.no_grad():
        for weight in module.policy.parameters():
            weight += 0.02 * torch.sin(torch.arange(weight.numel())).view_as(weight)
    first = []
    original = module.log_dict
    module.log_dict = lambda values, **options: first.append(values) or original(values, **options)
    trainer(max_epochs=1).fit(module, datamodule=files)
    assert float(first[0]["train/reward_margin"]) == pytest.approx(0.0, abs=1e-5)
    assert float(first[0]["train/kl"]) == pytest.approx(0.0, abs=1e-5)
