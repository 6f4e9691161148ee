"""Estimated against measured peaks."""

from statistics import median

from autofit.core.units import format_bytes
from autofit.reports.counting import counted, difference
from autofit.reports.report import UPPER_BOUND, PlanRow, Report
from autofit.reports.svg.chart import Chart
from autofit.reports.svg.drawing import Drawing, Format
from autofit.reports.svg.lettering import Box
from autofit.reports.svg.marks import axes, key, margin, plan_keys, point, thinned
from autofit.reports.svg.scales import AxisScale, byte_ticks, span

MOST_BOUNDS = 60
"""Number of plans up to which the bounds of estimates are drawn; more would hide the points."""


def draw(report: Report, form: Format) -> Drawing:
    """Returns the chart of a report with at least one plan that was both estimated and measured."""
    rows = _compared(report)
    drawing = Drawing(form, _about(report, rows))
    bounded = rows if len(rows) <= MOST_BOUNDS else []
    low, high = span([*_values(rows), *(end for row in bounded for end in _interval(row))], 0.08)
    ticks = byte_ticks(low, high, 3 if form.narrow else 6)
    known = plan_keys(report, {row.rank for row in rows})
    others = [("af-pt", "other plan")] if len(rows) > len(known) else []
    top = key(drawing, [*known, *others], 2) + 34
    side = 250.0 if form.narrow else 360.0
    left = margin(ticks)
    area = Box(left, top, min(form.width - 14, left + 1.7 * side), top + side)
    x, y = AxisScale(low, high, area.left, area.right), AxisScale(low, high, area.bottom, area.top)
    axes(drawing, area, (x, ticks, "measured peak"), (y, ticks, "estimated peak"))
    drawing.line(area.left, area.bottom, area.right, area.top, "af-axis")
    drawing.text(area.right - 8, area.bottom - 10, "needed more than estimated", "af-note", "end")
    drawing.text(area.left + 10, area.top + 16, "needed less than estimated", "af-note")
    for row in bounded:
        _bounds(drawing, row, x, y)
    placed = [(row, x(row.peak_bytes or 0), y(_estimated(row))) for row in rows]
    for row, at_x, at_y in sorted(
        thinned(placed), key=lambda found: (found[0].role == "recommended", found[0].is_baseline)
    ):
        point(drawing, at_x, at_y, row)
    drawing.height = area.bottom + 46
    return drawing


def _compared(report: Report) -> list[PlanRow]:
    return [row for row in report.rows if row.peak_bytes and row.expected_bytes is not None]


def _estimated(row: PlanRow) -> int:
    return row.estimate.value_bytes if row.estimate is not None else 0


def _values(rows: list[PlanRow]) -> list[float]:
    return [float(value) for row in rows for value in (_estimated(row), row.peak_bytes or 0)]


def _interval(row: PlanRow) -> list[float]:
    """Returns the bounds that an estimate has, at most two."""
    ends = () if row.estimate is None else (row.estimate.lower_bytes, row.estimate.upper_bytes)
    return [float(end) for end in ends if end is not None]


def _bounds(drawing: Drawing, row: PlanRow, x: AxisScale, y: AxisScale) -> None:
    """Draws the interval of an estimate, with a mark at each bound; without one it ends at the estimate."""
    at, bounds = x(row.peak_bytes or 0), [y(end) for end in _interval(row)]
    ends = [*bounds, y(_estimated(row))]
    drawing.line(at, max(ends), at, min(ends), "af-bound")
    for end in bounds:
        drawing.line(at - 3, end, at + 3, end, "af-bound")


def _about(report: Report, rows: list[PlanRow]) -> str:
    about = f"Estimated against measured peaks of {counted(len(rows), 'plan')}. {accuracy(rows)}"
    return f"{about} {omitted(report)}".rstrip()


def omitted(report: Report) -> str:
    """Returns how many measured plans are left out since their estimate is an upper bound; "" if none is."""
    count = sum(bool(row.peak_bytes) and row.has_worst_case for row in report.rows)
    if not count:
        return ""
    return f"{counted(count, 'plan')} {'is' if count == 1 else 'are'} left out: the estimate is an {UPPER_BOUND}."


def accuracy(rows: list[PlanRow]) -> str:
    """Returns in a sentence how far the estimates of measured plans are off."""
    errors = [_estimated(row) / (row.peak_bytes or 1) - 1 for row in rows]
    worst = max(errors, key=abs)
    row = rows[errors.index(worst)]
    size = f"{format_bytes(_estimated(row))} for {format_bytes(row.peak_bytes)}"
    middle = median(abs(error) for error in errors)
    return f"The median error is {middle:.1%}, the largest {difference(worst)} ({size})."


ESTIMATES: Chart = Chart(
    kind="estimates",
    heading="Estimated and measured memory",
    aid="A point on the diagonal was estimated exactly; below it, the plan needed more memory than estimated.",
    missing="no measured plan has an estimate other than an upper bound",
    available=lambda report: bool(_compared(report)),
    draw=draw,
    table=lambda report: None,
)
"""Estimated against measured peaks."""
