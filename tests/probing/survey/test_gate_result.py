"""Precision has two limits, and a verdict holds all of a result."""

import pytest

from autofit.probing.survey.gate_result import GateResult, judged_as_precision
from autofit.workloads.micro_batch_weights import SUM


@pytest.mark.parametrize(
    ("cosine", "error", "passed"), [(1.0, 0.01, True), (0.9985, 0.01, False), (1.0, 0.06, False), (0.999, 0.05, True)]
)
def test_both_limits_count(cosine: float, error: float, passed: bool) -> None:  # a parameter of pytest
    found = judged_as_precision("gradient", cosine, error)
    assert found.passed is passed
    assert f"cosine of the gradient {cosine:.5f}" in found.reason


def test_a_verdict_has_the_weighing_as_text() -> None:
    found = GateResult(True, "the same", SUM, ("model.ema",), evaluated=True).verdict
    assert (found.weighing, found.moves, found.evaluated) == ("1", ("model.ema",), True)
