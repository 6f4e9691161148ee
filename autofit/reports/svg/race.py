"""The race as a forest plot: throughput of the finalists over the baseline, with intervals."""

from collections import Counter

from autofit.core.objective import TIE_RATIO
from autofit.core.recommendation import Ratio
from autofit.core.units import format_ratio, short_number
from autofit.reports.counting import interval_text
from autofit.reports.report import PlanRow, Racer, Report
from autofit.reports.svg.chart import Chart, DataTable
from autofit.reports.svg.drawing import FONT, SMALL, Drawing, Format
from autofit.reports.svg.lettering import Box, text_width, wrapped
from autofit.reports.svg.marks import LINE, point, short_label
from autofit.reports.svg.scales import AxisScale, nice_ticks
from autofit.search.choice import TIE_LOSS

_TIE_RATIO = TIE_LOSS * TIE_RATIO
"""Relative difference at which a plan with an exact measurement no longer ties with the fastest one."""
_FIGURES = 150.0
"""Room for a ratio and its interval at the right of a wide drawing."""


def draw(report: Report, form: Format) -> Drawing:
    """Returns the chart of a report with a race."""
    drawing = Drawing(form, _about(report))
    names = 0.0 if form.narrow else 280.0
    area = Box(names + 8, 42, form.width - (8 if form.narrow else _FIGURES + 12), 0)
    low, high = _span(report)
    x = AxisScale(low, high, area.left, area.right)
    heights = [_row_height(drawing, report, report.row(racer.rank)) for racer in report.race]
    bottom = area.top + 8 + sum(heights)
    _ground(drawing, report, x, area.top, bottom)
    for place, racer in enumerate(report.race):
        row, top = report.row(racer.rank), area.top + 8 + sum(heights[:place])
        middle = top + (heights[place] - 14 if form.narrow else heights[place] / 2)
        for ratio in racer.ratios:
            drawing.add("circle", class_="af-round", cx=x(ratio), cy=middle, r=3)
        style = "af-whisker-rec" if row.role == "recommended" else "af-whisker"
        style = "af-whisker-base" if row.is_baseline and row.role != "recommended" else style
        drawing.line(x(racer.ratio.low), middle, x(racer.ratio.high), middle, style)
        for end in (racer.ratio.low, racer.ratio.high):
            drawing.line(x(end), middle - 5, x(end), middle + 5, style)
        point(drawing, x(racer.ratio.value), middle, row)
        _name(drawing, report, racer, x, (top, middle))
    drawing.text(form.width, bottom + 38, f"throughput over the {_reference(report)}", "af-note", "end")
    drawing.height = bottom + 46
    return drawing


def _row_height(drawing: Drawing, report: Report, row: PlanRow) -> float:
    """Returns the height of a finalist; in a narrow drawing its name and its figures stand above its interval."""
    if not drawing.format.narrow:
        return 58.0
    return 52.0 + len(_lines(report, row, drawing.format.width)) * (LINE - 1)


def _lines(report: Report, row: PlanRow, width: float) -> list[str]:
    """Returns the name of a finalist. If it has to be cut, what fewer finalists have in common comes first."""
    lines = wrapped(_name_of(row), FONT, width, 3)
    if not lines[-1].endswith("…"):
        return lines
    common = Counter(part for racer in report.race for part in report.row(racer.rank).combination.split(", "))
    parts = sorted(row.combination.split(", "), key=lambda part: common[part])
    return wrapped(_name_of(row.model_copy(update={"combination": ", ".join(parts)})), FONT, width, 3)


def _reference(report: Report) -> str:
    """Returns what the finalists are compared with."""
    return "recommended plan" if report.race_reference == "recommended" else "baseline"


def _span(report: Report) -> tuple[float, float]:
    ends = [end for racer in report.race for end in (racer.ratio.low, racer.ratio.high, *racer.ratios)]
    low, high = min([1.0, *ends]), max([1.0, *ends])
    room = max(0.06 * (high - low), 0.01)
    return low - room, high + room


def _ground(drawing: Drawing, report: Report, x: AxisScale, top: float, bottom: float) -> None:
    """Draws the axis, the line of the baseline, and the range in which a plan ties with the fastest one."""
    fastest = max(1.0, *(racer.ratio.value for racer in report.race))
    tie = (x(fastest / (1 + _TIE_RATIO)), x(fastest))
    drawing.rect(tie[0], top, tie[1], bottom, "af-tie")
    for value in nice_ticks(x.low, x.high, 3 if drawing.format.narrow else 6):
        drawing.line(x(value), top, x(value), bottom, "af-grid")
        drawing.line(x(value), bottom, x(value), bottom + 5, "af-axis")
        drawing.text(x(value), bottom + 19, f"{short_number(value)}x", "af-note", "middle")
    drawing.line(x.start, bottom, x.end, bottom, "af-axis")
    drawing.line(x(1.0), top - 6, x(1.0), bottom, "af-axis")
    texts = [(x(1.0), f"{_reference(report)} 1.0x", 12.0), (sum(tie) / 2, f"tie margin {_TIE_RATIO:.1%}", 12.0)]
    near = abs(texts[0][0] - texts[1][0]) < 150
    for (at, text, y), drop in zip(texts, (0.0, 16.0 if near else 0.0), strict=True):
        half = text_width(text, SMALL) / 2
        middle = min(max(at, half), drawing.format.width - half)
        drawing.text(middle, y + drop + (0 if near else 16), text, "af-note", "middle")


def _crossed(report: Report, x: AxisScale, width: float) -> bool:
    """Returns whether the line of the reference or the tie margin crosses a text at the left edge."""
    fastest = max(1.0, *(racer.ratio.value for racer in report.race))
    return min(x(1.0), x(fastest / (1 + _TIE_RATIO))) < width + 4


def _name(drawing: Drawing, report: Report, racer: Racer, x: AxisScale, at: tuple[float, float]) -> None:
    """Writes the plan, and its ratio with the interval."""
    row, (top, middle) = report.row(racer.rank), at
    figures = format_ratio(racer.ratio.value) if racer.ratio.low == racer.ratio.high else str(racer.ratio)
    if drawing.format.narrow:
        for place, line in enumerate(_lines(report, row, drawing.format.width)):
            drawing.text(0, top + 20 + place * (LINE - 1), line)
        right = _crossed(report, x, text_width(figures, SMALL))
        drawing.text(drawing.format.width if right else 0, middle - 15, figures, "af-note", "end" if right else "")
        return
    lines = _lines(report, row, x.start - 8)
    for place, line in enumerate(lines):
        drawing.text(0, middle + 4.5 + place * (LINE - 2) - (len(lines) - 1) * (LINE - 2) / 2, line)
    drawing.text(drawing.format.width, middle + 4.5, figures, "af-label", "end")


def _name_of(row: PlanRow) -> str:
    names = [*(["Recommended"] if row.role == "recommended" else []), *(["Baseline"] if row.is_baseline else [])]
    return f"{' = '.join(names)}, {short_label(row)}" if names else short_label(row)


def _about(report: Report) -> str:
    texts = [f"{_name_of(report.row(racer.rank))}: {_words(racer.ratio)}." for racer in report.race]
    return f"Throughput of {len(report.race)} finalists over the {_reference(report)}. {' '.join(texts)}"


def _words(ratio: Ratio) -> str:
    return f"{format_ratio(ratio.value, sign='')}, interval {interval_text(ratio)}"


def table(report: Report) -> DataTable:
    """Returns the ratio, interval and number of pairs of each finalist."""
    rows = [
        (
            _name_of(report.row(racer.rank)),
            format_ratio(racer.ratio.value, 3),
            interval_text(racer.ratio, 3),
            str(racer.ratio.pairs),
            racer.note or "–",
        )
        for racer in report.race
    ]
    return DataTable(("plan", "ratio", "95 % interval", "pairs", "note"), tuple(rows))


RACE: Chart = Chart(
    kind="race",
    heading="The race",
    aid="Finalists took turns with the plan named at 1.0x. Each grey dot is one round of both. An interval that "
    "excludes 1.0 is a difference beyond the noise. A plan ties with the fastest one if the noise cannot separate them "
    f"and choosing it loses less than {_TIE_RATIO:.1%} on average (shaded); the baseline also ties with a plan that is "
    f"ahead of it by less than {TIE_RATIO:.0%}. Of the tied plans, one with the baseline's batch is recommended, else "
    "one with the smallest batch; then the one that needs less memory, then the one that changes less.",
    missing="no plans raced",
    available=lambda report: bool(report.race),
    draw=draw,
    table=table,
)
"""Paired throughput ratios of the finalists."""
