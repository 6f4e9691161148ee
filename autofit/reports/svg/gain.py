"""Charts of the gain: what each change brings, and the race."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

from autofit.core.objective import TIE_RATIO
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE
from autofit.core.units import format_ratio, short_number
from autofit.reports.markup import DataTable
from autofit.reports.report import PlanRow, Report
from autofit.reports.sentences import interval_text, value_in_words
from autofit.reports.svg.axes import LINE, AxisScale, nice_ticks, point, short_label
from autofit.reports.svg.drawing import FONT, SMALL, WIDTH, Chart, Drawing, fitted, text_width
from autofit.search.choice import TIE_LOSS
from autofit.terminal import wrapped

_BATCH = "batch"
_BAR, _GAP = 16.0, 10.0


@dataclass(frozen=True, slots=True)
class GainStep:
    """One step of the way from the baseline to the recommended plan.

    Attributes:
        name: what changes, in words. Changes that were only measured together are one step.
        rate_per_s: throughput with this change and all before it.
        ratio: that over the throughput of the plan before.
        raced: whether both plans raced; otherwise the ratio is an estimate from separate probes.
    """

    name: str
    rate_per_s: float
    ratio: float
    raced: bool

    @property
    def effect(self) -> str:
        """The ratio as it is shown; "about" marks an estimate from separate probes."""
        return format_ratio(self.ratio) if self.raced else f"about {format_ratio(self.ratio)}"


def changes(report: Report) -> list[GainStep]:
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
    ways = dict[frozenset[str], list[frozenset[str]]]()

    def worth(way: list[frozenset[str]]) -> tuple[int, list[float]]:
        return len(way), [between[made].rate_per_s or 0.0 for made in way]

    for made in sorted(between, key=len):
        earlier = [ways[other] for other in ways if other < made]
        ways[made] = [*max(earlier, key=worth, default=[]), made]
    found = list[GainStep]()
    for before, after in pairwise(ways[wanted]):
        old, new = between[before], between[after]
        rate = new.rate_per_s or 0.0
        raced = all(row.is_baseline or (row.gain and row.gain.pairs > 0) for row in (old, new))
        found.append(GainStep(_named(new, after - before, report), rate, rate / (old.rate_per_s or 1.0), raced))
    return found


def _changed(row: PlanRow, baseline: PlanRow) -> frozenset[str]:
    """Returns the knobs whose values differ; the two of the batch are one change."""
    names = {name for name in row.values.keys() | baseline.values.keys() if _value(row, name) != _value(baseline, name)}
    batch = {MICRO_BATCH_SIZE, ACCUMULATION_STEPS}
    return frozenset(names - batch | ({_BATCH} if names & batch else set()))


def _value(row: PlanRow, name: str) -> object:
    return (row.micro_batch_size, row.accumulation_steps) if name == _BATCH else row.values.get(name)


def _named(row: PlanRow, made: frozenset[str], report: Report) -> str:
    steps = f" × {row.accumulation_steps:,}" if row.accumulation_steps > 1 else ""
    batch = [f"micro batch {row.micro_batch_size:,}{steps}"] if _BATCH in made else []
    values = {name: row.values.get(name, "default") for name in sorted(made - {_BATCH})}
    words = [value_in_words(name, value, report.strategies) for name, value in values.items()]
    return " with ".join(["+ " + ", ".join(words), *batch]) if words else f"+ {batch[0]}"


def _why(report: Report, titles: bool) -> Drawing | None:
    """Returns a waterfall: a bar for each change from the throughput before it to the one after it."""
    steps, baseline = changes(report), report.baseline
    if len(steps) < 2 or baseline is None:
        return None
    about = "; ".join(f"{step.name.removeprefix('+ ')} {step.effect}" for step in steps)
    rows = tuple((step.name, short_number(step.rate_per_s), step.effect) for step in steps)
    table = DataTable(("change", f"{report.unit}/s with it", "over the plan before"), rows)
    drawing = Drawing(f"What each change brings, one after the other: {about}.", titles, table=table)
    before = baseline.rate_per_s or 0.0
    bars = [("baseline", 0.0, before, "af-bar-base", f"{short_number(before)} {report.unit}/s")]
    for step in steps:
        style = "af-bar-rec" if step.rate_per_s >= before else "af-bar-base"
        bars.append((step.name, before, step.rate_per_s, style, step.effect))
        before = step.rate_per_s
    bars.append(("recommended plan", 0.0, before, "af-bar-rec", f"{short_number(before)} {report.unit}/s"))
    names = min(max(text_width(name, FONT) for name, *_ in bars), 0.45 * WIDTH) + 14
    room = max(text_width(text, SMALL) for *_, text in bars) + 12
    x = AxisScale(0.0, max(max(bar[1:3]) for bar in bars), names, WIDTH - room)
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


WHY: Chart = Chart(
    kind="why",
    heading="Why it is faster",
    aid="Each bar adds one change to the plan above it. Changes in one line were only measured together. "
    '"about" marks an estimate from separate runs; the others were compared side by side.',
    missing="no plan was recommended that makes two changes which were measured one after the other",
    draw=_why,
)


_TIE_RATIO = TIE_LOSS * TIE_RATIO
"""Relative difference at which a plan with an exact measurement no longer ties with the fastest one."""
_NAME, _FIGURES, _ROW, _TOP = 280.0, 150.0, 58.0, 42.0
"""Room for the name of a finalist, and for its ratio and interval; height of its row; where the first one begins."""
_NAME_LETTERS = 34
"""Number of letters in a line of its name."""


def _race(report: Report, titles: bool) -> Drawing | None:
    if not report.race:
        return None
    drawing = Drawing(_race_about(report), titles, table=_race_table(report))
    ends = [1.0, *(end for racer in report.race for end in (racer.ratio.low, racer.ratio.high, *racer.ratios))]
    room = max(0.06 * (max(ends) - min(ends)), 0.01)
    x = AxisScale(min(ends) - room, max(ends) + room, _NAME + 8, WIDTH - _FIGURES - 12)
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
        drawing.text(WIDTH, middle + 4.5, figures, "af-label", "end")
    drawing.text(WIDTH, bottom + 38, f"throughput over the {_reference(report)}", "af-note", "end")
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
        drawing.text(min(max(at, half), WIDTH - half), y, text, "af-note", "middle")


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
    draw=_race,
)
