"""AdamW and its schedule."""

import pytest
import torch
from torch import nn

from lit_agentrl.algorithms import OptimizerConfig
from lit_agentrl.algorithms.optimizer import ParameterGroup


def factors(total=8, **options):
    config = OptimizerConfig(**options)
    return [round(config.lr_factor(step, total_steps=total), 4) for step in range(total + 1)]


def test_a_constant_rate_stays():
    assert factors() == [1.0] * 9


def test_warmup_rises_linearly_and_never_from_zero():
    # (step + 1) / 4 for the first three steps.
    assert factors(warmup_steps=3)[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_a_linear_schedule_reaches_its_end_after_the_last_step():
    assert factors(total=4, schedule="linear") == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert factors(total=4, schedule="linear", final_lr_fraction=0.5) == [1.0, 0.875, 0.75, 0.625, 0.5]


def test_a_cosine_schedule_is_half_way_in_the_middle():
    assert factors(total=4, schedule="cosine") == [1.0, 0.8536, 0.5, 0.1464, 0.0]


def test_a_schedule_holds_its_end_when_a_run_goes_on():
    assert OptimizerConfig(schedule="linear", final_lr_fraction=0.1).lr_factor(99, total_steps=4) == pytest.approx(0.1)


def test_vectors_are_not_decayed_and_frozen_parameters_are_left_out():
    module = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.Linear(2, 2, bias=False))
    module[2].requires_grad_(False)
    optimizer = OptimizerConfig(weight_decay=0.1).make_optimizer(module.named_parameters())
    decayed, plain = optimizer.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert [p.shape for p in decayed["params"]] == [torch.Size([2, 2])]
    assert [p.shape for p in plain["params"]] == [torch.Size([2])] * 3


def test_a_configured_group_replaces_the_algorithms_group_of_its_name():
    named = list(nn.ModuleDict({"critic": nn.Linear(2, 2), "policy": nn.Linear(2, 2)}).named_parameters())
    own = {"critic": ParameterGroup(match="critic.*", lr=0.5, max_grad_norm=3.0)}
    config = OptimizerConfig(lr=0.1, groups={"critic": ParameterGroup(match="policy.*", lr=0.2, max_grad_norm=2.0)})
    rates = {id(p): g["lr"] for g in config.make_optimizer(named, further=own).param_groups for p in g["params"]}
    assert [rates[id(parameter)] for _, parameter in named] == [0.1, 0.1, 0.2, 0.2]
    together, apart = config.clip_groups(named, further=own)
    assert [id(p) for p in together.parameters] == [id(p) for name, p in named if name.startswith("critic")]
    assert (apart.name, apart.limit) == ("critic", 2.0)


def test_a_configured_pattern_comes_before_the_algorithms_own():
    named = list(nn.ModuleDict({"critic": nn.Linear(2, 2)}).named_parameters())
    config = OptimizerConfig(lr=0.1, groups={"biases": ParameterGroup(match="*.bias", lr=0.2)})
    groups = config.make_optimizer(named, further={"critic": ParameterGroup(match="critic.*", lr=0.5)}).param_groups
    assert {group["name"]: group["lr"] for group in groups} == {"biases": 0.2, "critic": 0.5}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lr", 0.0),
        ("warmup_steps", -1),
        ("weight_decay", -0.1),
        ("max_grad_norm", -1.0),
        ("final_lr_fraction", 1.5),
        ("eps", 0.0),
        ("betas", (0.9, 1.0)),
        ("schedule", "exponential"),
    ],
)
def test_values_out_of_range_name_their_key(key, value):
    with pytest.raises(ValueError, match=f"model.init_args.optimizer.{key} is "):
        OptimizerConfig(**{key: value})
