"""The comparison has two limits, and another order of operations may change as much as a number format rounds."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from autofit.core.plan import Plan
from autofit.gates.compare import (
    ORDER_L2,
    PRECISION,
    REDUCED_L2,
    TF32_L2,
    GradientDifference,
    Limits,
    compare,
    order_l2,
)
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, TrainStep


@pytest.mark.parametrize(
    ("angle", "scale", "passed"), [(0.0, 1.01, True), (0.042, 1.0, True), (0.048, 1.0, False), (0.0, 1.06, False)]
)
def test_both_limits_count(angle: float, scale: float, passed: bool) -> None:
    """A cosine of 0.999 is an angle of 0.0447."""
    one = scale * torch.tensor([math.cos(angle), math.sin(angle)])
    found = compare([one], [torch.tensor([1.0, 0.0])], PRECISION)
    assert found.passed is passed
    assert found.reason.startswith(f"cosine of the gradient {math.cos(angle):.5f} (at least 0.999), relative L2 ")


def test_the_pair_that_is_furthest_apart_decides() -> None:
    ones = torch.ones(4)
    assert compare([ones, ones], [ones, ones], Limits()).passed
    found = compare([ones, 1.2 * ones, ones], [ones, ones, ones], Limits())
    assert (found.passed, found.reason) == (False, "relative L2 of the gradient 2.0e-01 (at most 0.001)")


def test_a_limit_bounds_the_ratio_of_norms_too() -> None:
    assert not compare([1.0011 * torch.ones(4)], [torch.ones(4)], Limits(1e-3)).passed


def test_nothing_is_expected_where_the_baseline_is_zero_or_not_finite() -> None:
    zero, masked = torch.zeros(3), torch.tensor([1.0, -math.inf])
    assert compare([zero], [zero], PRECISION).passed
    assert not compare([torch.ones(3)], [zero], PRECISION).passed
    assert compare([masked], [masked], PRECISION).passed
    for one, other in ((masked, torch.ones(2)), (torch.ones(2), masked), (torch.full((2,), math.nan),) * 2):
        assert compare([one], [other], PRECISION, "output").reason == "the output is not finite"


@pytest.mark.parametrize("found", [[], [torch.ones(3)], [torch.ones(2), torch.ones(2)]])
def test_another_number_of_tensors_or_another_shape_is_named(found: list[torch.Tensor]) -> None:
    verdict = compare(found, [torch.ones(2)], Limits(), "output")
    assert verdict.reason == f"output: {len(found)} instead of 1, or of other shapes"


def step_of(model: nn.Module) -> TrainStep:
    rule = LossRule("loss", lambda model, batch: model(batch).sum(), inferred=False, about="")
    return TrainStep(Plan(), Draft(model, rule, None, torch.device("cpu")))


def test_a_model_in_16_bits_or_under_autocast_may_change_more() -> None:
    assert order_l2(step_of(nn.Linear(2, 2))) == ORDER_L2
    assert order_l2(step_of(nn.Linear(2, 2).bfloat16())) == REDUCED_L2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert order_l2(step_of(nn.Linear(2, 2))) == REDUCED_L2


def test_settings_of_cuda_say_nothing_about_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/cuda/test_gates.py asks on a CUDA device."""
    assert ORDER_L2 < TF32_L2 < REDUCED_L2
    monkeypatch.setattr(torch.backends.cuda, "matmul", SimpleNamespace(fp32_precision="tf32"))
    assert order_l2(step_of(nn.Linear(2, 2))) == ORDER_L2


def test_gradients_of_several_ranks_are_objected_to_beyond_what_rounding_explains() -> None:
    assert GradientDifference(1e-4, 1e-3).objection == ""
    assert "differs by 0.02 (relative L2)" in GradientDifference(0.02, 1e-3).objection
    unknown = GradientDifference(reason="rank 1 alone: it is zero")
    assert not unknown.compared
    assert unknown.objection.endswith("one process: rank 1 alone: it is zero")
