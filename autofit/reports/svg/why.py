"""Why the plan is faster: the way from the baseline to the recommended plan through measured plans."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE
from autofit.core.units import format_ratio, short_number
from autofit.reports.headline import value_in_words
from autofit.reports.report import PlanRow, Report
from autofit.reports.svg.chart import Chart, DataTable
from autofit.reports.svg.drawing import FONT, SMALL, Drawing, Format
from autofit.reports.svg.lettering import fitted, text_width
from autofit.reports.svg.marks import LINE
from autofit.reports.svg.scales import AxisScale

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


def draw(report: Report, form: Format) -> Drawing:
    """Returns a waterfall: a bar for each change from the throughput before it to the one after it."""
    steps, baseline = changes(report), report.baseline
    drawing = Drawing(form, _about(steps))
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


def _about(steps: Iterable[Change]) -> str:
    found = "; ".join(f"{step.name.removeprefix('+ ')} {step.effect}" for step in steps)
    return f"What each change brings, one after the other: {found}."


def table(report: Report) -> DataTable:
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
    draw=draw,
    table=table,
)
"""What each change of the recommended plan brings."""
