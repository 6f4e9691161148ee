"""Charts of the gain: what each change brings, when each answer came, and the race."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from autofit.core.answer import Ratio
from autofit.core.objective import TIE_RATIO
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE
from autofit.core.units import format_ratio, short_number
from autofit.reports.markup import DataTable
from autofit.reports.report import PlanRow, Racer, Report
from autofit.reports.sentences import answer_times, answer_worth, interval_text, seconds_text, value_in_words
from autofit.reports.svg.axes import (
    LINE,
    NOT_FROM_ZERO,
    AxisScale,
    axes,
    duration_ticks,
    key,
    margin,
    nice_ticks,
    plan_keys,
    point,
    rate_ticks,
    short_label,
    span,
)
from autofit.reports.svg.drawing import (
    FONT,
    SMALL,
    Box,
    Chart,
    Drawing,
    Format,
    fitted,
    place_label,
    text_width,
    wrapped,
)
from autofit.search.choice import TIE_LOSS

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
    drawing = Drawing(form, _why_about(steps))
    assert baseline is not None, "a report without a baseline has no such chart"
    before = baseline.rate_per_s or 0.0
    bars = [("baseline", 0.0, before, "af-bar-base", f"{short_number(before)} {report.unit}/s")]
    for step in steps:
        rate = step.row.rate_per_s or 0.0
        bars.append((step.name, before, rate, "af-bar-rec" if rate >= before else "af-bar-base", step.effect))
        before = rate
    bars.append(("recommended plan", 0.0, before, "af-bar-rec", f"{short_number(before)} {report.unit}/s"))
    names = 0.0 if form.narrow else min(max(text_width(name, FONT) for name, *_ in bars), 0.45 * form.width) + 14
    room = max(text_width(text, SMALL) for *_, text in bars) + 12
    x = AxisScale(0.0, max(max(bar[1:3]) for bar in bars), names, form.width - room)
    y = 2.0
    for name, start, end, style, text in bars:
        if form.narrow:
            drawing.text(0, y + 11, fitted(name, FONT, form.width))
            y += LINE
        else:
            drawing.text(0, y + _BAR / 2 + 4.5, fitted(name, FONT, names - 10))
        low, high = sorted((x(start), x(end)))
        drawing.rect(low, y, max(high, low + 1), y + _BAR, style, 2)
        drawing.text(high + 6, y + _BAR / 2 + 4.5, text, "af-note")
        if name != "recommended plan":
            drawing.line(x(end), y + _BAR, x(end), y + _BAR + _GAP + (LINE if form.narrow else 0), "af-leader")
        y += _BAR + _GAP
    drawing.height = y
    return drawing


def _why_about(steps: Iterable[Change]) -> str:
    found = "; ".join(f"{step.name.removeprefix('+ ')} {step.effect}" for step in steps)
    return f"What each change brings, one after the other: {found}."


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


def _answers_draw(report: Report, form: Format) -> Drawing:
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
        box = place_label(left, top, width, LINE - 4, area, [*marks, *written, *written])
        if not any(box.overlaps(other) for other in written):
            written.append(box)
            drawing.text(box.left, box.bottom - 1, text, "af-strong" if last else "af-note")


def _note(report: Report) -> str:
    """Returns why a step goes down, if one does, and where the axis starts."""
    falls = any(later.rate_per_s < earlier.rate_per_s for earlier, later in pairwise(report.answers))
    fell = "A step goes down where a later proof failed, or where the race corrected a probe."
    low, _ = span([each.rate_per_s for each in report.answers], 0.12)
    return " ".join([*([fell] if falls else []), *([NOT_FROM_ZERO] if low > 0 else [])])


def _answers_table(report: Report) -> DataTable:
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
    draw=_answers_draw,
    table=_answers_table,
)
"""Throughput of the answer over time."""


_TIE_RATIO = TIE_LOSS * TIE_RATIO
"""Relative difference at which a plan with an exact measurement no longer ties with the fastest one."""
_FIGURES = 150.0
"""Room for a ratio and its interval at the right of a wide drawing."""


def _race_draw(report: Report, form: Format) -> Drawing:
    """Returns the chart of a report with a race."""
    drawing = Drawing(form, _race_about(report))
    names = 0.0 if form.narrow else 280.0
    area = Box(names + 8, 42, form.width - (8 if form.narrow else _FIGURES + 12), 0)
    low, high = _span(report)
    x = AxisScale(low, high, area.left, area.right)
    heights = [_row_height(drawing, report, report.row(racer.rank)) for racer in report.race]
    bottom = area.top + 8 + sum(heights)
    _ground(drawing, report, x, area.top, bottom)
    for at, racer in enumerate(report.race):
        row, top = report.row(racer.rank), area.top + 8 + sum(heights[:at])
        middle = top + (heights[at] - 14 if form.narrow else heights[at] / 2)
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


def _race_about(report: Report) -> str:
    texts = [f"{_name_of(report.row(racer.rank))}: {_words(racer.ratio)}." for racer in report.race]
    return f"Throughput of {len(report.race)} finalists over the {_reference(report)}. {' '.join(texts)}"


def _words(ratio: Ratio) -> str:
    return f"{format_ratio(ratio.value, sign='')}, interval {interval_text(ratio)}"


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
