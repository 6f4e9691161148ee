"""Another order of operations may change as much of a gradient as its number format rounds away."""

import pytest
import torch
from torch import nn

from autofit.core.plan import Plan
from autofit.probing.survey.rounding_limits import ACCUMULATION_L2, REDUCED_L2, TF32_L2, most_l2
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, TrainStep


def step_of(model: nn.Module) -> TrainStep:
    rule = LossRule("loss", lambda model, batch: model(batch).sum(), inferred=False, about="")
    return TrainStep(Plan(), Draft(model, rule, None, torch.device("cpu")))


def test_a_model_in_16_bits_or_under_autocast_may_change_more() -> None:
    assert most_l2(step_of(nn.Linear(2, 2))) == ACCUMULATION_L2
    assert most_l2(step_of(nn.Linear(2, 2).bfloat16())) == REDUCED_L2
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert most_l2(step_of(nn.Linear(2, 2))) == REDUCED_L2


def test_settings_of_cuda_say_nothing_about_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """tests/cuda/test_gates.py asks on a CUDA device."""
    assert ACCUMULATION_L2 < TF32_L2 < REDUCED_L2
    monkeypatch.setattr("autofit.probing.survey.rounding_limits._multiplies_in_tf32", lambda: True)
    assert most_l2(step_of(nn.Linear(2, 2))) == ACCUMULATION_L2
