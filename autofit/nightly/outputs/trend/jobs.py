"""The jobs of the page in order: those of the newest night first, and of these the ones that need attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from autofit.nightly.instants import instant
from autofit.nightly.outputs.facts import URGENCY, History, merged
from autofit.nightly.outputs.trend.entries import TrendEntry, entries_of
from autofit.nightly.records import NightRecord, VerdictKind
from autofit.nightly.result import NightResult

MOST_ENTRIES, LEAST, MOST = 1300, 40, 400
"""Maximum number of entries on the page; minimum and maximum for one job. A page of 20 jobs stays below 500 kB."""
_NEVER = datetime(1, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Trend:
    """A job on the page.

    Attributes:
        name: its name.
        anchor: its place in the page; unique.
        records: its nights, oldest first; () if it was never checked.
        entries: the same as they are drawn and listed, oldest first.
        tonight: whether its newest record is of the night that the page is about.
        unchecked: why it was not checked in that night; "" if it was, or if it is not known.
    """

    name: str
    anchor: str
    records: Sequence[NightRecord]
    entries: Sequence[TrendEntry]
    tonight: bool
    unchecked: str = ""

    @property
    def last(self) -> NightRecord:
        """Its newest record."""
        return self.records[-1]

    @property
    def kind(self) -> VerdictKind:
        """Its newest verdict."""
        return self.last.verdict.kind

    @property
    def shared(self) -> TrendEntry | None:
        """The newest entry that holds several nights; None if each night is shown."""
        return next((entry for entry in reversed(self.entries) if len(entry.records) > 1), None)

    @property
    def left_out(self) -> int:
        """Number of the oldest nights that are not shown."""
        return len(self.records) - sum(len(entry.records) for entry in self.entries)


def trends(night: NightResult, history: History) -> list[Trend]:
    """Returns all jobs, those with the newest verdicts first; jobs that were never checked come last."""
    found = merged(night, history)
    names = [
        *sorted(found, key=lambda name: _order(found[name][-1])),
        *(job for job in night.unchecked if job not in found),
    ]
    most = min(max(MOST_ENTRIES // max(len(found), 1), LEAST), MOST)
    return [
        Trend(
            name=name,
            anchor=f"job-{number}",
            records=found.get(name, ()),
            entries=entries_of(found.get(name, ()), most),
            tonight=name in found and found[name][-1].night == night.night,
            unchecked=night.unchecked.get(name, ""),
        )
        for number, name in enumerate(names, start=1)
    ]


def _order(record: NightRecord) -> tuple[float, int]:
    began = instant(record.night) or _NEVER
    return -began.timestamp() if began is not _NEVER else 0.0, URGENCY.index(record.verdict.kind)
