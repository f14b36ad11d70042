"""Reads `golden.json`: numbers worked out in float64, most of them compared with code of other libraries."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

CASES = json.loads(Path(__file__).with_name("golden.json").read_text(encoding="utf-8"))["cases"]


class Golden:
    """Golden cases, read in one dtype and compared at that dtype's tolerance."""

    def __init__(self, dtype: torch.dtype, tolerance: float) -> None:
        self.dtype = dtype
        self.tolerance = tolerance

    def inputs(self, case: str) -> dict:
        return CASES[case]["inputs"]

    def expected(self, case: str) -> dict:
        return CASES[case]["expected"]

    def tensor(self, values: object) -> Tensor:
        return torch.tensor(values, dtype=self.dtype)

    def leaf(self, values: object) -> Tensor:
        return self.tensor(values).requires_grad_()

    def b8(self, name: str) -> Tensor:
        """An input of the batch of 8 rows x 5 tokens that most loss cases share."""
        return self.tensor(self.inputs("B8")[name])

    def check(self, actual: Tensor, expected: object) -> None:
        assert actual.dtype == self.dtype
        expected = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(actual.detach().double(), expected, rtol=self.tolerance, atol=self.tolerance)

    def check_loss(self, loss: Tensor, leaf: Tensor, expected: dict) -> None:
        """Compare a scalar loss and its gradient with respect to the leaf."""
        self.check(loss, expected["loss"])
        (gradient,) = torch.autograd.grad(loss, leaf, retain_graph=True)
        self.check(gradient, expected["grad"])


@pytest.fixture(params=["float64", "float32"])
def golden(request: pytest.FixtureRequest) -> Golden:
    tolerance = {"float64": 1e-9, "float32": 2e-5}[request.param]
    return Golden(getattr(torch, request.param), tolerance)
