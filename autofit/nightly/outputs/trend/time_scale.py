"""Scale of time: from nights to coordinates, with ticks. Where older nights share points, they are closer together."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from autofit.nightly.outputs.trend.dates import date_ticks
from autofit.nightly.outputs.trend.entries import TrendEntry

_LEAST, _MOST = 0.3, 0.7
"""Minimum and maximum share of the width for the older nights, if several of them share a point."""


@dataclass(frozen=True, slots=True)
class TimeScale:
    """A mapping from seconds since 1970 to coordinates: linear before and after a time.

    Attributes:
        first: earliest time.
        turn: time at which the scale changes; the earliest time if it does not.
        last: latest time.
        start: coordinate of `first`.
        middle: coordinate of `turn`.
        end: coordinate of `last`.
    """

    first: float
    turn: float
    last: float
    start: float
    middle: float
    end: float

    def __call__(self, value: float) -> float:
        """Returns the coordinate of a time between the first and the last one."""
        if value < self.turn:
            return self.start + (value - self.first) / (self.turn - self.first) * (self.middle - self.start)
        return self.middle + (value - self.turn) / (self.last - self.turn) * (self.end - self.middle)

    @property
    def turns(self) -> bool:
        """Whether the older nights are closer together."""
        return self.turn > self.first

    def ticks(self, most: int) -> list[tuple[float, str]]:
        """Returns about `most` ticks as seconds and label, of which each part of the scale has its own."""
        first, turn, last = (datetime.fromtimestamp(value, UTC) for value in (self.first, self.turn, self.last))
        if not self.turns:
            return date_ticks(first, last, most)
        older = round(most * (self.middle - self.start) / (self.end - self.start))
        return [*date_ticks(first, turn, max(older, 1)), *date_ticks(turn, last, max(most - older, 1))]


def time_scale(entries: Sequence[TrendEntry], start: float, end: float) -> TimeScale:
    """Returns a scale on which all entries are inside, so that points are about equally far apart in both parts."""
    times = [entry.at.timestamp() for entry in entries]
    older = max((place for place, entry in enumerate(entries, start=1) if len(entry.records) > 1), default=0)
    first, last = times[0], times[-1]
    if not 0 < older < len(entries):
        room = (last - first) * 0.008 or 43_200.0
        return TimeScale(first - room, first - room, last + room, start, start, end)
    turn = (times[older - 1] + times[older]) / 2
    middle = start + min(max(older / len(entries), _LEAST), _MOST) * (end - start)
    return TimeScale(first - 0.02 * (turn - first), turn, last + 0.02 * (last - turn), start, middle, end)
