"""A report as Markdown, for a pull request or a job summary. Text from the user's code is never read as markup."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from autofit.core.units import format_bytes, format_duration, format_ratio, short_number
from autofit.reports.report import WHAT_EACH_DOES, PlanRow, Report
from autofit.reports.sentences import RATIOS, moment, runs, verdict
from autofit.reports.summary import EVALUATION
from autofit.reports.svg import CHARTS
from autofit.reports.svg.drawing import WIDE, Chart
from autofit.reports.svg.gain import WHY
from autofit.reports.svg.speed import FRONT

MARK = "<!-- autofit report -->"
"""First line of every Markdown report, by which an earlier one is recognised."""
MOST_ROWS, MOST_ITEMS = 25, 15
"""Maximum number of rows of a table and of items of a list: a comment on GitHub has at most 65,536 characters."""
MOST_OMISSIONS = 10
"""Maximum number of combinations without a measurement: there are many of them, and few are of interest."""
MOST_CELL = 160
"""Maximum length of a text in a table or list."""
MOST_FAILURE = 4000
"""Maximum length of the message of a failed search."""
_SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_AT_START = re.compile(r"^([#+=>-]|[0-9]+(?=[.)](?:\s|$)))")
_LINKS = re.compile(r"(@|#|://|\bwww\.)")


def to_markdown(report: Report) -> str:
    """Returns a report as Markdown that GitHub shows."""
    sections = (
        _charts(report, CHARTS[:2]), _plans(report), _notes(report), _charts(report, CHARTS[2:]), _gates(report),
        _left_out(report), _use(report), _environment(report),
    )  # fmt: skip
    head = [MARK, f"# autofit: {text(report.title)}", "", f"**{text(report.headline, 600)}**", ""]
    head += [text(report.chosen, 600), ""] if report.chosen else []
    head += [text(report.failure, MOST_FAILURE), ""] if report.failure else []
    return "\n".join([*head, *(line for section in sections for line in section)]).rstrip() + "\n"


def text(given: str, most: int = MOST_CELL) -> str:
    """Returns a text so that Markdown shows it as it is, on one line, cut to `most` characters before escaping."""
    flat = " ".join(given.split())
    flat = flat if len(flat) <= most else f"{flat[: most - 2]}.."
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    flat = _AT_START.sub(r"\\\1" if not flat[:1].isdigit() else r"\1\\", _SPECIAL.sub(r"\\\g<0>", flat))
    return _LINKS.sub(lambda found: f"{found[0][:1]}<!-- -->{found[0][1:]}", flat)


def _charts(report: Report, charts: Sequence[Chart]) -> Iterator[str]:
    """Yields the values of each chart as a table; as points of text, or a sentence, where the plans have them all."""
    for chart in charts:
        if not chart.available(report):
            continue
        yield from (f"## {chart.heading}", "")
        values, drawn = chart.table(report), _scatter(report) if chart is FRONT else ""
        if values is not None:
            yield from (chart.aid, "") if chart is WHY else ()
            rows = [[text(cell) for cell in row] for row in values.rows]
            yield from table([text(name) for name in values.head], rows, "rows")
        elif drawn:
            yield from block(drawn, "text")
        else:
            yield from (chart.draw(report, WIDE).about, "")


def _scatter(report: Report) -> str:
    return scatter(
        [
            ChartPoint(row.peak_bytes, row.rate_per_s, _mark(row))
            for row in report.rows
            if row.peak_bytes and row.rate_per_s is not None
        ],
        report.budget_bytes,
        report.unit,
    )


def _mark(row: PlanRow) -> str:
    if row.role:
        return "R" if row.role == "recommended" else "B"
    return "*" if row.on_front else "o"


def _plans(report: Report) -> Iterator[str]:
    measured = [row for row in report.rows if row.rate_per_s is not None]
    others = [row for row in report.rows if row.rate_per_s is None]
    yield from ("## Plans", "")
    if measured:
        head = ("", "plan", f"{report.unit}/s", "over the baseline", "peak", "why not")
        rows = [
            (_role(row), text(row.label), _rate(row), _gain(row), _bytes(row.peak_bytes), text(row.reason))
            for row in measured
        ]
        yield from table(head, rows, "plans")
        yield from (RATIOS, "") if report.race else ()
    if others:
        yield from ("Without a throughput:", "")
        failed = [(text(row.label), row.status, _bytes(row.peak_bytes), text(row.reason)) for row in others]
        yield from table(("plan", "outcome", "peak", "reason"), failed, "plans")


def _notes(report: Report) -> Iterator[str]:
    yield from _list(EVALUATION, report.evaluation)
    yield from _list(WHAT_EACH_DOES, [str(each) for each in report.strategies])
    yield from _list("What to know", report.caveats)
    yield from _list("Not in this report", report.missing)


def _gates(report: Report) -> Iterator[str]:
    if report.gates:
        yield from ("## Numerical checks", "")
        rows = [(text(gate.name), verdict(gate), text(gate.reason, 400)) for gate in report.gates]
        yield from table(("technique", "result", "what was found"), rows, "checks")


def _left_out(report: Report) -> Iterator[str]:
    if report.left_out:
        yield from ("## Combinations that were not measured", "")
        rows = [(text(each.label), text(each.basis), text(each.reason)) for each in report.left_out]
        yield from table(("closest plan", "evidence", "reason"), rows, "combinations", MOST_OMISSIONS)
    yield from _list("Techniques that were not searched", [f"{each.name}: {each.reason}" for each in report.refused])


def _use(report: Report) -> Iterator[str]:
    if report.apply_code:
        yield from ("## Apply the plan", "", *block(report.apply_code.rstrip(), "python"))
    if report.command:
        language = "python" if report.command.startswith("autofit.") else "sh"
        yield from ("## Repeat the search", "", *block(report.command, language))


def _environment(report: Report) -> Iterator[str]:
    found = report.environment
    trials = runs(report) or "none"
    facts = {
        "budget": report.budget_note or format_bytes(report.budget_bytes),
        "device": f"{found.device_name} ({found.device_type}), {format_bytes(found.capacity_bytes)}",
        "versions": ", ".join(f"{name} {version}" for name, version in found.versions.items()),
        "settings": ", ".join(f"{name} {value}" for name, value in found.settings.items()),
        "trials": f"{trials} in {format_duration(report.duration_s)}" if report.duration_s else trials,
        "search ended": report.stopped,
        "study": report.study,
        "created": moment(report.created),
    }
    yield from ("## Environment", "")
    yield from table(("", ""), [(name, text(value, 400)) for name, value in facts.items() if value], "facts")


def _list(title: str, items: Sequence[str]) -> Iterator[str]:
    if not items:
        return
    yield from (f"## {title}", "", *(f"- {text(item, 600)}" for item in items[:MOST_ITEMS]))
    if len(items) > MOST_ITEMS:
        yield f"- and {len(items) - MOST_ITEMS} more"
    yield ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], what: str, most: int = MOST_ROWS) -> Iterator[str]:
    """Yields a table of at most `most` rows and the number of the others; cells are escaped already."""
    yield _line(head)
    yield _line(["---"] * len(head))
    yield from map(_line, rows[:most])
    yield ""
    if len(rows) > most:
        yield from (f"and {len(rows) - most:,} more {what}", "")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def block(code: str, language: str) -> list[str]:
    """Returns a code block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", code, fence, ""]


def _role(row: PlanRow) -> str:
    also = ", baseline" if row.is_baseline and row.role == "recommended" else ""
    return f"**{row.role}{also}**" if row.role else ""


def _rate(row: PlanRow) -> str:
    return short_number(row.rate_per_s or 0.0)


def _gain(row: PlanRow) -> str:
    return "" if row.gain is None else format_ratio(row.gain.value) if row.is_baseline else str(row.gain)


def _bytes(count: int | None) -> str:
    return "" if count is None else format_bytes(count)


WIDTH, HEIGHT = 64, 16
"""Characters and lines of the area with the points."""
_FAR_RATIO = 3
"""A budget above this multiple of the largest peak is named, not drawn: the points would crowd at the left edge."""
_MARGIN = 1.05
_LABEL = 10


class ChartPoint(NamedTuple):
    """A point of a chart.

    Attributes:
        memory_bytes: horizontal position.
        rate_per_s: vertical position.
        mark: one character. Of points in one place, the mark that comes first in `ORDER` is shown.
    """

    memory_bytes: int
    rate_per_s: float
    mark: str


ORDER = "RB*o"
"""Marks: the recommended plan, the baseline, other plans on the Pareto front, other plans."""


def scatter(points: Sequence[ChartPoint], budget_bytes: int, unit: str) -> str:
    """Returns a chart of throughput against peak memory, with the budget as a vertical line; "" without points.

    Args:
        points: what is drawn.
        budget_bytes: memory budget.
        unit: what throughputs count.
    """
    if not points:
        return ""
    most_bytes, most_rate = max(p.memory_bytes for p in points), max(p.rate_per_s for p in points)
    far = budget_bytes > _FAR_RATIO * most_bytes
    width_bytes = _MARGIN * (most_bytes if far else max(most_bytes, budget_bytes))
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]
    if not far:
        for line in cells:
            line[_place(budget_bytes / width_bytes, WIDTH)] = "|"
    for point in sorted(points, key=lambda each: -ORDER.index(each.mark)):
        row = HEIGHT - 1 - _place(point.rate_per_s / (_MARGIN * most_rate), HEIGHT)
        cells[row][_place(point.memory_bytes / width_bytes, WIDTH)] = point.mark
    labels = {0: short_number(_MARGIN * most_rate), HEIGHT - 1: "0"}
    drawn = [f"{labels.get(number, ''):>{_LABEL}} |{''.join(line)}".rstrip() for number, line in enumerate(cells)]
    right = format_bytes(round(width_bytes))
    axis = f"{'':{_LABEL}} +{'-' * WIDTH}"
    under = f"{'':{_LABEL}}  0{'peak memory':^{WIDTH - len(right) - 1}}{right}"
    budget = f"budget {format_bytes(budget_bytes)}, {'outside the chart' if far else 'shown as |'}"
    legend = f"R recommended  B baseline  * Pareto front  o other plans; {budget}"
    return "\n".join([f"{unit}/s", *drawn, axis, under, "", legend])


def _place(share: float, cells: int) -> int:
    return min(max(int(share * cells), 0), cells - 1)
