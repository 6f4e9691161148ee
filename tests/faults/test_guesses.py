"""A guess is not shown as an estimate (issue 16, B 16)."""

from autofit.core.estimate import Estimate
from autofit.reports.summary import summarize
from tests.reports.test_summary import record


def test_an_estimate_with_bounds_is_shown_beside_the_measured_peak_and_a_guess_is_not() -> None:
    """Before, "estimated 105.9 MiB, +91.6%" stood there, taken over from a plan that differs."""
    bounded = Estimate(value_bytes=3 * 2**20, lower_bytes=2 * 2**20, upper_bytes=4 * 2**20)
    assert "estimate  3 MiB before it ran, 0.0% from the measured peak" in summarize(record(estimate=bounded))
    below = bounded.model_copy(update={"value_bytes": bounded.value_bytes - 1})
    assert ", 0.0% from the measured peak" in summarize(record(estimate=below))
    guess = Estimate(value_bytes=6 * 2**20, basis="from the measured peak of the same plan with precision=fp32")
    assert "estimate" not in summarize(record(estimate=guess))
