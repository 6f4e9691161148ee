"""The gate in a proof: compiled code with a wrong gradient is found before the plan is recommended."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.outcome import Status
from autofit.core.trial import Purpose
from tests.probing.test_compilation import Net, compiled_plan, compiling, plain

# torch 2.13 warns of its own code while it compiles, and filters that turn warnings into errors would end it.
pytestmark = [pytest.mark.usefixtures("compiler"), pytest.mark.filterwarnings("default")]


def wrong(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """A compiler whose results are 1 % too large."""
    return lambda *args: tuple(1.01 * each for each in graph.forward(*args))


class Dropping(Net):
    """Draws random numbers in training, which compiled code need not draw alike."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.dropout(x))


@pytest.mark.parametrize("model", [Net, Dropping])
def test_code_with_the_same_gradient_is_proven(model: Callable[[], nn.Module]) -> None:
    with compiling(plain, model()) as bench:
        outcome = bench.evaluate(compiled_plan(bench), Purpose.PROOF)
    assert outcome.measured, outcome.reason
    assert outcome.measurement is not None
    assert outcome.measurement.compiler_notes == ()


def test_code_with_another_gradient_is_not_proven_but_may_be_probed() -> None:
    with compiling(wrong) as bench:
        assert bench.evaluate(compiled_plan(bench), Purpose.PROBE).measured
        outcome = bench.evaluate(compiled_plan(bench), Purpose.PROOF)
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROOF).measured
    assert outcome.status is Status.NUMERIC
    assert outcome.reason.startswith("compile=default changes the gradient of this model: relative L2 of the gradient")


def test_what_cannot_be_compared_is_a_note() -> None:
    compiled = 0

    def once(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        nonlocal compiled
        compiled += 1
        if compiled > 1:
            raise RuntimeError("no second time")
        return graph.forward

    with compiling(once, Dropping()) as bench:  # in evaluation mode it is compiled again
        outcome = bench.evaluate(compiled_plan(bench), Purpose.PROOF)
    assert outcome.measured
    assert outcome.measurement is not None
    (note,) = outcome.measurement.compiler_notes
    assert note.startswith("compile=default: its gradient was not compared")
    assert "no second time" in note
