"""Answers over time: the throughput that the search would have returned at each moment, as a step line."""

from itertools import pairwise

from autofit.core.units import short_number
from autofit.reports.counting import answer_times, answer_worth, seconds_text
from autofit.reports.report import Report
from autofit.reports.svg.chart import Chart, DataTable
from autofit.reports.svg.drawing import FONT, SMALL, Drawing, Format
from autofit.reports.svg.lettering import Box, place, text_width
from autofit.reports.svg.marks import LINE, NOT_FROM_ZERO, axes, key, margin, plan_keys, point, short_label
from autofit.reports.svg.scales import AxisScale, duration_ticks, rate_ticks, span


def draw(report: Report, form: Format) -> Drawing:
    """Returns the chart of a report with at least two answers."""
    drawing = Drawing(form, f"The answer of the search over time: {answer_times(report)}.")
    rates = [each.rate_per_s for each in report.answers]
    slow, fast = span(rates, 0.12)
    end_s = max(report.duration_s, report.answers[-1].at_s, 1.0)
    ticks = rate_ticks(slow, fast, 4)
    keys = plan_keys(report, {each.rank for each in report.answers})
    top = key(drawing, keys, 2) + 34 if keys else 30.0
    area = Box(margin(ticks), top, form.width - 14, top + (150 if form.narrow else 180))
    x, y = AxisScale(0, end_s, area.left, area.right), AxisScale(slow, fast, area.bottom, area.top)
    seconds = duration_ticks(end_s, 4 if form.narrow else 8)
    axes(drawing, area, (x, seconds, "since the search began"), (y, ticks, f"{report.unit} per second"))
    corners = [(x(each.at_s), y(rate)) for each, rate in zip(report.answers, rates, strict=True)]
    line = [corners[0]]
    for (_, before), (left, height) in pairwise(corners):
        line += [(left, before), (left, height)]
    line.append((area.right, corners[-1][1]))
    drawing.polyline(line, "af-line-rec")
    for each, (left, height) in zip(report.answers, corners, strict=True):
        point(drawing, left, height, report.row(each.rank), "af-front")
    _labels(drawing, report, corners, line, area)
    drawing.height = area.bottom + 46
    return drawing


def _labels(
    drawing: Drawing, report: Report, corners: list[tuple[float, float]], line: list[tuple[float, float]], area: Box
) -> None:
    """Writes what each answer is worth beside its step, the last one first; one without room has none."""
    marks = [Box(left - 7, top - 7, left + 7, top + 7) for left, top in corners]
    marks += [Box(min(a, c), min(b, d) - 1, max(a, c), max(b, d) + 1) for (a, b), (c, d) in pairwise(line)]
    written = list[Box]()
    for each, (left, top) in reversed(list(zip(report.answers, corners, strict=True))):
        text, last = answer_worth(report, each), not written
        width = text_width(text, FONT if last else SMALL) * (1.08 if last else 1.0)
        box = place(left, top, width, LINE - 4, area, [*marks, *written, *written])
        if not any(box.overlaps(other) for other in written):
            written.append(box)
            drawing.text(box.left, box.bottom - 1, text, "af-strong" if last else "af-note")


def _note(report: Report) -> str:
    """Returns why a step goes down, if one does, and where the axis starts."""
    falls = any(later.rate_per_s < earlier.rate_per_s for earlier, later in pairwise(report.answers))
    fell = "A step goes down where a later proof failed, or where the race corrected a probe."
    low, _ = span([each.rate_per_s for each in report.answers], 0.12)
    return " ".join([*([fell] if falls else []), *([NOT_FROM_ZERO] if low > 0 else [])])


def table(report: Report) -> DataTable:
    """Returns when each answer came, and how fast it is."""
    rows = [
        (
            short_label(report.row(each.rank)),
            seconds_text(each.at_s),
            short_number(each.rate_per_s),
            answer_worth(report, each),
        )
        for each in report.answers
    ]
    return DataTable(("answer", "after", f"{report.unit}/s", "over the baseline"), tuple(rows))


ANSWERS: Chart = Chart(
    kind="answers",
    heading="When each answer came",
    aid="At each moment, the best plan that was proven and whose gradient was checked. It is what the search would "
    "have returned if it had ended then.",
    missing="the search had fewer than two answers",
    note=_note,
    available=lambda report: len(report.answers) > 1,
    draw=draw,
    table=table,
)
"""Throughput of the answer over time."""
