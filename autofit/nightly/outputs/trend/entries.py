"""Entries: the nights of a job as they are drawn and listed. Of a long history, older nights share an entry."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from statistics import median

from autofit.nightly.instants import instant
from autofit.nightly.records import NightRecord, VerdictKind

_TOGETHER = (*range(2, 15), 21, 28, 56, 91, 365)
"""Largest number of older nights in one entry: the first number is taken with which the history fits."""
_QUIET = frozenset({VerdictKind.STEADY, VerdictKind.CANNOT_COMPARE})
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class TrendEntry:
    """One night of a job, or several successive ones with the same verdict in one segment.

    Attributes:
        records: the nights, oldest first.
        at: when the middle one of them began.
        segment: number of the segment, from 1.
        changes: what differs from the previous segment, if this entry begins a new one; else ().
    """

    records: tuple[NightRecord, ...]
    at: datetime
    segment: int
    changes: tuple[str, ...] = ()

    @property
    def last(self) -> NightRecord:
        """The newest of the nights."""
        return self.records[-1]

    @property
    def kind(self) -> VerdictKind:
        """The verdict of the nights."""
        return self.last.verdict.kind

    @cached_property
    def rates_per_s(self) -> tuple[float, ...]:
        """Throughput of each night that has one in the unit of the newest night."""
        found = (one.accepted.rate_per_s for one in self.records if one.accepted and one.unit == self.last.unit)
        return tuple(rate for rate in found if math.isfinite(rate))

    @cached_property
    def rate_per_s(self) -> float | None:
        """Median throughput; None if no plan ran."""
        return median(self.rates_per_s) if self.rates_per_s else None

    @property
    def band(self) -> tuple[float, float] | None:
        """The noise band of the newest night's throughput; None if it was not compared or has no throughput."""
        low, high = self.last.verdict.low_per_s, self.last.verdict.high_per_s
        if self.rate_per_s is None or low is None or high is None or not math.isfinite(high - low):
            return None
        return low, high

    @cached_property
    def peak_bytes(self) -> int | None:
        """Largest peak; None if no plan ran."""
        return max((one.accepted.peak_bytes for one in self.records if one.accepted is not None), default=None)

    @property
    def slower(self) -> bool:
        """Whether the newest night's throughput regressed, or, if its verdict does not say, is below its noise band."""
        if self.last.verdict.moved:
            return "slower" in self.last.verdict.moved
        low, figures = self.last.verdict.low_per_s, self.last.accepted
        return low is not None and figures is not None and figures.rate_per_s < low

    @property
    def memory_regressed(self) -> bool:
        """Whether the verdict is a regression of memory.

        If the verdict does not say: whether the peak is above its limit, or the throughput is not low.
        """
        if self.kind is not VerdictKind.REGRESSION or self.last.accepted is None:
            return False
        if self.last.verdict.moved:
            return "more memory" in self.last.verdict.moved
        high = self.last.verdict.high_bytes
        return not self.slower or (high is not None and self.last.accepted.peak_bytes > high)


def entries_of(records: Sequence[NightRecord], most: int) -> list[TrendEntry]:
    """Returns the history of a job as at most `most` entries, oldest first.

    The newest half of the entries are single nights. So is each night with a proposal, or with a verdict other than
    steady or cannot compare. Where that is still too much, nights with any verdict share an entry with others of the
    same verdict. If even that does not suffice, the oldest nights are left out.
    """
    nights = _numbered(records)
    recent = nights[-max(most // 2, 1) :] if len(nights) > most else nights
    older = nights[: len(nights) - len(recent)]
    found = [_joined([night]) for night in recent]
    for limit, keep_apart in [*((limit, True) for limit in _TOGETHER), (_TOGETHER[-1], False)]:
        shared = [_joined(group) for group in _groups(older, limit, keep_apart)]
        if len(shared) + len(found) <= most:
            return [*shared, *found]
    return [*shared, *found][-most:]


def _numbered(records: Sequence[NightRecord]) -> list[TrendEntry]:
    """Returns each night as an entry, with its time and segment. Times that are missing or not in order are corrected.

    A night without a segment, whose workload could not be opened, belongs to the one before.
    """
    found, number, segment, at = list[TrendEntry](), 1, None, None
    for record in records:
        began = instant(record.night) or instant(record.at)
        earliest = _EPOCH if at is None else at + timedelta(seconds=1)
        at = max(began, earliest) if began is not None else earliest if at is None else at + timedelta(days=1)
        changes: tuple[str, ...] = ()
        if record.segment is not None:
            if segment is not None and record.segment != segment:
                number, changes = number + 1, record.segment.changes(segment)
            segment = record.segment
        found.append(TrendEntry((record,), at, number, changes))
    return found


def _groups(nights: Sequence[TrendEntry], limit: int, keep_apart: bool) -> Iterator[list[TrendEntry]]:
    """Yields successive nights that share an entry: at most `limit`, with one verdict, in one segment."""
    group = list[TrendEntry]()
    for night in nights:
        alone = keep_apart and (night.kind not in _QUIET or night.last.proposed is not None)
        if group and (alone or not _alike(group[-1], night) or len(group) == limit or night.changes):
            yield group
            group = []
        group.append(night)
    if group:
        yield group


def _alike(one: TrendEntry, other: TrendEntry) -> bool:
    return (
        one.kind is other.kind
        and one.segment == other.segment
        and one.last.proposed is None
        and one.last.unit == other.last.unit
    )


def _joined(nights: Sequence[TrendEntry]) -> TrendEntry:
    records = tuple(record for night in nights for record in night.records)
    return TrendEntry(records, nights[len(nights) // 2].at, nights[0].segment, nights[0].changes)
