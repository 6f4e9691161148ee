"""Estimated against measured peaks."""

from autofit.core.estimate import Estimate
from autofit.reports.svg.estimates import ESTIMATES, MOST_BOUNDS, accuracy
from tests.reports.samples import bare, bounded, large, typical
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


def test_the_interval_of_a_single_plan_is_on_the_axis() -> None:
    report = typical()
    row = next(row for row in report.rows if row.peak_bytes)
    peak = row.peak_bytes or 0
    estimate = Estimate(value_bytes=peak + 12, lower_bytes=round(peak * 0.94), upper_bytes=round(peak * 1.06))
    near = row.model_copy(update={"rank": 1, "estimate": estimate})
    found = picture("estimates", report.model_copy(update={"rows": (near,)}))
    lines = [node.getAttribute("d").strip("M").split("L") for node in found.of_class("af-bound")]
    assert len(lines) == 3  # the interval and its two ends
    heights = sorted({float(end.split()[1]) for ends in lines for end in ends})
    axis = max(float(node.getAttribute("d").split()[-1]) for node in found.of_class("af-axis"))
    assert len(heights) == 2
    assert heights[0] > min(box.bottom for _, box in found.texts())
    assert heights[1] < axis - 10


def test_upper_bounds_are_neither_drawn_nor_part_of_the_error() -> None:
    report = bounded()
    baseline = report.baseline
    assert baseline is not None
    found = picture("estimates", report)
    assert found.points().keys() == {row.rank for row in report.rows if row.peak_bytes and row != baseline}
    about = found.root.getAttribute("aria-label")
    assert about.endswith("1 plan is left out: the estimate is an upper bound (sizes depend on the data).")
    assert "Estimated against measured peaks of 12 plans. " in about
    assert "for 11.42 GiB" not in about
    only = report.model_copy(update={"rows": (baseline,)})
    assert not ESTIMATES.available(only)
