"""One batch is one optimizer step: when none is taken, what stops it, what is logged."""

import math

import pytest
import torch
from lightning.pytorch.callbacks import Callback
from rl_support import EndingPolicy, equal, parity_data, trainer, weights
from torch.utils.data import DataLoader

from lit_agentrl.algorithms import GRPO, SFT, OptimizerConfig
from lit_agentrl.rollouts.segments import batch_from_demonstrations
from lit_agentrl.rollouts.stream import SizedStream


def sft(**options):
    return SFT(EndingPolicy(), optimizer=OptimizerConfig(lr=1e-3, **options), seed=0)


def demonstrations(module, *, trained=True):
    batch = batch_from_demonstrations([((5, 6, 7), (0, 1, 1)), ((8, 9), (0, int(trained)))])
    if trained:
        module.fold_weights(batch, mode="token-mean")
    return batch


def fit(module, batches, **options):
    """Train on the given batches; `batches` is called once the trainer exists."""
    run = trainer(max_epochs=1, **options)
    run.fit(module, SizedStream(lambda: iter(batches()), len(batches())).loader())
    return run


def optimizer_state(run):
    (optimizer,) = run.optimizers
    (scheduler,) = (config.scheduler for config in run.lr_scheduler_configs)
    moments = [state["exp_avg"].clone() for state in optimizer.state.values()]
    return len(optimizer.state), moments, scheduler.last_epoch


def test_a_batch_without_weight_changes_nothing():
    # Decay, momentum and the schedule would all move something if the step were taken.
    one, two = (sft(weight_decay=0.5, schedule="linear") for _ in range(2))
    plain = fit(one, lambda: [demonstrations(one)], max_steps=4)
    empty = demonstrations(two, trained=False)
    skipping = fit(two, lambda: [empty, demonstrations(two), empty, empty], max_steps=4)

    assert equal(weights(one), weights(two))
    assert plain.global_step == skipping.global_step == 1
    assert skipping.callback_metrics["train/skipped_steps"] == 1.0
    count, moments, position = optimizer_state(skipping)
    expected_count, expected_moments, expected_position = optimizer_state(plain)
    assert (count, position) == (expected_count, expected_position)
    assert all(torch.equal(a, b) for a, b in zip(moments, expected_moments, strict=True))


def test_the_logged_rate_is_the_one_that_was_used():
    rates = []

    class Seen(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            rates.append(float(trainer.callback_metrics["train/lr"]))

    module = sft(schedule="linear")
    fit(module, lambda: [demonstrations(module)] * 4, callbacks=[Seen()])
    assert rates == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])


def test_a_schedule_that_needs_the_end_of_the_run_says_so():
    module = sft(schedule="cosine")
    run = trainer(max_epochs=-1)
    with pytest.raises(ValueError, match=r"optimizer\.schedule is cosine.*trainer\.max_epochs"):
        run.fit(module, SizedStream(lambda: iter([]), 1).loader())


def test_clipping_bounds_the_gradient_and_logs_its_norm_before():
    norms = []

    class Seen(Callback):
        def on_before_optimizer_step(self, trainer, module, optimizer):
            norms.append(torch.stack([p.grad.norm() for p in module.parameters()]).norm())

    module = sft(max_grad_norm=0.01)
    run = fit(module, lambda: [demonstrations(module)], callbacks=[Seen()])
    assert norms == [pytest.approx(0.01, rel=1e-4)]
    assert run.callback_metrics["train/grad_norm"] > 0.02


def test_clipping_is_off_at_zero():
    norms = []

    class Seen(Callback):
        def on_before_optimizer_step(self, trainer, module, optimizer):
            norms.append(float(torch.stack([p.grad.norm() for p in module.parameters()]).norm()))

    module = sft(max_grad_norm=0)
    run = fit(module, lambda: [demonstrations(module)], callbacks=[Seen()])
    assert norms == [pytest.approx(float(run.callback_metrics["train/grad_norm"]), rel=1e-5)]


def test_the_logged_loss_is_that_of_the_whole_batch():
    whole, cut = sft(), sft()
    cut.micro_batch_tokens = 1
    one = fit(whole, lambda: [demonstrations(whole)])
    two = fit(cut, lambda: [demonstrations(cut)])
    # Random weights: not far from ln(508) = 6.23 nats a token.
    assert float(one.callback_metrics["train/loss"]) == pytest.approx(math.log(508), abs=1.0)
    for name in ("train/loss", "train/nll", "train/entropy", "train/grad_norm"):
        assert float(two.callback_metrics[name]) == pytest.approx(float(one.callback_metrics[name]), rel=1e-5)


def test_a_loss_that_is_not_a_number_stops_before_the_step():
    module = sft()
    module.configure_model()
    before = weights(module)
    batch = demonstrations(module)
    batch.weight[1] = torch.nan
    with pytest.raises(FloatingPointError, match=r"the loss of optimizer step 0 is nan; lower .*optimizer\.lr"):
        fit(module, lambda: [batch])
    assert equal(before, weights(module))


def test_a_gradient_that_is_not_finite_stops_before_the_step():
    module = sft()
    module.configure_model()
    before = weights(module)
    next(iter(module.parameters())).register_hook(lambda gradient: gradient * torch.inf)
    with pytest.raises(FloatingPointError, match="the gradient norm of optimizer step 0 is "):
        fit(module, lambda: [demonstrations(module)])
    assert equal(before, weights(module))


def test_figures_of_the_rollout_are_logged_with_its_first_batch():
    module = GRPO(EndingPolicy(), seed=0)
    run = trainer(max_epochs=1)
    run.fit(module, datamodule=parity_data())
    metrics = run.callback_metrics
    assert metrics["progress/episodes"] == 16.0
    assert metrics["train/ratio"] == pytest.approx(1.0)
    assert metrics["train/behavior_gap"] < 1e-4
    tokens = sum(float(value) for name, value in metrics.items() if name.startswith("tokens/"))
    assert tokens == metrics["progress/tokens"]


def test_a_plain_dataloader_of_batches_will_do():
    module = sft()
    trainer(max_epochs=1).fit(module, DataLoader([demonstrations(module)], batch_size=None))


@pytest.mark.parametrize("value", [0, -4])
def test_a_micro_batch_needs_a_token(value):
    with pytest.raises(ValueError, match=r"model\.init_args\.micro_batch_tokens is "):
        SFT(EndingPolicy(), micro_batch_tokens=value)
