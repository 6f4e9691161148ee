"""Charts of the gain: what each change brings, when each answer came, and the race."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from autofit.core.objective import TIE_RATIO
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE
from autofit.core.units import format_ratio, short_number
from autofit.reports.markup import DataTable
from autofit.reports.report import PlanRow, Report
from autofit.reports.sentences import answer_times, answer_worth, duration_text, interval_text, value_in_words
from autofit.reports.svg.axes import (
    LINE,
    NOT_FROM_ZERO,
    AxisScale,
    axes,
    key,
    margin,
    nice_ticks,
    plan_keys,
    point,
    rate_ticks,
    short_label,
    span,
)
from autofit.reports.svg.drawing import FONT, SMALL, Box, Chart, Drawing, Format, fitted, text_width
from autofit.search.choice import TIE_LOSS
from autofit.terminal import wrapped

_BATCH = "batch"
_BAR, _GAP = 16.0, 10.0


@dataclass(frozen=True, slots=True)
class Change:
    """One step of the way from the baseline to the recommended plan.

    Attributes:
        name: what changes, in words. Changes that were only measured together are one step.
        row: the plan with this change and all before it.
        ratio: its throughput over that of the plan before.
        raced: whether both plans raced; otherwise the ratio is an estimate from separate probes.
    """

    name: str
    row: PlanRow
    ratio: float
    raced: bool

    @property
    def effect(self) -> str:
        """The ratio as it is shown; "about" marks an estimate from separate probes."""
        return format_ratio(self.ratio) if self.raced else f"about {format_ratio(self.ratio)}"


def changes(report: Report) -> list[Change]:
    """Returns the steps in the order of their effect, as far as the plans that were measured allow it.

    Of all ways through measured plans on which each plan has the changes of the one before, this is one with the most
    steps; of these, the one whose plans are the fastest from the beginning.
    """
    best, baseline = report.recommended, report.baseline
    if best is None or baseline is None or best is baseline or not (best.rate_per_s and baseline.rate_per_s):
        return []
    wanted = _changed(best, baseline)
    between = dict[frozenset[str], PlanRow]()
    for row in report.rows:  # fastest first
        made = _changed(row, baseline)
        if row.rate_per_s and made < wanted and all(_value(row, name) == _value(best, name) for name in made):
            between.setdefault(made, row)
    between |= {frozenset(): baseline, wanted: best}
    way = _longest(between, wanted)
    return [
        Change(
            _named(between[after], after - before, report),
            between[after],
            (between[after].rate_per_s or 0.0) / (between[before].rate_per_s or 1.0),
            all(_raced(between[each]) for each in (before, after)),
        )
        for before, after in pairwise(way)
    ]


def _longest(between: dict[frozenset[str], PlanRow], wanted: frozenset[str]) -> list[frozenset[str]]:
    """Returns the plans of the way, by their changes."""
    ways = dict[frozenset[str], list[frozenset[str]]]()

    def worth(way: Iterable[frozenset[str]]) -> tuple[int, list[float]]:
        rates = [between[each].rate_per_s or 0.0 for each in way]
        return len(rates), rates

    for made in sorted(between, key=len):
        earlier = [ways[other] for other in ways if other < made]
        ways[made] = [*max(earlier, key=worth, default=[]), made]
    return ways[wanted]


def _changed(row: PlanRow, baseline: PlanRow) -> frozenset[str]:
    """Returns the knobs whose values differ; the two of the batch are one change."""
    names = {name for name in row.values.keys() | baseline.values.keys() if _value(row, name) != _value(baseline, name)}
    batch = {MICRO_BATCH_SIZE, ACCUMULATION_STEPS}
    return frozenset(names - batch | ({_BATCH} if names & batch else set()))


def _value(row: PlanRow, name: str) -> object:
    return (row.micro_batch_size, row.accumulation_steps) if name == _BATCH else row.values.get(name)


def _raced(row: PlanRow) -> bool:
    return row.is_baseline or (row.gain is not None and row.gain.pairs > 0)


def _named(row: PlanRow, made: frozenset[str], report: Report) -> str:
    steps = f" × {row.accumulation_steps:,}" if row.accumulation_steps > 1 else ""
    batch = [f"micro batch {row.micro_batch_size:,}{steps}"] if _BATCH in made else []
    values = {name: row.values.get(name, "default") for name in sorted(made - {_BATCH})}
    words = [value_in_words(name, value, report.strategies) for name, value in values.items()]
    return " with ".join(["+ " + ", ".join(words), *batch]) if words else f"+ {batch[0]}"


def _why_draw(report: Report, form: Format) -> Drawing:
    """Returns a waterfall: a bar for each change from the throughput before it to the one after it."""
    steps, baseline = changes(report), report.baseline
    about = "; ".join(f"{step.name.removeprefix('+ ')} {step.effect}" for step in steps)
    drawing = Drawing(form, f"What each change brings, one after the other: {about}.")
    assert baseline is not None, "a report without a baseline has no such chart"
    before = baseline.rate_per_s or 0.0
    bars = [("baseline", 0.0, before, "af-bar-base", f"{short_number(before)} {report.unit}/s")]
    for step in steps:
        rate = step.row.rate_per_s or 0.0
        bars.append((step.name, before, rate, "af-bar-rec" if rate >= before else "af-bar-base", step.effect))
        before = rate
    bars.append(("recommended plan", 0.0, before, "af-bar-rec", f"{short_number(before)} {report.unit}/s"))
    names = min(max(text_width(name, FONT) for name, *_ in bars), 0.45 * form.width) + 14
    room = max(text_width(text, SMALL) for *_, text in bars) + 12
    x = AxisScale(0.0, max(max(bar[1:3]) for bar in bars), names, form.width - room)
    y = 2.0
    for name, start, end, style, text in bars:
        drawing.text(0, y + _BAR / 2 + 4.5, fitted(name, FONT, names - 10))
        low, high = sorted((x(start), x(end)))
        drawing.rect(low, y, max(high, low + 1), y + _BAR, style, 2)
        drawing.text(high + 6, y + _BAR / 2 + 4.5, text, "af-note")
        if name != "recommended plan":
            drawing.line(x(end), y + _BAR, x(end), y + _BAR + _GAP, "af-leader")
        y += _BAR + _GAP
    drawing.height = y
    return drawing


def _why_table(report: Report) -> DataTable:
    """Returns the steps with their throughput."""
    rows = [(step.name, short_number(step.row.rate_per_s or 0.0), step.effect) for step in changes(report)]
    return DataTable(("change", f"{report.unit}/s with it", "over the plan before"), tuple(rows))


WHY: Chart = Chart(
    kind="why",
    heading="Why it is faster",
    aid="Each bar adds one change to the plan above it. Changes in one line were only measured together. "
    '"about" marks an estimate from separate runs; the others were compared side by side.',
    missing="no plan was recommended that makes two changes which were measured one after the other",
    available=lambda report: len(changes(report)) > 1,
    draw=_why_draw,
    table=_why_table,
)
"""What each change of the recommended plan brings."""


_TIMES = (("h", 3600), ("min", 60), ("s", 1))


def _answers_draw(report: Report, form: Format) -> Drawing:
    """Returns the chart of a report with at least two answers: a staircase, with what the last one is worth."""
    drawing = Drawing(form, f"The answer of the search over time: {answer_times(report)}.")
    slow, fast = _answers_span(report)
    end_s = max(report.duration_s, report.answers[-1].at_s, 1.0)
    rates = rate_ticks(slow, fast, 4)
    top = key(drawing, plan_keys(report, {each.rank for each in report.answers}), 2) + 34
    area = Box(margin(rates), top, form.width - 14, top + 180)
    x, y = AxisScale(0.0, end_s, area.left, area.right), AxisScale(slow, fast, area.bottom, area.top)
    unit, size = next((name, size) for name, size in _TIMES if end_s >= 2 * size or size == 1)
    times = [(tick * size, f"{tick:,g} {unit}") for tick in nice_ticks(0.0, end_s / size, 8)]
    axes(drawing, area, (x, times, "since the search began"), (y, rates, f"{report.unit} per second"))
    corners = [(x(each.at_s), y(each.rate_per_s)) for each in report.answers]
    steps = [corner for (_, before), (left, at) in pairwise(corners) for corner in ((left, before), (left, at))]
    drawing.polyline([corners[0], *steps, (area.right, corners[-1][1])], "af-line-rec")
    for each, (left, at) in zip(report.answers, corners, strict=True):
        point(drawing, left, at, report.row(each.rank), "af-front")
    left, at = corners[-1]
    anchor = "end" if left > (area.left + area.right) / 2 else ""
    drawing.text(left, at - 12, answer_worth(report, report.answers[-1]), "af-strong", anchor)
    drawing.height = area.bottom + 46
    return drawing


def _answers_span(report: Report) -> tuple[float, float]:
    return span([each.rate_per_s for each in report.answers], 0.25)


def _answers_note(report: Report) -> str:
    """Returns why a step goes down, if one does, and where the axis starts."""
    falls = any(later.rate_per_s < earlier.rate_per_s for earlier, later in pairwise(report.answers))
    fell = ["A step goes down where a later proof failed, or where the race corrected a probe."] if falls else []
    return " ".join([*fell, *([NOT_FROM_ZERO] if _answers_span(report)[0] > 0 else [])])


def _answers_table(report: Report) -> DataTable:
    rows = [
        (
            short_label(report.row(each.rank)),
            duration_text(each.at_s),
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
    available=lambda report: len(report.answers) > 1,
    draw=_answers_draw,
    table=_answers_table,
    note=_answers_note,
)
"""Throughput of the answer over time."""


_TIE_RATIO = TIE_LOSS * TIE_RATIO
"""Relative difference at which a plan with an exact measurement no longer ties with the fastest one."""
_NAME, _FIGURES, _ROW, _TOP = 280.0, 150.0, 58.0, 42.0
"""Room for the name of a finalist, and for its ratio and interval; height of its row; where the first one begins."""
_NAME_LETTERS = 34
"""Number of letters in a line of its name."""


def _race_draw(report: Report, form: Format) -> Drawing:
    """Returns the chart of a report with a race."""
    drawing = Drawing(form, _race_about(report))
    ends = [1.0, *(end for racer in report.race for end in (racer.ratio.low, racer.ratio.high, *racer.ratios))]
    room = max(0.06 * (max(ends) - min(ends)), 0.01)
    x = AxisScale(min(ends) - room, max(ends) + room, _NAME + 8, form.width - _FIGURES - 12)
    bottom = _TOP + 8 + _ROW * len(report.race)
    _ground(drawing, report, x, bottom)
    for at, racer in enumerate(report.race):
        row, middle = report.row(racer.rank), _TOP + 8 + _ROW * (at + 0.5)
        for ratio in racer.ratios:
            drawing.add("circle", class_="af-round", cx=x(ratio), cy=middle, r=3)
        style = "af-whisker-base" if row.is_baseline else "af-whisker"
        style = "af-whisker-rec" if row.role == "recommended" else style
        drawing.line(x(racer.ratio.low), middle, x(racer.ratio.high), middle, style)
        for end in (racer.ratio.low, racer.ratio.high):
            drawing.line(x(end), middle - 5, x(end), middle + 5, style)
        point(drawing, x(racer.ratio.value), middle, row)
        lines = _name_lines(report, row)
        for place, line in enumerate(lines):
            drawing.text(0, middle + 4.5 + (place - (len(lines) - 1) / 2) * (LINE - 2), line)
        figures = format_ratio(racer.ratio.value) if racer.ratio.low == racer.ratio.high else str(racer.ratio)
        drawing.text(form.width, middle + 4.5, figures, "af-label", "end")
    drawing.text(form.width, bottom + 38, f"throughput over the {_reference(report)}", "af-note", "end")
    drawing.height = bottom + 46
    return drawing


def _name_lines(report: Report, row: PlanRow) -> list[str]:
    """Returns the name of a finalist. If it has to be cut, what fewer finalists have in common comes first."""
    name = _name_of(row)
    if len(wrapped(name, _NAME_LETTERS)) > 3:
        common = Counter(part for racer in report.race for part in report.row(racer.rank).combination.split(", "))
        parts = sorted(row.combination.split(", "), key=lambda part: common[part])
        name = _name_of(row.model_copy(update={"combination": ", ".join(parts)}))
    first, second, *rest = [*wrapped(name, _NAME_LETTERS), "", ""]
    return [fitted(line, FONT, _NAME) for line in (first, second, " ".join(rest).strip()) if line]


def _reference(report: Report) -> str:
    """Returns what the finalists are compared with."""
    return "recommended plan" if report.race_reference == "recommended" else "baseline"


def _ground(drawing: Drawing, report: Report, x: AxisScale, bottom: float) -> None:
    """Draws the axis, the line of the baseline, and the range in which a plan ties with the fastest one."""
    fastest = max(1.0, *(racer.ratio.value for racer in report.race))
    tie = (x(fastest / (1 + _TIE_RATIO)), x(fastest))
    drawing.rect(tie[0], _TOP, tie[1], bottom, "af-tie")
    for value in nice_ticks(x.low, x.high, 6):
        drawing.line(x(value), _TOP, x(value), bottom, "af-grid")
        drawing.line(x(value), bottom, x(value), bottom + 5, "af-axis")
        drawing.text(x(value), bottom + 19, f"{short_number(value)}x", "af-note", "middle")
    drawing.line(x.start, bottom, x.end, bottom, "af-axis")
    drawing.line(x(1.0), _TOP - 6, x(1.0), bottom, "af-axis")
    texts = [(x(1.0), f"{_reference(report)} 1.0x", 12.0), (sum(tie) / 2, f"tie margin {_TIE_RATIO:.1%}", 28.0)]
    for at, text, y in texts:
        half = text_width(text, SMALL) / 2
        drawing.text(min(max(at, half), drawing.format.width - half), y, text, "af-note", "middle")


def _name_of(row: PlanRow) -> str:
    names = [*(["Recommended"] if row.role == "recommended" else []), *(["Baseline"] if row.is_baseline else [])]
    return f"{' = '.join(names)}, {short_label(row)}" if names else short_label(row)


def _race_about(report: Report) -> str:
    texts = [f"Throughput of {len(report.race)} finalists over the {_reference(report)}."]
    for racer in report.race:
        value, interval = format_ratio(racer.ratio.value, sign=""), interval_text(racer.ratio)
        texts.append(f"{_name_of(report.row(racer.rank))}: {value}, interval {interval}.")
    return " ".join(texts)


def _race_table(report: Report) -> DataTable:
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
    return DataTable(("plan", f"over the {_reference(report)}", "95 % interval", "pairs", "note"), tuple(rows))


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
    draw=_race_draw,
    table=_race_table,
)
"""Paired throughput ratios of the finalists."""
