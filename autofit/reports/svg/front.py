"""Throughput against peak memory: every measured plan, the budget and the Pareto front."""

from itertools import pairwise

from autofit.core.objective import TIE_RATIO
from autofit.core.units import format_bytes, short_number
from autofit.reports.counting import counted
from autofit.reports.report import PlanRow, Report
from autofit.reports.svg.chart import Chart
from autofit.reports.svg.drawing import FONT, SMALL, Drawing, Format
from autofit.reports.svg.lettering import Box, place, text_width
from autofit.reports.svg.marks import LINE, NOT_FROM_ZERO, axes, key, margin, plan_keys, point, shown_budget, thinned
from autofit.reports.svg.scales import AxisScale, byte_ticks, rate_ticks, span
from autofit.search.choice import SAME_MEMORY_RATIO

_BEYOND = 1.15
"""The axis of memory ends at this many budgets at most; plans that need more are counted at its end."""


def draw(report: Report, form: Format) -> Drawing:
    """Returns the chart of a report with at least one measured plan."""
    rows, refused = _measured(report), _refused(report)
    drawing = Drawing(form, _about(report, rows))
    top = key(drawing, _keys(report, rows, refused), 2) + 34
    low, high = _memory_span(report, rows)
    slow, fast = span([row.rate_per_s or 0.0 for row in rows])
    rates = rate_ticks(slow, fast, 5)
    left, right = margin(rates), form.width - 14
    bottom = top + (270 if form.narrow else 330)
    lane = bottom + 24 if refused else bottom
    area = Box(left, top, right, lane)
    x, y = AxisScale(low, high, left, right), AxisScale(slow, fast, bottom, top)
    memory = byte_ticks(low, high, 3 if form.narrow else 7)
    _budget(drawing, report, area, x)
    axes(drawing, area, (x, memory, "peak memory"), (y, rates, f"{report.unit} per second"))
    _refusals(drawing, refused, area, x)
    line = _frontier(rows, x, y)
    if len(line) > 1:
        drawing.polyline(line, "af-frontier")
    placed = [(row, x(row.peak_bytes or 0), y(row.rate_per_s or 0.0)) for row in rows]
    for row, at_x, at_y in sorted(thinned(placed), key=lambda found: _order(found[0])):
        point(drawing, at_x, at_y, row, "af-front" if row.on_front else "")
    _labels(drawing, rows, area, (x, y), [*_boxes(report, area, x), *_stairs(line)])
    drawing.height = lane + 46
    return drawing


def _measured(report: Report) -> list[PlanRow]:
    return [row for row in report.rows if row.rate_per_s is not None and row.peak_bytes]


def _refused(report: Report) -> list[tuple[float, PlanRow]]:
    """Returns the plans without a throughput that have a peak, measured or estimated, with it."""
    found = list[tuple[float, PlanRow]]()
    for row in report.rows:
        peak = row.peak_bytes or row.expected_bytes
        if row.rate_per_s is None and peak and peak > report.budget_bytes:
            found.append((float(peak), row))
    return found


def _memory_span(report: Report, rows: list[PlanRow]) -> tuple[float, float]:
    low, high = span([float(row.peak_bytes or 0) for row in rows], 0.1)
    if shown_budget(report, high):
        high = max(high, report.budget_bytes * _BEYOND)
    return low, high


def _keys(report: Report, rows: list[PlanRow], refused: list[tuple[float, PlanRow]]) -> list[tuple[str, str]]:
    others = [row for row in rows if not row.role and not row.is_baseline]
    found = plan_keys(report, {row.rank for row in rows})
    found += [("af-pt af-front", "on the Pareto front")] if any(row.on_front for row in others) else []
    found += [("af-pt", "other plan")] if any(not row.on_front for row in others) else []
    return [*found, ("af-pt af-x", "did not fit")] if refused else found


def _budget(drawing: Drawing, report: Report, area: Box, x: AxisScale) -> None:
    text = f"budget {format_bytes(report.budget_bytes)}"
    if report.budget_bytes > x.high:
        beyond = f"{text} →" if drawing.format.narrow else f"{text}, beyond this axis →"
        drawing.text(area.right, area.top - 14, beyond, "af-bad", "end")
        return
    at = x(report.budget_bytes)
    drawing.rect(at, area.top, area.right, area.bottom, "af-over")
    drawing.line(at, area.top - 8, at, area.bottom, "af-budget")
    half = text_width(text, SMALL) / 2
    drawing.text(min(at, area.right - half), area.top - 14, text, "af-bad", "middle")


def _refusals(drawing: Drawing, refused: list[tuple[float, PlanRow]], area: Box, x: AxisScale) -> None:
    """Draws plans that did not fit in a lane of their own, since they have no throughput."""
    if refused:
        drawing.line(area.left, area.bottom - 24, area.right, area.bottom - 24, "af-grid")
    beyond = sum(peak > x.high for peak, _ in refused)
    placed = [(row, x(peak), area.bottom - 11) for peak, row in refused if peak <= x.high]
    for row, at_x, at_y in thinned(placed):
        point(drawing, at_x, at_y, row, "af-x")
    if beyond:
        text = f"{beyond} did not fit and {'is' if beyond == 1 else 'are'} beyond this axis"
        drawing.text(area.left + 6, area.bottom - 7, text, "af-bad")


def _frontier(rows: list[PlanRow], x: AxisScale, y: AxisScale) -> list[tuple[float, float]]:
    """Returns the corners of the Pareto front, a staircase from the lightest plan to the fastest one."""
    front = sorted((row.peak_bytes or 0, row.rate_per_s or 0.0) for row in rows if row.on_front)
    line = list[tuple[float, float]]()
    for peak, rate in front:
        line += [(x(peak), line[-1][1])] if line else []
        line.append((x(peak), y(rate)))
    return line


def _order(row: PlanRow) -> tuple[bool, bool, bool]:
    """Returns what is drawn last, on top of the others."""
    return row.role == "recommended", row.is_baseline, row.on_front


def _stairs(line: list[tuple[float, float]]) -> list[Box]:
    return [Box(min(a, c), min(b, d) - 1, max(a, c), max(b, d) + 1) for (a, b), (c, d) in pairwise(line)]


def _boxes(report: Report, area: Box, x: AxisScale) -> list[Box]:
    if report.budget_bytes > x.high:
        return []
    at = x(report.budget_bytes)
    return [Box(at - 2, area.top, at + 2, area.bottom)] * 4  # to cross it is worse than to hide a point


def _labels(
    drawing: Drawing, rows: list[PlanRow], area: Box, scales: tuple[AxisScale, AxisScale], lines: list[Box]
) -> None:
    """Names the recommended plan and the baseline, clear of the points and of the lines where that is possible."""
    x, y = scales
    centres = [(x(row.peak_bytes or 0), y(row.rate_per_s or 0.0)) for row in rows]
    taken = [Box(cx - 6, cy - 6, cx + 6, cy + 6) for cx, cy in centres]
    taken += lines
    for row, (cx, cy) in zip(rows, centres, strict=True):
        if not row.role and not row.is_baseline:
            continue
        name = "Recommended" if row.role == "recommended" else "Baseline"
        about = f"{short_number(row.rate_per_s or 0.0)}/s, {format_bytes(row.peak_bytes)}"
        width = max(text_width(name, FONT) * 1.08, text_width(about, SMALL))
        box = place(cx, cy, width, 2 * LINE - 4, area, taken)
        taken.append(box)
        drawing.text(box.left, box.top + 12, name, "af-strong")
        drawing.text(box.left, box.top + 12 + LINE - 2, about, "af-note")


def _about(report: Report, rows: list[PlanRow]) -> str:
    count = f"Throughput against peak memory of {counted(len(rows), 'measured plan')}, with a budget of "
    texts = [f"{count}{format_bytes(report.budget_bytes)}."]
    for name, row in (("Recommended plan", report.recommended), ("Baseline", report.baseline)):
        if row is not None and row.rate_per_s is not None:
            rate = f"{short_number(row.rate_per_s)} {report.unit} per second"
            texts.append(f"{name}: {rate} at {format_bytes(row.peak_bytes)}.")
    return " ".join(texts)


def _note(report: Report) -> str:
    low, _ = span([row.rate_per_s or 0.0 for row in _measured(report)])
    return NOT_FROM_ZERO if low > 0 else ""


FRONT: Chart = Chart(
    kind="front",
    heading="Throughput against peak memory",
    aid="Higher is faster and further left is lighter. For a plan on the Pareto front, no other measured plan is as "
    f"fast with less memory. Speeds within {TIE_RATIO:.0%} and peaks within {SAME_MEMORY_RATIO:.0%} count as equal, so "
    "a plan that is ahead by less than that may be marked as another plan.",
    missing="no plan was measured within the budget",
    available=lambda report: bool(_measured(report)),
    draw=draw,
    table=lambda report: None,
    note=_note,
)
"""Throughput against peak memory."""
