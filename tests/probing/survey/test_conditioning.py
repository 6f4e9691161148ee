"""Precision is judged where the gradient means something: deep batch normalisation at untrained weights is chaotic."""

from typing import Any

import torch
from torch import nn

from autofit.core.plan import Plan
from autofit.probing.survey import gates
from autofit.probing.survey.conditioning import Compared
from autofit.probing.survey.gate_result import PRECISION_L2
from autofit.workloads.counted_batches import Counted
from tests.probing.survey.comparing import rounded
from tests.probing.survey.test_gates import build, mean

FP32, BF16 = Plan(values={"precision": "fp32"}), Plan(values={"precision": "bf16"})


def normalised(depth: int) -> nn.Module:
    """Returns linear layers, each with batch normalisation; the deeper, the more sensitive to rounding."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU()) for _ in range(depth)]
    return nn.Sequential(*layers, nn.Linear(16, 4))


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 16, generator=generator), torch.arange(8) % 4


def cancelling(model: nn.Module, batch: Any) -> torch.Tensor:
    """Differences of large numbers: 16 bits hold none of the digits that matter."""
    loss: torch.Tensor = (model(batch[0]).float() - 4096).square().mean()
    return loss


def with_large_outputs(depth: int) -> nn.Module:
    model = normalised(depth)
    with torch.no_grad():
        list(model.parameters())[-1].fill_(4096.0)
    return model


def test_a_gradient_that_rounding_changes_is_compared_with_fixed_statistics() -> None:
    found = rounded(build(normalised(depth=24), mean), BF16, samples(), 0)
    assert found.passed, found.reason
    assert found.evaluated
    assert "in float32 too when the weights are rounded" in found.reason


def test_the_verdict_depends_on_no_earlier_batch() -> None:
    fresh, warm = normalised(depth=24), normalised(depth=24)
    for number in range(100):
        warm(torch.randn(8, 16, generator=torch.Generator().manual_seed(number)))
    assert not torch.equal(fresh.get_buffer("3.1.running_mean"), warm.get_buffer("3.1.running_mean"))
    found = [rounded(build(model, mean), BF16, samples(), 0) for model in (fresh, warm)]
    assert found[0] == found[1]


def test_the_statistics_are_put_back() -> None:
    model = normalised(depth=24)
    before = dict(model.named_buffers())
    rounded(build(model, mean), BF16, samples(), 0)
    assert all(buffer is before[name] for name, buffer in model.named_buffers())
    assert float(model.get_buffer("3.1.running_mean").abs().max()) > 0  # moved by the steps: the guard puts it back


def test_the_weights_are_put_back() -> None:
    model = normalised(depth=24)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    rounded(build(model, mean), BF16, samples(), 0)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), before, strict=True))
    assert all(module.training for module in model.modules())


def test_a_loss_that_loses_its_digits_is_refused_although_the_gradient_is_chaotic() -> None:
    found = rounded(build(with_large_outputs(depth=24), cancelling), BF16, samples(), 0)
    assert not found.passed
    assert not found.evaluated


def test_a_gradient_that_rounding_keeps_decides_by_itself() -> None:
    """One layer: the float32 gradient stays when the weights are rounded, so the loss is what loses the digits."""
    found = rounded(build(with_large_outputs(depth=1), cancelling), BF16, samples(), 0)
    assert not found.passed
    assert f"(at most {PRECISION_L2})" in found.reason


def test_an_ordinary_model_is_compared_as_it_trains() -> None:
    found = rounded(build(normalised(depth=1), mean), BF16, samples(), 0)
    assert found.passed, found.reason
    assert not found.evaluated


def test_two_orders_of_one_arithmetic_are_compared_with_fixed_statistics_too() -> None:
    """Compiled code rounds elsewhere. The plan below stands for it: it rounds, and the reference does not."""
    make = build(normalised(depth=24), mean)
    batch = Counted(samples(), 8)
    found = gates.compare(make, Compared(BF16, FP32, FP32, rounded=True), batch, 0)
    assert found.passed, found.reason
    assert "in float32 too when the weights are rounded" in found.reason
    assert "or 2 times the second" in found.reason


def test_fixed_statistics_allow_no_rounding_where_both_compute_in_float32() -> None:
    found = gates.compare(build(normalised(depth=24), mean), Compared(BF16, FP32), Counted(samples(), 8), 0)
    assert not found.passed
    assert "(at most 0.001)" in found.reason


def test_another_order_that_loses_the_digits_of_the_loss_is_refused() -> None:
    make = build(with_large_outputs(depth=24), cancelling)
    found = gates.compare(make, Compared(BF16, FP32, FP32, rounded=True), Counted(samples(), 8), 0)
    assert not found.passed
