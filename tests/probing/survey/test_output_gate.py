"""The gate of inference lets through what keeps the output and refuses what does not."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.probing.survey.conditioning import Compared
from autofit.probing.survey.gate_result import GateResult
from autofit.probing.survey.gradients import STATELESS, State
from autofit.probing.survey.output_gate import output
from autofit.strategies import members
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, TrainStep
from tests.probing import targets

BF16 = Plan(values={"precision": "bf16"})


class Cancelling(nn.Module):
    """The difference of two values that are nearly equal: bfloat16 keeps none of its digits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x + 1000.0) - self.layer(x + 1000.001)
        return found


class Moving(nn.Module):
    """Adds the number of its calls to its output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(8, 4), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        found: torch.Tensor = self.layer(x) + 10.0 * self.calls
        return found


def asked(
    model: nn.Module, forward: Callable[..., Any] = lambda model, batch: model(batch), state: State = STATELESS
) -> GateResult:
    def build(plan: Plan) -> TrainStep:
        rule = LossRule("forward", forward, inferred=True, about="")
        return prepare(plan, Draft(model, rule, None, torch.device("cpu")), members())

    torch.manual_seed(0)
    return output(build, Compared(BF16), Counted(torch.randn(4, 8), 4), seed=0, state=state)


def test_a_rounded_output_passes_with_its_numbers() -> None:
    verdict = asked(targets.mlp().eval())
    assert verdict.passed
    assert verdict.reason.startswith("cosine of the output ")


def test_an_output_that_loses_its_digits_is_refused() -> None:
    verdict = asked(Cancelling())
    assert not verdict.passed
    assert "relative L2" in verdict.reason
    assert "numerics='any'" in verdict.reason


def masked(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(batch)
    return found.masked_fill(torch.tensor([True, False, False, False]), -torch.inf)


@pytest.mark.parametrize(
    "forward",
    [
        lambda model, batch: {"logits": model(batch), "labels": torch.arange(4)},
        lambda model, batch: SimpleNamespace(logits=model(batch)),
        masked,
    ],
    ids=["mapping", "object", "masked"],
)
def test_outputs_of_every_structure_are_compared(forward: Callable[..., Any]) -> None:
    assert asked(targets.mlp(), forward).passed


def test_an_output_that_becomes_infinite_is_refused() -> None:
    def overflows(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(batch)
        return found if found.dtype == torch.float32 else found / 0.0

    assert not asked(targets.mlp(), overflows).passed


def test_classes_alone_cannot_be_compared() -> None:
    verdict = asked(targets.mlp(), lambda model, batch: model(batch).argmax(1))
    assert not verdict.passed
    assert verdict.reason.startswith("could not be checked: the output has no floating-point tensor")


def test_an_output_of_another_shape_is_refused() -> None:
    def drops(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = model(batch)
        return found if found.dtype == torch.float32 else found[:2]

    assert "other shapes" in asked(targets.mlp(), drops).reason


def test_dropout_in_evaluation_draws_the_same_numbers_for_both_and_none_of_the_users() -> None:
    torch.manual_seed(0)
    torch.randn(4, 8)
    expected = torch.randn(1)
    assert asked(nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 4)).train()).passed
    assert torch.equal(torch.randn(1), expected)


def test_a_model_that_moves_its_own_state_starts_from_the_same_state_and_is_put_back() -> None:
    model = Moving()

    def restore() -> None:
        model.calls = 0

    state = State(restore, lambda: ["model.calls"] * bool(model.calls))
    assert asked(model, state=state).passed
    assert model.calls == 0
