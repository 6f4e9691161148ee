"""A night as Markdown, for a job summary, a comment or a message. Text from the user's code is never read as markup."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from autofit.core.printable import one_line, printable
from autofit.nightly.outputs.facts import (
    ATTENTION,
    MARK,
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
from autofit.nightly.records import NightRecord
from autofit.nightly.result import NightResult
from autofit.reports.markdown import block, table, text

MOST_LETTERS = 60_000
"""Maximum length: a comment on GitHub has at most 65,536 characters."""
_TABLE_LETTERS, _LIST_LETTERS = 24_000, 6_000
"""Maximum length of the table of jobs, and of each list of texts."""
_MOST_LINE, _MOST_LINES = 400, 12
"""Maximum length of a line on how to find a cause, and maximum number of such lines."""
_HEAD = ("job", "verdict", "throughput", "against expected", "peak memory", "evidence")


def rendered(night: NightResult, history: History) -> str:
    """Returns the night: the outcome, a table of the jobs, and what is known of those that somebody should look at."""
    found = merged(night, history)
    shown = by_urgency(night.records)
    rest = [*_list("Not checked", [f"{job}: {why}" for job, why in night.unchecked.items()])]
    rest += [*_list("Errors in the jobs file", night.problems), *_list("Notes", night.notes)]
    lines = [MARK, f"# autofit nightly: {text(moment(night.night), 60)}", "", f"**{text(headline(night), 300)}**", ""]
    others = f"Others: {text(counts, 300)}. " if (counts := other_counts(night)) else ""
    lines += [f"{others}Exit code {night.exit_code}.", "", *_jobs(shown)]
    room = MOST_LETTERS - _length([*lines, *rest])
    chosen = noteworthy(shown)
    lines += [*_fitting((list(_job(record, found[record.job])) for record in chosen), len(chosen), room), *rest]
    return _document(lines)


def of_job(record: NightRecord, history: History) -> str:
    """Returns what a night found of one job, for a command that is notified of it."""
    records = merged(NightResult(night=record.night, records=(record,)), history)[record.job]
    where = f"Night of {text(moment(record.night), 60)}."
    return _document([MARK, *_job(record, records, "#"), where])


def _document(lines: Sequence[str]) -> str:
    return printable("\n".join(lines)).rstrip() + "\n"


def _jobs(records: Sequence[NightRecord]) -> Iterator[str]:
    if records:
        rows = [_row(record) for record in records]
        ends = accumulate(_length(row) + 3 * len(row) for row in rows)
        yield from table(_HEAD, rows, "jobs", sum(end <= _TABLE_LETTERS for end in ends))


def _row(record: NightRecord) -> tuple[str, ...]:
    kind = record.verdict.kind
    name = f"**{kind.value}**" if kind in ATTENTION else kind.value
    return text(record.job, 80), name, text(rate(record), 40), change(record), peak(record), text(record.verdict.reason)


def _job(record: NightRecord, records: Sequence[NightRecord], level: str = "##") -> Iterator[str]:
    """Yields the section of a job: the verdict with its evidence, what changed, and how to find the cause."""
    verdict = record.verdict
    yield from (f"{level} {text(record.job, 80)}: {verdict.kind.value}", "", f"{text(verdict.reason, 600)}.", "")
    first, nights = since(records)
    if nights > 1:
        yield from (f"The verdict has been the same for {nights:,} nights, since {text(moment(first), 60)}.", "")
    yield from table(("", ""), [(name, text(value, 300)) for name, value in evidence(record)], "facts")
    if verdict.changed:
        yield from ("**What changed since the last steady night**", "", *_items(map(readable, verdict.changed)), "")
    if verdict.bisect:
        steps = [one_line(step)[:_MOST_LINE] for step in verdict.bisect[:_MOST_LINES]]
        yield from ("**How to find the cause**", "", *block("\n".join(steps), "text"))
    yield from _list("", record.notes)


def _list(title: str, items: Sequence[str]) -> Iterator[str]:
    if items:
        yield from (f"## {title}", "") if title else ()
        yield from (*_items(items), "")


def _items(texts: Iterable[str]) -> Iterator[str]:
    """Yields as many items of a list as it may have, and the number of the others."""
    room, rest = _LIST_LETTERS, iter(texts)
    for given in rest:
        line = f"- {text(given[: 2 * _MOST_LINE], _MOST_LINE)}"
        room -= len(line) + 1
        if room < 0:
            yield f"- and {1 + sum(1 for _ in rest):,} more"
            return
        yield line


def _fitting(sections: Iterable[Sequence[str]], count: int, room: int) -> Iterator[str]:
    """Yields as many of `count` sections as there is room for, and says how many are left out."""
    for place, section in enumerate(sections):
        room -= _length(section)
        if room < 100:
            yield from (f"{count - place:,} more sections are left out: this text has a maximum length.", "")
            return
        yield from section


def _length(lines: Sequence[str]) -> int:
    return sum(len(line) + 1 for line in lines)
