"""A comparison that fails in evaluation mode is made in training mode, and says so."""

import pytest
import torch
from torch import nn

from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.probing.survey.either_mode import in_either_mode
from autofit.probing.survey.gate_result import GateResult
from autofit.probing.survey.gradients import STATELESS, Gradients
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, TrainStep

BATCH = Counted(torch.ones(2, 3), 2)


class Model(nn.Module):
    """Fails in some modes; notes the mode of each call."""

    def __init__(self, *failing: bool) -> None:
        super().__init__()
        self.layer, self.failing, self.seen = nn.Linear(3, 1), failing, list[bool]()

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.seen.append(self.training)
        if self.training in self.failing:
            raise RuntimeError(f"no loss with training={self.training}")
        output: torch.Tensor = self.layer(batch).sum()
        return output


def compared(model: nn.Module) -> GateResult:
    rule = LossRule("step_fn", lambda model, batch: model(batch), False, "")

    def build(plan: Plan) -> TrainStep:
        return prepare(plan, Draft(model, rule, torch.optim.SGD(model.parameters()), torch.device("cpu")), [])

    def compare(gradients: Gradients) -> GateResult:
        with gradients:
            norm = float(gradients.rehearse(BATCH, 0).vector.norm())
        return GateResult(norm > 0, f"norm {norm:.1f}")

    return in_either_mode(build, STATELESS, compare)


def test_evaluation_mode_comes_first_and_is_enough() -> None:
    model = Model()
    assert compared(model).reason == "norm 4.0"
    assert model.seen == [False]


def test_a_step_that_fails_in_it_is_compared_in_training_mode() -> None:
    model = Model(False)
    found = compared(model)
    assert found.passed
    assert "compared in training mode, as evaluation mode fails: RuntimeError: no loss" in found.reason
    assert model.seen == [False, True]


def test_a_step_that_fails_in_both_raises() -> None:
    with pytest.raises(RuntimeError, match="no loss with training=True"):
        compared(Model(False, True))
