"""A report as Markdown, for a pull request or a job summary. Text from the user's code is never read as markup."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain

from autofit.core.units import format_bytes, format_ratio, short_number
from autofit.reports import sections
from autofit.reports.markup import DataTable
from autofit.reports.report import WHAT_EACH_DOES, Report
from autofit.reports.sentences import RATIOS
from autofit.reports.summary import EVALUATION
from autofit.reports.svg import CHARTS
from autofit.reports.svg.drawing import Chart
from autofit.reports.svg.gain import WHY

MARK = "<!-- autofit report -->"
"""First line of every Markdown report, by which an earlier one is recognised."""
MOST_ROWS, MOST_ITEMS = 25, 15
"""Maximum number of rows of a table and of items of a list: a comment on GitHub has at most 65,536 characters."""
MOST_OMISSIONS = 10
"""Maximum number of combinations without a measurement: there are many of them, and few are of interest."""
MOST_CELL, MOST_SENTENCE, MOST_FAILURE = 160, 600, 4000
"""Maximum lengths: of a text in a table, of a sentence, and of the message of a failed search."""
_SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_AT_START = re.compile(r"^([#+=>-]|[0-9]+(?=[.)](?:\s|$)))")
_LINKS = re.compile(r"(@|#|://|\bwww\.)")


def to_markdown(report: Report) -> str:
    """Returns a report as Markdown that GitHub shows."""
    plans, details = _plans(report), _details(report)
    notes = (
        (EVALUATION, report.evaluation), (WHAT_EACH_DOES, [str(each) for each in report.strategies]),
        ("What to know", report.caveats), ("Not in this report", report.missing),
    )  # fmt: skip
    listed = chain.from_iterable(_list(title, items) for title, items in notes)
    blocks = (_head(report), _charts(report, CHARTS[:2]), plans, listed, _charts(report, CHARTS[2:]), details)
    return "\n".join(line for lines in blocks for line in lines).rstrip() + "\n"


def text(given: str, most: int = MOST_CELL) -> str:
    """Returns a text so that Markdown shows it as it is, on one line, cut to `most` characters before escaping."""
    flat = " ".join(given.split())
    flat = flat if len(flat) <= most else f"{flat[: most - 2]}.."
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    flat = _AT_START.sub(r"\\\1" if not flat[:1].isdigit() else r"\1\\", _SPECIAL.sub(r"\\\g<0>", flat))
    return _LINKS.sub(lambda found: f"{found[0][:1]}<!-- -->{found[0][1:]}", flat)


def _head(report: Report) -> Iterator[str]:
    yield from (MARK, f"# autofit: {text(report.title)}", "", f"**{text(report.headline, MOST_SENTENCE)}**", "")
    for given, most in ((report.chosen, MOST_SENTENCE), (report.failure, MOST_FAILURE)):
        yield from (text(given, most), "") if given else ()


def _charts(report: Report, charts: Sequence[Chart]) -> Iterator[str]:
    """Yields the values of each chart as a table; as a sentence where the plans have them all."""
    for chart in charts:
        if (drawing := chart.draw(report, False)) is None:
            continue
        yield from (f"## {chart.heading}", "")
        yield from (chart.aid, "") if chart is WHY else ()
        yield from _data_table(drawing.table, "rows") if drawing.table else (drawing.about, "")


def _plans(report: Report) -> Iterator[str]:
    measured, others = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for row in report.rows:
        label, peak, reason = text(row.label), format_bytes(row.peak_bytes) if row.peak_bytes else "", text(row.reason)
        if row.rate_per_s is None:
            others.append((label, row.status, peak, reason))
            continue
        also = ", baseline" if row.is_baseline and row.role == "recommended" else ""
        role = f"**{row.role}{also}**" if row.role else ""
        gain = "" if row.gain is None else format_ratio(row.gain.value) if row.is_baseline else str(row.gain)
        measured.append((role, label, short_number(row.rate_per_s), gain, peak, reason))
    yield from ("## Plans", "")
    if measured:
        head = ("", "plan", f"{report.unit}/s", "over the baseline", "peak", "why not")
        yield from table(head, measured, "plans")
        yield from (RATIOS, "") if report.race else ()
    if others:
        yield from ("Without a throughput:", "")
        yield from table(("plan", "outcome", "peak", "reason"), others, "plans")


def _details(report: Report) -> Iterator[str]:
    if report.gates:
        yield from ("## Numerical checks", "", *_data_table(sections.gates(report), "checks", most_letters=400))
    if report.left_out:
        yield from (f"## {sections.NOT_MEASURED}", "")
        yield from _data_table(sections.left_out(report), "combinations", MOST_OMISSIONS)
    yield from _list(sections.NOT_SEARCHED, [f"{each.name}: {each.reason}" for each in report.refused])
    if report.apply_code:
        yield from ("## Apply the plan", "", *block(report.apply_code.rstrip(), "python"))
    if report.command:
        language = "python" if report.command.startswith("autofit.") else "sh"
        yield from ("## Repeat the search", "", *block(report.command, language))
    facts = DataTable(("", ""), tuple(sections.environment(report)))
    yield from ("## Environment", "", *_data_table(facts, "facts", most_letters=400))


def _list(title: str, items: Sequence[str]) -> Iterator[str]:
    if not items:
        return
    yield from (f"## {title}", "", *(f"- {text(item, MOST_SENTENCE)}" for item in items[:MOST_ITEMS]))
    if len(items) > MOST_ITEMS:
        yield f"- and {len(items) - MOST_ITEMS} more"
    yield ""


def _data_table(found: DataTable, what: str, most: int = MOST_ROWS, most_letters: int = MOST_CELL) -> Iterator[str]:
    rows = [[text(cell, most_letters) for cell in row] for row in found.rows]
    return table([text(name) for name in found.head], rows, what, most)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], what: str, most: int = MOST_ROWS) -> Iterator[str]:
    """Yields a table of at most `most` rows and the number of the others; cells are escaped already."""
    yield from (f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows[:most]))
    yield ""
    if len(rows) > most:
        yield from (f"and {len(rows) - most:,} more {what}", "")


def block(code: str, language: str) -> list[str]:
    """Returns a code block whose fence is longer than any run of backticks in it."""
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", code, fence, ""]
