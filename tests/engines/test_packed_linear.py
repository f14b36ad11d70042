"""Packed weights: the same product, never an old one, and nothing left on the model."""

import pytest
import torch
from torch import nn

from lit_agentrl.engines.packed_linear import PackedLinears


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 20, bias=False))


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 5, 200])
def test_same_product(model, rows):
    data = torch.randn(rows, 3, 40)
    expected = model(data)
    with PackedLinears(min_weights=1).used_by(model):
        assert "forward" in model[0].__dict__
        torch.testing.assert_close(model(data), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_weights_that_changed_are_packed_again(model):
    packed = PackedLinears(min_weights=1)
    data = torch.randn(4, 40)
    with packed.used_by(model):
        model(data)
    model[0].weight.mul_(2)
    expected = model(data)
    with packed.used_by(model):
        torch.testing.assert_close(model(data), expected, atol=1e-5, rtol=1e-5)


def test_the_model_is_itself_again_after_an_error(model):
    with pytest.raises(RuntimeError, match="interrupted"), PackedLinears(min_weights=1).used_by(model):
        raise RuntimeError("interrupted")
    assert all("forward" not in module.__dict__ for module in model.modules())
    model(torch.randn(2, 40)).sum().backward()
    assert model[0].weight.grad is not None


def test_small_layers_and_other_precisions_stay_as_they_are(model):
    with PackedLinears().used_by(model):
        assert all("forward" not in module.__dict__ for module in model.modules())
    model.bfloat16()
    with PackedLinears(min_weights=1).used_by(model):
        assert all("forward" not in module.__dict__ for module in model.modules())
