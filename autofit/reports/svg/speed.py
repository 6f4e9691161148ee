"""Charts of throughput: against peak memory, and over the micro batch size."""

from autofit.core.objective import TIE_RATIO
from autofit.core.units import format_bytes, short_number
from autofit.reports.markup import DataTable
from autofit.reports.report import PlanRow, Report, SpeedCurve
from autofit.reports.sentences import counted
from autofit.reports.svg.axes import (
    NOT_FROM_ZERO,
    AxisScale,
    axes,
    byte_ticks,
    key,
    margin,
    mark,
    plan_keys,
    point,
    rate_ticks,
    shown_budget,
    size_ticks,
    span,
    thinned,
)
from autofit.reports.svg.drawing import SMALL, Box, Chart, Drawing, Format, text_width
from autofit.search.choice import SAME_MEMORY_RATIO

_BEYOND = 1.15
"""The axis of memory ends at this many budgets at most; plans that need more are counted at its end."""


def _front_draw(report: Report, form: Format) -> Drawing:
    """Returns the chart of a report with at least one measured plan."""
    rows, refused = _measured(report), _refused(report)
    drawing = Drawing(form, _front_about(report, rows))
    top = key(drawing, _front_keys(report, rows, refused), 2) + 34
    low, high = _memory_span(report, rows)
    slow, fast = span([row.rate_per_s or 0.0 for row in rows])
    rates = rate_ticks(slow, fast, 5)
    bottom = top + 330
    area = Box(margin(rates), top, form.width - 14, bottom + 24 if refused else bottom)
    x, y = AxisScale(low, high, area.left, area.right), AxisScale(slow, fast, bottom, top)
    _budget(drawing, report, area, x)
    axes(drawing, area, (x, byte_ticks(low, high, 7), "peak memory"), (y, rates, f"{report.unit} per second"))
    _refusals(drawing, refused, area, x)
    line = _frontier(rows, x, y)
    if len(line) > 1:
        drawing.polyline(line, "af-frontier")
    for row, at_x, at_y in thinned([(row, x(row.peak_bytes or 0), y(row.rate_per_s or 0.0)) for row in rows]):
        point(drawing, at_x, at_y, row, "af-front" if row.on_front else "")
    drawing.height = area.bottom + 46
    return drawing


def _measured(report: Report) -> list[PlanRow]:
    return [row for row in report.rows if row.rate_per_s is not None and row.peak_bytes]


def _refused(report: Report) -> list[tuple[float, PlanRow]]:
    """Returns the plans without a throughput that have a peak, measured or estimated, with it."""
    peaks = [(float(row.peak_bytes or row.expected_bytes or 0), row) for row in report.rows if row.rate_per_s is None]
    return [(peak, row) for peak, row in peaks if peak > report.budget_bytes]


def _memory_span(report: Report, rows: list[PlanRow]) -> tuple[float, float]:
    low, high = span([float(row.peak_bytes or 0) for row in rows], 0.1)
    return low, max(high, report.budget_bytes * _BEYOND) if shown_budget(report, high) else high


def _front_keys(report: Report, rows: list[PlanRow], refused: list[tuple[float, PlanRow]]) -> list[tuple[str, str]]:
    others = [row for row in rows if not row.role and not row.is_baseline]
    found = plan_keys(report, {row.rank for row in rows})
    found += [("af-pt af-front", "on the Pareto front")] if any(row.on_front for row in others) else []
    found += [("af-pt", "other plan")] if any(not row.on_front for row in others) else []
    return [*found, ("af-pt af-x", "did not fit")] if refused else found


def _budget(drawing: Drawing, report: Report, area: Box, x: AxisScale) -> None:
    text = f"budget {format_bytes(report.budget_bytes)}"
    if report.budget_bytes > x.high:
        drawing.text(area.right, area.top - 14, f"{text}, beyond this axis →", "af-bad", "end")
        return
    at = x(report.budget_bytes)
    drawing.rect(at, area.top, area.right, area.bottom, "af-over")
    drawing.line(at, area.top - 8, at, area.bottom, "af-budget")
    drawing.text(min(at, area.right - text_width(text, SMALL) / 2), area.top - 14, text, "af-bad", "middle")


def _refusals(drawing: Drawing, refused: list[tuple[float, PlanRow]], area: Box, x: AxisScale) -> None:
    """Draws plans that did not fit in a lane of their own, since they have no throughput."""
    if refused:
        drawing.line(area.left, area.bottom - 24, area.right, area.bottom - 24, "af-grid")
    for row, at_x, at_y in thinned([(row, x(peak), area.bottom - 11) for peak, row in refused if peak <= x.high]):
        point(drawing, at_x, at_y, row, "af-x")
    if beyond := sum(peak > x.high for peak, _ in refused):
        text = f"{beyond} did not fit and {'is' if beyond == 1 else 'are'} beyond this axis"
        drawing.text(area.left + 6, area.bottom - 7, text, "af-bad")


def _frontier(rows: list[PlanRow], x: AxisScale, y: AxisScale) -> list[tuple[float, float]]:
    """Returns the corners of the Pareto front, a staircase from the lightest plan to the fastest one."""
    line = list[tuple[float, float]]()
    for peak, rate in sorted((row.peak_bytes or 0, row.rate_per_s or 0.0) for row in rows if row.on_front):
        line += [(x(peak), line[-1][1])] if line else []
        line.append((x(peak), y(rate)))
    return line


def _front_about(report: Report, rows: list[PlanRow]) -> str:
    count = f"Throughput against peak memory of {counted(len(rows), 'measured plan')}, with a budget of "
    texts = [f"{count}{format_bytes(report.budget_bytes)}."]
    for name, row in (("Recommended plan", report.recommended), ("Baseline", report.baseline)):
        if row is not None and row.rate_per_s is not None:
            rate = f"{short_number(row.rate_per_s)} {report.unit} per second"
            texts.append(f"{name}: {rate} at {format_bytes(row.peak_bytes)}.")
    return " ".join(texts)


FRONT: Chart = Chart(
    kind="front",
    heading="Throughput against peak memory",
    aid="Higher is faster and further left is lighter. For a plan on the Pareto front, no other measured plan is as "
    f"fast with less memory. Speeds within {TIE_RATIO:.0%} and peaks within {SAME_MEMORY_RATIO:.0%} count as equal, so "
    "a plan that is ahead by less than that may be marked as another plan.",
    missing="no plan was measured within the budget",
    available=lambda report: bool(_measured(report)),
    draw=_front_draw,
    table=lambda report: None,
    note=lambda report: NOT_FROM_ZERO if span([row.rate_per_s or 0.0 for row in _measured(report)])[0] > 0 else "",
)
"""Throughput against peak memory."""


MOST_CURVES = 7
"""Number of curves drawn: as many as there are colours and dashes that a reader can tell apart."""


def _curves_draw(report: Report, form: Format) -> Drawing:
    """Returns the chart of a report with at least one curve."""
    curves = _shown(report)
    drawing = Drawing(form, _curves_about(report, curves))
    series = _series(report, curves)
    sizes = [size for curve in curves for size, _ in _points(report, curve)]
    misses = [miss for curve in curves if (miss := _miss(report, curve))]
    slow, fast = span([rate for curve in curves for _, rate in _points(report, curve)])
    rates = rate_ticks(slow, fast, 5)
    names = [(f"af-line af-s{number}", curve.combination) for curve, number in zip(curves, series, strict=True)]
    top = key(drawing, [*names, *_curves_keys(report, curves)], 2) + 34
    bottom = top + 320
    area = Box(margin(rates), top, form.width - 30, bottom + (26 if misses else 0))
    x = AxisScale(max(min(sizes), 1) / 1.15, max(*sizes, *misses, 1) * 1.15, area.left, area.right, log2=True)
    y = AxisScale(slow, fast, bottom, top)
    ticks = size_ticks([*sizes, *misses], x, SMALL, 9)
    axes(drawing, area, (x, ticks, "micro batch size"), (y, rates, f"{report.unit} per second"))
    if misses:
        drawing.line(area.left, bottom, area.right, bottom, "af-grid")
        drawing.text(area.left + 6, area.bottom - 8, "did not fit", "af-bad")
    _lines(drawing, report, list(zip(curves, series, strict=True)), x, y)
    drawing.height = area.bottom + 46
    return drawing


def _shown(report: Report) -> list[SpeedCurve]:
    """Returns the fastest curves, with that of the baseline, and of the recommended plan, among them."""
    wanted = {row.combination for row in (report.recommended, report.baseline) if row is not None}
    first = sorted(report.curves, key=lambda curve: curve.combination not in wanted)[:MOST_CURVES]
    return [curve for curve in report.curves if curve in first]


def _points(report: Report, curve: SpeedCurve) -> list[tuple[int, float]]:
    rows = [report.row(rank) for rank in curve.ranks]
    return [(row.micro_batch_size, row.rate_per_s or 0.0) for row in rows]


def _miss(report: Report, curve: SpeedCurve) -> int | None:
    """Returns the smallest size that did not fit and is larger than those that were measured."""
    largest = max(size for size, _ in _points(report, curve))
    return min((size for size in curve.refused_sizes if size > largest), default=None)


def _raced(report: Report) -> set[int]:
    """Returns the ranks of the plans that raced; the throughput of the others is that of their probe."""
    reference = report.baseline if report.race_reference == "baseline" else report.recommended
    found = {racer.rank for racer in report.race}
    return found | {reference.rank} if found and reference is not None else found


def _curves_keys(report: Report, curves: list[SpeedCurve]) -> list[tuple[str, str]]:
    """Returns the entries of the key for the points."""
    drawn, raced = {rank for curve in curves for rank in curve.ranks}, _raced(report)
    hollow = raced and any(not report.row(rank).role and rank not in raced for rank in drawn)
    found = plan_keys(report, drawn)
    return [*found, ("af-pt af-hollow", "did not race: by its probe")] if hollow else found


def _series(report: Report, curves: list[SpeedCurve]) -> list[int]:
    """Returns the number of the style of each curve: 1 for that of the recommended plan, 2 for that of the baseline."""
    fixed = {row.combination: number for number, row in ((2, report.baseline), (1, report.recommended)) if row}
    free = iter(number for number in range(1, MOST_CURVES + 3) if number not in fixed.values())
    return [fixed[curve.combination] if curve.combination in fixed else next(free) for curve in curves]


def _lines(drawing: Drawing, report: Report, curves: list[tuple[SpeedCurve, int]], x: AxisScale, y: AxisScale) -> None:
    """Draws the lines, then their points, and in the lane below the sizes that did not fit."""
    placed, styles, raced = list[tuple[PlanRow, float, float]](), dict[int, int](), _raced(report)
    for place, (curve, series) in enumerate(curves):
        line = [(x(size), y(rate)) for size, rate in _points(report, curve)]
        if len(line) > 1:
            drawing.polyline(line, f"af-line af-s{series}")
        placed += [(report.row(rank), *at) for rank, at in zip(curve.ranks, line, strict=True)]
        styles |= dict.fromkeys(curve.ranks, series)
        if miss := _miss(report, curve):  # beside each other, since several curves may end at one size
            mark(drawing, x(miss) + 9 * (place - 2), y.start + 14, f"af-miss af-x af-s{series}")
    for row, at_x, at_y in thinned(placed):
        hollow = " af-hollow" if raced and row.rank not in raced else ""
        point(drawing, at_x, at_y, row, f"af-dot af-s{styles[row.rank]}{hollow}")


def _curves_about(report: Report, curves: list[SpeedCurve]) -> str:
    best = max((point for curve in curves for point in _points(report, curve)), key=lambda found: found[1])
    return (
        f"Throughput over the micro batch size for {len(curves)} combinations. The highest is "
        f"{short_number(best[1])} {report.unit} per second at micro batch {best[0]}."
    )


def _curves_note(report: Report) -> str:
    """Returns what the chart does not show by itself: where the axis starts, and which points did not race."""
    curves = _shown(report)
    low, _ = span([rate for curve in curves for _, rate in _points(report, curve)])
    hollow = any(text.startswith("did not race") for _, text in _curves_keys(report, curves))
    texts = ["Hollow points did not race: their throughput is that of a probe and less certain."] if hollow else []
    return " ".join([*texts, *([NOT_FROM_ZERO] if low > 0 else [])])


def _curves_table(report: Report) -> DataTable:
    """Returns each measured point of the curves that are drawn."""
    rows = list[tuple[str, ...]]()
    for curve in _shown(report):
        rows += [(curve.combination, f"{size:,}", short_number(rate)) for size, rate in _points(report, curve)]
        miss = _miss(report, curve)
        rows += [(curve.combination, f"{miss:,}", "did not fit")] if miss else []
    return DataTable(("combination", "micro batch size", f"{report.unit}/s"), tuple(rows))


CURVES: Chart = Chart(
    kind="curves",
    heading="Speed by micro batch size",
    aid="Where a line is flat, a larger micro batch costs memory and brings no speed. The horizontal axis is "
    "logarithmic.",
    missing="no combination was measured at two micro batch sizes",
    note=_curves_note,
    available=lambda report: bool(report.curves),
    draw=_curves_draw,
    table=_curves_table,
)
"""Throughput over the micro batch size."""
