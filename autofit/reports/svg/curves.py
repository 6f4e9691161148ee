"""Speed curves: throughput over the micro batch size, one line for each combination."""

from autofit.core.units import short_number
from autofit.reports.report import PlanRow, Report, SpeedCurve
from autofit.reports.svg.chart import Chart, DataTable
from autofit.reports.svg.drawing import FONT, SMALL, Drawing, Format
from autofit.reports.svg.lettering import Box, spread, wrapped
from autofit.reports.svg.marks import LINE, NOT_FROM_ZERO, axes, key, margin, plan_keys, point, thinned
from autofit.reports.svg.scales import AxisScale, rate_ticks, size_ticks, span

MOST_CURVES = 7
"""Number of curves drawn: as many as there are colours and dashes that a reader can tell apart."""


def draw(report: Report, form: Format) -> Drawing:
    """Returns the chart of a report with at least one curve."""
    curves = _shown(report)
    drawing = Drawing(form, _about(report, curves))
    sizes = [size for curve in curves for size in _sizes(report, curve)]
    slow, fast = span([rate for curve in curves for _, rate in _points(report, curve)])
    rates = rate_ticks(slow, fast, 5)
    top = key(drawing, _keys(report, curves), 2) + 34
    misses = any(_miss(report, curve) for curve in curves)
    bottom = top + (240 if form.narrow else 320)
    lane = bottom + (26 if misses else 0)
    area = Box(margin(rates), top, form.width - (30 if form.narrow else 250), lane)
    x = AxisScale(max(min(sizes), 1) / 1.15, max(*sizes, 1) * 1.15, area.left, area.right, log2=True)
    y = AxisScale(slow, fast, bottom, top)
    ticks = size_ticks(sizes, x, SMALL, 5 if form.narrow else 9)
    axes(drawing, area, (x, ticks, "micro batch size"), (y, rates, f"{report.unit} per second"))
    if misses:
        drawing.line(area.left, bottom, area.right, bottom, "af-grid")
        drawing.text(area.left + 6, lane - 8, "did not fit", "af-bad")
    series = _series(report, curves)
    _lines(drawing, report, list(zip(curves, series, strict=True)), (x, y, lane - 12))
    ends = [_points(report, curve)[-1] for curve in curves]
    places = [(x(size), y(rate)) for size, rate in ends]
    drawing.height = lane + 46
    if form.narrow:
        _letters(drawing, list(zip(curves, series, strict=True)), places, area)
    else:
        _names(drawing, curves, places, area)
    return drawing


def _shown(report: Report) -> list[SpeedCurve]:
    """Returns the fastest curves, with that of the baseline, and of the recommended plan, among them."""
    wanted = {row.combination for row in (report.recommended, report.baseline) if row is not None}
    first = report.curves[:MOST_CURVES]
    needed = [curve for curve in report.curves[MOST_CURVES:] if curve.combination in wanted]
    free = [curve for curve in first if curve.combination not in wanted]
    dropped = free[len(free) - len(needed) :] if needed else []
    return [curve for curve in first if curve not in dropped] + needed


def _points(report: Report, curve: SpeedCurve) -> list[tuple[int, float]]:
    rows = [report.row(rank) for rank in curve.ranks]
    return [(row.micro_batch_size, row.rate_per_s or 0.0) for row in rows]


def _miss(report: Report, curve: SpeedCurve) -> int | None:
    """Returns the smallest size that did not fit and is larger than those that were measured."""
    largest = max(size for size, _ in _points(report, curve))
    return min((size for size in curve.refused_sizes if size > largest), default=None)


def _raced(report: Report) -> set[int]:
    """Returns the ranks of the plans that raced; the throughput of the others is that of their probe."""
    if not report.race:
        return set()
    found = {racer.rank for racer in report.race}
    reference = report.baseline if report.race_reference == "baseline" else report.recommended
    return found | ({reference.rank} if reference is not None else set())


def _keys(report: Report, curves: list[SpeedCurve]) -> list[tuple[str, str]]:
    drawn, raced = {rank for curve in curves for rank in curve.ranks}, _raced(report)
    hollow = raced and any(not report.row(rank).role and rank not in raced for rank in drawn)
    found = plan_keys(report, drawn)
    return [*found, ("af-pt af-hollow", "did not race: by its probe")] if hollow else found


def _sizes(report: Report, curve: SpeedCurve) -> list[int]:
    miss = _miss(report, curve)
    return [size for size, _ in _points(report, curve)] + ([miss] if miss else [])


def _series(report: Report, curves: list[SpeedCurve]) -> list[int]:
    """Returns the number of the style of each curve: 1 for that of the recommended plan, 2 for that of the baseline."""
    fixed = {row.combination: number for number, row in ((2, report.baseline), (1, report.recommended)) if row}
    free = iter(number for number in range(1, MOST_CURVES + 3) if number not in fixed.values())
    return [fixed[curve.combination] if curve.combination in fixed else next(free) for curve in curves]


def _lines(
    drawing: Drawing,
    report: Report,
    curves: list[tuple[SpeedCurve, int]],
    at: tuple[AxisScale, AxisScale, float],
) -> None:
    """Draws the lines, then their points, and in the lane below the sizes that did not fit."""
    x, y, lane = at
    placed, styles, raced = list[tuple[PlanRow, float, float]](), dict[int, int](), _raced(report)
    for place, (curve, series) in enumerate(curves):
        line = [(x(size), y(rate)) for size, rate in _points(report, curve)]
        if len(line) > 1:
            drawing.polyline(line, f"af-line af-s{series}")
        rows = [report.row(rank) for rank in curve.ranks]
        placed += [(row, *point) for row, point in zip(rows, line, strict=True)]
        styles |= {row.rank: series for row in rows}
        miss = _miss(report, curve)
        if miss:  # beside each other, since several curves may end at one size
            left = x(miss) - 4 + 9 * (place - 2)
            cross = f"M{left:.1f} {lane - 4:.1f}l8 8m0 -8l-8 8"
            drawing.add("path", class_=f"af-miss af-s{series}", d=cross)
    for row, at_x, at_y in sorted(thinned(placed), key=lambda found: (bool(found[0].role), -found[0].rank)):
        hollow = " af-hollow" if raced and row.rank not in raced else ""
        point(drawing, at_x, at_y, row, f"af-dot af-s{styles[row.rank]}{hollow}")


def _names(drawing: Drawing, curves: list[SpeedCurve], ends: list[tuple[float, float]], area: Box) -> None:
    """Writes the combinations beside the ends of their curves."""
    left = area.right + 26
    lines = [wrapped(curve.combination, FONT, drawing.format.width - left, 3) for curve in curves]
    heights = [len(text) * (LINE - 2) + 7 for text in lines]
    at = spread([y for _, y in ends], heights, area.top, area.bottom)
    for place, (text, y) in enumerate(zip(lines, at, strict=True)):
        end_x, end_y = ends[place]
        drawing.polyline([(end_x + 6, end_y), (area.right + 6, y), (left - 5, y)], "af-leader")
        for row, line in enumerate(text):
            drawing.text(left, y + 4.5 + row * (LINE - 2) - (len(text) - 1) * (LINE - 2) / 2, line)


def _letters(
    drawing: Drawing, curves: list[tuple[SpeedCurve, int]], ends: list[tuple[float, float]], area: Box
) -> None:
    """Writes a letter at the end of each curve, and below the chart what it stands for."""
    at = spread([y for _, y in ends], [LINE] * len(ends), area.top, area.bottom)
    for place, y in enumerate(at):
        end_x, end_y = ends[place]
        drawing.polyline([(end_x + 6, end_y), (area.right + 4, y), (area.right + 10, y)], "af-leader")
        drawing.text(area.right + 14, y + 4.5, "ABCDEFG"[place], "af-strong")
    y = drawing.height + 16
    for place, (curve, series) in enumerate(curves):
        drawing.line(0, y - 4, 26, y - 4, f"af-line af-s{series}")
        drawing.text(34, y, "ABCDEFG"[place], "af-strong")
        for line in wrapped(curve.combination, FONT, drawing.format.width - 50, 3):
            drawing.text(50, y, line)
            y += LINE - 1
        y += 5
    drawing.height = y


def _about(report: Report, curves: list[SpeedCurve]) -> str:
    best = max((point for curve in curves for point in _points(report, curve)), key=lambda found: found[1])
    return (
        f"Throughput over the micro batch size for {len(curves)} combinations. The highest is "
        f"{short_number(best[1])} {report.unit} per second at micro batch {best[0]}."
    )


def _note(report: Report) -> str:
    """Returns what the chart does not show by itself: where the axis starts, and which points did not race."""
    curves = _shown(report)
    low, _ = span([rate for curve in curves for _, rate in _points(report, curve)])
    hollow = any(text.startswith("did not race") for _, text in _keys(report, curves))
    texts = ["Hollow points did not race: their throughput is that of a probe and less certain."] if hollow else []
    return " ".join([*texts, *([NOT_FROM_ZERO] if low > 0 else [])])


def table(report: Report) -> DataTable:
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
    note=_note,
    available=lambda report: bool(report.curves),
    draw=draw,
    table=table,
)
"""Throughput over the micro batch size."""
