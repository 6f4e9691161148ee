"""Compiled code with a wrong gradient is found before its plan is recommended."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.trial import Purpose
from autofit.gates.verdict import Checked
from autofit.probing.compilation import _graphs
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
def test_code_with_the_same_gradient_passes_and_needs_no_second_check(model: Callable[[], nn.Module]) -> None:
    with compiling(plain, model()) as bench:
        plan = compiled_plan(bench)
        assert bench.evaluate(plan, Purpose.PROOF).measured
        found = bench.check(plan, {})
        assert bench.check(plan, found.verdicts) == Checked()
        assert bench.check(bench.briefing.space.baseline, {}) == Checked()
    assert found.passed, found.reason
    assert found.verdicts["compile=default"].compared
    assert found.caveats == ()


def test_code_that_was_compiled_for_the_proof_is_compared() -> None:
    with compiling(plain) as bench:
        plan = compiled_plan(bench)
        bench.evaluate(plan, Purpose.PROOF)
        before = _graphs()
        assert bench.check(plan, {}).passed
        assert _graphs() == before


def test_code_with_another_gradient_does_not_pass_but_may_be_probed() -> None:
    with compiling(wrong) as bench:
        assert bench.evaluate(compiled_plan(bench), Purpose.PROBE).measured
        found = bench.check(compiled_plan(bench), {})
    assert (found.passed, found.checked) == (False, True)
    assert found.reason.startswith("compile=default: relative L2 of the gradient")
    assert [refusal.name for refusal in found.refused] == ["compile=default"]


def test_code_that_cannot_be_compared_passes_with_a_note() -> None:
    compiled = 0

    def once(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        nonlocal compiled
        compiled += 1
        if compiled > 1:
            raise RuntimeError("no second time")
        return graph.forward

    with compiling(once, Dropping()) as bench:  # in evaluation mode it is compiled again
        plan = compiled_plan(bench)
        assert bench.evaluate(plan, Purpose.PROOF).measured
        found = bench.check(plan, {})
    assert found.passed
    (note,) = found.caveats
    assert note.startswith("compile=default: the gradient was not compared with that of the baseline")
    assert "BackendCompilerFailed" in note
