"""Charts of throughput: against peak memory, over the micro batch size, and over the time of the search."""

from itertools import pairwise

from autofit.core.objective import TIE_RATIO
from autofit.core.units import format_bytes, short_number
from autofit.reports.markup import DataTable
from autofit.reports.report import PlanRow, Report, SpeedCurve
from autofit.reports.sentences import answer_times, answer_worth, counted, duration_text
from autofit.reports.svg.axes import (
    AxisScale,
    axes,
    byte_ticks,
    mark,
    nice_ticks,
    plan_keys,
    point,
    short_label,
    shown_budget,
    size_ticks,
    span,
    speed_area,
    thinned,
)
from autofit.reports.svg.drawing import SMALL, Box, Chart, Drawing, text_width
from autofit.search.choice import SAME_MEMORY_RATIO

_BEYOND = 1.15
"""The axis of memory ends at this many budgets at most; plans that need more are counted at its end."""


def _front(report: Report, titles: bool) -> Drawing | None:
    rows = [row for row in report.rows if row.rate_per_s is not None and row.peak_bytes]
    if not rows:
        return None
    peaks = [(float(row.peak_bytes or row.expected_bytes or 0), row) for row in report.rows if row.rate_per_s is None]
    refused = [(peak, row) for peak, row in peaks if peak > report.budget_bytes]
    drawing = Drawing(_front_about(report, rows), titles)
    keys = [*_front_keys(report, rows), *([("af-pt af-x", "did not fit")] if refused else [])]
    lane = 24.0 if refused else 0.0
    area, y, rates = speed_area(drawing, keys, [row.rate_per_s or 0.0 for row in rows], 330, lane=lane)
    low, high = span([float(row.peak_bytes or 0) for row in rows], 0.1)
    high = max(high, report.budget_bytes * _BEYOND) if shown_budget(report, high) else high
    x = AxisScale(low, high, area.left, area.right)
    _budget(drawing, report, area, x)
    axes(drawing, area, (x, byte_ticks(low, high, 7), "peak memory"), (y, rates, f"{report.unit} per second"))
    if refused:
        _refusals(drawing, refused, area, x)
    line = list[tuple[float, float]]()  # a staircase from the lightest plan to the fastest one
    for peak, rate in sorted((row.peak_bytes or 0, row.rate_per_s or 0.0) for row in rows if row.on_front):
        line += [(x(peak), line[-1][1])] if line else []
        line.append((x(peak), y(rate)))
    if len(line) > 1:
        drawing.polyline(line, "af-frontier")
    for row, at_x, at_y in thinned([(row, x(row.peak_bytes or 0), y(row.rate_per_s or 0.0)) for row in rows]):
        point(drawing, at_x, at_y, row, "af-front" if row.on_front else "")
    return drawing


def _front_keys(report: Report, rows: list[PlanRow]) -> list[tuple[str, str]]:
    others = [row for row in rows if not row.role and not row.is_baseline]
    found = plan_keys(report, {row.rank for row in rows})
    found += [("af-pt af-front", "on the Pareto front")] if any(row.on_front for row in others) else []
    return [*found, ("af-pt", "other plan")] if any(not row.on_front for row in others) else found


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
    drawing.line(area.left, area.bottom - 24, area.right, area.bottom - 24, "af-grid")
    for row, at_x, at_y in thinned([(row, x(peak), area.bottom - 11) for peak, row in refused if peak <= x.high]):
        point(drawing, at_x, at_y, row, "af-x")
    if beyond := sum(peak > x.high for peak, _ in refused):
        text = f"{beyond} did not fit and {'is' if beyond == 1 else 'are'} beyond this axis"
        drawing.text(area.left + 6, area.bottom - 7, text, "af-bad")


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
    draw=_front,
)


MOST_CURVES = 7
"""Number of curves drawn: as many as there are colours and dashes that a reader can tell apart."""


def _curves(report: Report, titles: bool) -> Drawing | None:
    if not report.curves:
        return None
    curves = _shown(report)
    points = [(row.micro_batch_size, row.rate_per_s or 0.0) for curve in curves for row in _rows(report, curve)]
    size, best = max(points, key=lambda found: found[1])
    drawing = Drawing(
        f"Throughput over the micro batch size for {len(curves)} combinations. The highest is "
        f"{short_number(best)} {report.unit} per second at micro batch {size}.",
        titles,
        table=_curves_table(report, curves),
    )
    series = _series(report, curves)
    misses = [miss for curve in curves if (miss := _miss(report, curve))]
    keys = [(f"af-line af-s{number}", curve.combination) for curve, number in zip(curves, series, strict=True)]
    keys += plan_keys(report, {rank for curve in curves for rank in curve.ranks})
    raced = _raced(report)
    if raced and any(not row.role and row.rank not in raced for curve in curves for row in _rows(report, curve)):
        keys.append(("af-pt af-hollow", "did not race: by its probe"))
        drawing.note = "Hollow points did not race: their throughput is that of a probe and less certain."
    lane = 26.0 if misses else 0.0
    area, y, rates = speed_area(drawing, keys, [rate for _, rate in points], 320, lane=lane, right=30)
    sizes = [*(size for size, _ in points), *misses]  # a size that did not fit is never the smallest
    x = AxisScale(max(min(sizes), 1) / 1.15, max(*sizes, 1) * 1.15, area.left, area.right, log2=True)
    ticks = size_ticks(sizes, x, SMALL, 9)
    axes(drawing, area, (x, ticks, "micro batch size"), (y, rates, f"{report.unit} per second"))
    if misses:
        drawing.line(area.left, y.start, area.right, y.start, "af-grid")
        drawing.text(area.left + 6, area.bottom - 8, "did not fit", "af-bad")
    _lines(drawing, report, list(zip(curves, series, strict=True)), x, y)
    return drawing


def _shown(report: Report) -> list[SpeedCurve]:
    """Returns the fastest curves, with that of the baseline, and of the recommended plan, among them."""
    wanted = {row.combination for row in (report.recommended, report.baseline) if row is not None}
    first = sorted(report.curves, key=lambda curve: curve.combination not in wanted)[:MOST_CURVES]
    return [curve for curve in report.curves if curve in first]


def _rows(report: Report, curve: SpeedCurve) -> list[PlanRow]:
    return [report.row(rank) for rank in curve.ranks]


def _miss(report: Report, curve: SpeedCurve) -> int | None:
    """Returns the smallest size that did not fit and is larger than those that were measured."""
    largest = max(row.micro_batch_size for row in _rows(report, curve))
    return min((size for size in curve.refused_sizes if size > largest), default=None)


def _raced(report: Report) -> set[int]:
    """Returns the ranks of the plans that raced; the throughput of the others is that of their probe."""
    reference, found = report.row_of(report.race_reference), {racer.rank for racer in report.race}
    return found | {reference.rank} if found and reference is not None else found


def _series(report: Report, curves: list[SpeedCurve]) -> list[int]:
    """Returns the number of the style of each curve: 1 for that of the recommended plan, 2 for that of the baseline."""
    fixed = {row.combination: number for number, row in ((2, report.baseline), (1, report.recommended)) if row}
    free = iter(number for number in range(1, MOST_CURVES + 3) if number not in fixed.values())
    return [fixed[curve.combination] if curve.combination in fixed else next(free) for curve in curves]


def _lines(drawing: Drawing, report: Report, curves: list[tuple[SpeedCurve, int]], x: AxisScale, y: AxisScale) -> None:
    """Draws the lines, then their points, and in the lane below the sizes that did not fit."""
    placed, styles, raced = list[tuple[PlanRow, float, float]](), dict[int, int](), _raced(report)
    for place, (curve, series) in enumerate(curves):
        line = [(row, x(row.micro_batch_size), y(row.rate_per_s or 0.0)) for row in _rows(report, curve)]
        if len(line) > 1:
            drawing.polyline([(left, top) for _, left, top in line], f"af-line af-s{series}")
        placed += line
        styles |= dict.fromkeys(curve.ranks, series)
        if miss := _miss(report, curve):  # beside each other, since several curves may end at one size
            mark(drawing, x(miss) + 9 * (place - 2), y.start + 14, f"af-miss af-x af-s{series}")
    for row, at_x, at_y in thinned(placed):
        hollow = " af-hollow" if raced and row.rank not in raced else ""
        point(drawing, at_x, at_y, row, f"af-dot af-s{styles[row.rank]}{hollow}")


def _curves_table(report: Report, curves: list[SpeedCurve]) -> DataTable:
    """Returns each measured point, and the first size that did not fit."""
    rows = list[tuple[str, ...]]()
    for curve in curves:
        rows += [
            (curve.combination, f"{row.micro_batch_size:,}", short_number(row.rate_per_s or 0.0))
            for row in _rows(report, curve)
        ]
        miss = _miss(report, curve)
        rows += [(curve.combination, f"{miss:,}", "did not fit")] if miss else []
    return DataTable(("combination", "micro batch size", f"{report.unit}/s"), tuple(rows))


CURVES: Chart = Chart(
    kind="curves",
    heading="Speed by micro batch size",
    aid="Where a line is flat, a larger micro batch costs memory and brings no speed. The horizontal axis is "
    "logarithmic.",
    missing="no combination was measured at two micro batch sizes",
    draw=_curves,
)


_TIMES = (("h", 3600), ("min", 60), ("s", 1))


def _answers(report: Report, titles: bool) -> Drawing | None:
    """Returns a staircase of the answers, with what the last one is worth."""
    answers = report.answers
    if len(answers) < 2:
        return None
    about = f"The answer of the search over time: {answer_times(report)}."
    drawing = Drawing(about, titles, table=_answers_table(report))
    if any(later.rate_per_s < earlier.rate_per_s for earlier, later in pairwise(answers)):
        drawing.note = "A step goes down where a later proof failed, or where the race corrected a probe."
    keys, speeds = plan_keys(report, {each.rank for each in answers}), [each.rate_per_s for each in answers]
    area, y, rates = speed_area(drawing, keys, speeds, 180, 4, room=0.25)
    end_s = max(report.duration_s, answers[-1].at_s, 1.0)
    x = AxisScale(0.0, end_s, area.left, area.right)
    unit, size = next((name, size) for name, size in _TIMES if end_s >= 2 * size or size == 1)
    times = [(tick * size, f"{tick:,g} {unit}") for tick in nice_ticks(0.0, end_s / size, 8)]
    axes(drawing, area, (x, times, "since the search began"), (y, rates, f"{report.unit} per second"))
    corners = [(x(each.at_s), y(each.rate_per_s)) for each in answers]
    steps = [corner for (_, before), (left, at) in pairwise(corners) for corner in ((left, before), (left, at))]
    drawing.polyline([corners[0], *steps, (area.right, corners[-1][1])], "af-line-rec")
    for each, (left, at) in zip(answers, corners, strict=True):
        point(drawing, left, at, report.row(each.rank), "af-front")
    left, at = corners[-1]
    anchor = "end" if left > (area.left + area.right) / 2 else ""
    drawing.text(left, at - 12, answer_worth(report, answers[-1]), "af-strong", anchor)
    return drawing


def _answers_table(report: Report) -> DataTable:
    rows = (
        (report.row(each.rank), duration_text(each.at_s), short_number(each.rate_per_s), answer_worth(report, each))
        for each in report.answers
    )
    head = ("answer", "after", f"{report.unit}/s", "over the baseline")
    return DataTable(head, tuple((short_label(row), *texts) for row, *texts in rows))


ANSWERS: Chart = Chart(
    kind="answers",
    heading="When each answer came",
    aid="At each moment, the best plan that was proven and whose gradient was checked. It is what the search would "
    "have returned if it had ended then.",
    missing="the search had fewer than two answers",
    draw=_answers,
)
