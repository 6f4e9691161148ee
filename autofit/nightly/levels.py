"""The level of a segment: the nights that tonight is compared with, and the change that is still open.

A change that was reported never becomes normal unnoticed:

* A regression stays open and is reported each night until the job is back at its level, a person accepts the new level,
  or the segment changes, for example with another plan. Its nights are not in the reference.
* A job that became faster is reported as such for `LEAST_NIGHTS` nights, which then are the reference.
* A night that was suspicious and not confirmed counts with its second reading.
"""

from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple, TypeVar

from autofit.nightly.rule import FAMILIAR, LEAST_CHANGE, LEAST_NIGHTS, NOISE_WINDOW, WINDOW, Band, Suspicion

Value = TypeVar("Value")


class NightReading(NamedTuple):
    """One measurement of a plan: throughput and peak."""

    rate_per_s: float
    peak_bytes: float


class PastNight(NamedTuple):
    """An earlier night of the segment.

    Attributes:
        night: identifier of the night.
        reading: the second reading if there was one, else the first.
        highest_bytes: the highest peak of the night's readings.
        rate_side: what was claimed of throughput: 1 faster, -1 slower, 0 nothing.
        memory_side: what was claimed of the peak: 1 higher, 0 nothing.
        evidence_nights: number of nights, this one included, that are the evidence for a change of throughput.
        expected: what the readings were compared with; only used on the first night of a change.
    """

    night: str
    reading: NightReading
    highest_bytes: float
    rate_side: int = 0
    memory_side: int = 0
    evidence_nights: int = 1
    expected: NightReading = NightReading(0.0, 0.0)


@dataclass(slots=True)
class Track:
    """One measure over the nights of a segment.

    Attributes:
        reference: value of each night of the level, oldest first.
        nights: the identifiers of these nights.
        changed: value of each night of the open change, oldest first.
        changed_nights: the identifiers of these nights.
        side: side of the open change; 0 if there is none.
        expected: the value that the change was compared with when it began.
    """

    reference: list[float] = field(default_factory=list)
    nights: list[str] = field(default_factory=list)
    changed: list[float] = field(default_factory=list)
    changed_nights: list[str] = field(default_factory=list)
    side: int = 0
    expected: float = 0.0

    @property
    def since(self) -> str:
        """First night of the open change; "" if there is none."""
        return self.changed_nights[0] if self.changed_nights else ""

    def add(self, night: str, value: float) -> None:
        """Adds a night without a change, which ends an open one."""
        self.reference.append(value)
        self.nights.append(night)
        self._close()

    def add_changed(self, night: str, value: float, side: int, expected: float, evidence_nights: int) -> None:
        """Adds a night of a change. If it is the first one, the earlier nights of its evidence leave the reference."""
        if side != self.side:
            self._close()
            self.side, self.expected = side, expected
            moved = min(evidence_nights, len(self.reference)) - 1
            if moved > 0:
                self.changed, self.changed_nights = self.reference[-moved:], self.nights[-moved:]
                del self.reference[-moved:], self.nights[-moved:]
        self.changed.append(value)
        self.changed_nights.append(night)

    def accept(self) -> None:
        """Makes the nights of the open change the reference.

        If they are fewer than a window, earlier nights are moved to their level and kept, so that the noise is known.
        """
        if not self.side:
            return
        kept = NOISE_WINDOW if len(self.changed) < WINDOW else 0
        ratio = median(self.changed) / self.expected
        self.reference = [ratio * value for value in _last(self.reference, kept)] + self.changed
        self.nights = _last(self.nights, kept) + self.changed_nights
        self._close()

    def back(self, band: Band, reading: float) -> list[Suspicion]:
        """Returns the suspicion that the open change ended: two readings are together closer to the level before it."""
        inside = reading >= band.low if self.side < 0 else reading <= band.high
        if not inside:
            return []
        limit = self.expected + median(self.changed[-WINDOW:]) - reading
        return [Suspicion("back", -self.side, limit, self.expected, reading, nights=1, before=band.nights)]

    def _close(self) -> None:
        if self.side:
            self.changed, self.changed_nights, self.side = [], [], 0


@dataclass(slots=True)
class Level:
    """The earlier nights of a segment, as tonight is compared with them.

    Attributes:
        rate: throughput.
        memory: peak.
        highest: the `FAMILIAR` highest peaks of nights without a claim on memory, in ascending order.
    """

    rate: Track = field(default_factory=Track)
    memory: Track = field(default_factory=Track)
    highest: list[float] = field(default_factory=list)
    _first_bytes: float = 0.0
    _lower_nights: int = 0

    @property
    def missing_nights(self) -> int:
        """Number of further nights that are needed before a night can be compared."""
        return max(LEAST_NIGHTS - min(len(self.rate.reference), len(self.memory.reference)), 0)

    def add(self, past: PastNight) -> None:
        """Adds the next night."""
        rate_per_s, peak_bytes = past.reading
        if past.rate_side:
            expected = past.expected.rate_per_s
            self.rate.add_changed(past.night, rate_per_s, past.rate_side, expected, past.evidence_nights)
            if past.rate_side > 0 and len(self.rate.changed) >= LEAST_NIGHTS:
                self.rate.accept()
        else:
            self.rate.add(past.night, rate_per_s)
        if past.memory_side:
            self.memory.add_changed(past.night, peak_bytes, 1, past.expected.peak_bytes, 1)
        else:
            self.memory.add(past.night, peak_bytes)
            self.highest = sorted((*self.highest, past.highest_bytes))[-FAMILIAR:]
            self._follow_down(peak_bytes)

    def accept(self) -> None:
        """Makes the level of an open regression the reference, because a person accepted it."""
        if self.rate.side < 0:
            self.rate.accept()
        if self.memory.side:
            self.memory.accept()
            self._restart_memory()

    def _follow_down(self, peak_bytes: float) -> None:
        """Begins a new level of memory after `LEAST_NIGHTS` nights below the old one, so that later growth is seen."""
        reference = self.memory.reference
        if len(reference) <= WINDOW:
            self._first_bytes = median(reference)
        lower = peak_bytes < self._first_bytes * (1 - LEAST_CHANGE)
        self._lower_nights = self._lower_nights + 1 if lower else 0
        if self._lower_nights >= LEAST_NIGHTS:
            del reference[:-LEAST_NIGHTS], self.memory.nights[:-LEAST_NIGHTS]
            self._restart_memory()

    def _restart_memory(self) -> None:
        reference = self.memory.reference
        self.highest = sorted(reference)[-FAMILIAR:]
        self._first_bytes, self._lower_nights = median(reference[:WINDOW]), 0


def _last(values: list[Value], count: int) -> list[Value]:
    return values[max(len(values) - count, 0) :]
