"""A night as text for a terminal: the outcome, a table of the jobs, and what is known of those with a problem."""

from collections.abc import Iterator, Sequence

from autofit.core.printable import one_line
from autofit.nightly.outputs.facts import (
    ATTENTION,
    History,
    by_urgency,
    change,
    evidence,
    headline,
    merged,
    moment,
    noteworthy,
    other_counts,
    peak,
    rate,
    readable,
    since,
)
from autofit.nightly.records import NightRecord, VerdictKind
from autofit.nightly.result import NightResult
from autofit.reports.canvas import Canvas
from autofit.reports.markup import shortened
from autofit.reports.tables import Column, table
from autofit.terminal import wrapped

_COLOURS = dict.fromkeys(ATTENTION, "bad") | {VerdictKind.FASTER: "good"}
_NAME, _REASON, _LINE = 40, 400, 300
_SPARKS, _NIGHTS = "▁▂▃▄▅▆▇█", 20
"""Levels of the small chart of throughput, and the number of nights that it shows."""
_LABEL = 18
_INDENT = "  "


def rendered(night: NightResult, history: History, canvas: Canvas | None = None) -> str:
    """Returns the night for a person to read, ending without a newline.

    Args:
        night: what the night found.
        history: all records of each job, for the small charts and for how long a verdict has lasted.
        canvas: width and colours. Only a word that is longer than a line goes beyond the width.
    """
    canvas, history = canvas or Canvas(), merged(night, history)
    shown = by_urgency(night.records)
    colour = "bad" if any(record.verdict.kind in ATTENTION for record in shown) else "good"
    head = [canvas.paint(line, colour) for line in wrapped(headline(night), canvas.width)]
    others = f"Others: {found}." if (found := other_counts(night)) else ""
    about = f"Night of {shortened(moment(night.night), _NAME)}, exit code {night.exit_code}."
    parts = [[*head, *wrapped(f"{others} {about}", canvas.width)], _jobs(shown, history, canvas)]
    parts += [list(_job(record, history[record.job], canvas)) for record in noteworthy(shown)]
    parts.append(_list("Not checked", [f"{job}: {why}" for job, why in night.unchecked.items()], canvas))
    parts.append(_list("Errors in the jobs file", night.problems, canvas))
    parts.append(_list("Notes", night.notes, canvas))
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def _jobs(records: Sequence[NightRecord], history: History, canvas: Canvas) -> list[str]:
    if not records:
        return []
    names = [shortened(record.job, _NAME) for record in records]
    columns = [
        Column("Jobs", names),
        Column("verdict", [record.verdict.kind.value for record in records]),
        Column("throughput", [shortened(rate(record), _NAME) for record in records], right=True),
        Column("change", [change(record) for record in records], right=True),
        Column("peak memory", [peak(record) for record in records], right=True),
    ]
    if canvas.blocks:
        columns.append(Column("last nights", [_sparks(history[record.job]) for record in records], spare=True))
    head, *rows = table(columns, canvas.width)
    return [canvas.paint(head, "title"), *rows]


def _sparks(records: Sequence[NightRecord]) -> str:
    """Returns the throughput of the last nights as a line of bars, from the lowest to the highest; "×" without one."""
    rates = [None if one.accepted is None else one.accepted.rate_per_s for one in records[-_NIGHTS:]]
    known = [rate for rate in rates if rate is not None]
    high = max(known, default=0.0)
    low = min([0.9 * high, *known])  # the noise of a steady job does not fill the height
    room = max(high - low, 1e-12)
    return "".join("×" if rate is None else _SPARKS[min(int((rate - low) / room * 8), 7)] for rate in rates)


def _job(record: NightRecord, records: Sequence[NightRecord], canvas: Canvas) -> Iterator[str]:
    verdict, width = record.verdict, canvas.width
    title = f"{shortened(record.job, _NAME)}: {verdict.kind.value}"
    yield canvas.paint(title, _COLOURS.get(verdict.kind, "title"))
    yield from wrapped(f"{shortened(verdict.reason, _REASON)}.", width, _INDENT, _INDENT)
    first, nights = since(records)
    entries = [("same verdict for", f"{nights:,} nights, since {moment(first)}")] if nights > 1 else []
    for name, value in (*entries, *evidence(record)):
        rest = " " * (len(_INDENT) + _LABEL)
        yield from wrapped(shortened(value, _LINE), width, f"{_INDENT}{name:{_LABEL}}", rest)
    if verdict.changed:
        yield from wrapped("What changed since the last steady night", width, _INDENT, _INDENT)
        for change_ in verdict.changed:
            yield from wrapped(shortened(readable(change_), _LINE), width, "    - ", "      ")
    if verdict.bisect:
        yield f"{_INDENT}How to find the cause"
        yield from (f"    {one_line(step)[:_REASON]}" for step in verdict.bisect)
    for note in record.notes:
        yield from wrapped(shortened(note, _REASON), width, "  - ", "    ")


def _list(title: str, items: Sequence[str], canvas: Canvas) -> list[str]:
    if not items:
        return []
    lines = [line for item in items for line in wrapped(shortened(item, _REASON), canvas.width, "  - ", "    ")]
    return [canvas.paint(title, "title"), *lines]
