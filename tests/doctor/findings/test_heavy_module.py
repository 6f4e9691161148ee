"""Modules that a built-in function replaces, recognised by values and gradients and measured by running it."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import autofit
from autofit.doctor.findings.heavy_module import equal_function
from tests.doctor.cases import diagnosed, held_outputs, of


class OwnGelu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class OwnNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma, self.beta, self.eps = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), 1e-5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spread = (x - x.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)
        return (x - x.mean(-1, keepdim=True)) / torch.sqrt(spread + self.eps) * self.gamma + self.beta


@pytest.mark.parametrize(
    ("module", "code"),
    [
        (OwnGelu(), 'F.gelu(x, approximate="tanh")'),
        (nn.GELU(), "F.gelu(x)"),
        (OwnNorm(8), "F.layer_norm(x, (8,), self.gamma, self.beta, eps=1e-05)"),
        (nn.SiLU(), "F.silu(x)"),
    ],
)
def test_a_function_is_recognised_by_what_it_computes(module: nn.Module, code: str) -> None:
    torch.manual_seed(0)
    given = torch.randn(4, 8)
    found = equal_function(module, given)
    assert found is not None
    assert found[0] == code
    assert torch.allclose(found[1](given), module(given), atol=1e-6)


@pytest.mark.parametrize("module", [nn.Dropout(0.5), nn.Linear(8, 4), nn.Tanh(), nn.Identity()])
def test_what_computes_something_else_is_not_replaced(module: nn.Module) -> None:
    torch.manual_seed(0)
    assert equal_function(module, torch.randn(4, 8)) is None


def model_of(activation: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), activation(), nn.Linear(256, 256), activation(), nn.Linear(256, 1))


class TanhGelu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(x, approximate="tanh")


def test_the_size_is_that_of_a_run_without_the_module() -> None:
    batches = [(torch.randn(2048, 64), torch.randn(2048, 1))]
    diagnoses = [autofit.diagnose(model_of(kind), batches) for kind in (OwnGelu, TanhGelu)]
    (found,) = of(diagnoses[0], "heavy-module")
    assert found.size is not None
    assert found.size.basis == "measured"
    assert found.size.peak_bytes == pytest.approx(diagnoses[0].peak_bytes - diagnoses[1].peak_bytes, rel=0.02)
    assert [place.module for place in found.places] == ["1", "3"]
    assert "2 OwnGelu" in found.confirmed
    assert of(diagnoses[1], "heavy-module") == []


def test_a_loop_that_cannot_be_run_again_is_not_checked() -> None:
    unchecked = {each.id: each.reason for each in diagnosed(held_outputs(True)).unchecked}
    assert "no further steps" in unchecked["heavy-module"]
