"""Estimated against measured peaks."""

from autofit.core.estimate import Estimate
from autofit.reports.svg.estimates import ESTIMATES, MOST_BOUNDS, accuracy
from tests.reports.samples import bare, large, typical
from tests.reports.svg.reading import picture


def test_only_plans_with_both_numbers_are_drawn() -> None:
    report = typical()
    both = {row.rank for row in report.rows if row.peak_bytes and row.estimate}
    assert picture("estimates", report).points().keys() == both


def test_bounds_are_drawn_for_few_plans_and_not_for_many() -> None:
    assert picture("estimates", typical()).of_class("af-bound")
    report = large()
    assert sum(row.peak_bytes is not None for row in report.rows) > MOST_BOUNDS
    assert not picture("estimates", report).of_class("af-bound")


def test_the_error_is_that_of_the_estimates() -> None:
    rows = [row for row in typical().rows if row.peak_bytes]
    one = rows[0]
    exact, double = (
        one.model_copy(update={"estimate": Estimate(value_bytes=times * (one.peak_bytes or 0))}) for times in (1, 2)
    )
    assert accuracy([exact, exact, double]) == (
        "The median error is 0.0%, the largest +100.0% (30.24 GiB for 15.12 GiB)."
    )


def test_a_report_without_estimates_has_no_such_chart() -> None:
    assert not ESTIMATES.available(bare())
