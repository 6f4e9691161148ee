"""Which earlier nights of a job tonight may be compared with, and how they are read from the history."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autofit.core.environment import Environment
from autofit.nightly.levels import Level, NightReading, PastNight
from autofit.nightly.records import Figures, HistorySegment, NightRecord, VerdictKind

_NOT_MEASURED = (VerdictKind.DOES_NOT_FIT, VerdictKind.ERROR)


@dataclass(frozen=True, slots=True)
class Tonight:
    """What a night measured of a job, before it is judged.

    Attributes:
        job: name of the job.
        segment: what the figures may be compared with.
        environment: where they were measured.
        accepted: the first measurement of the accepted plan.
        budget_bytes: memory budget of the job; None if unknown.
        unit: "samples" or "tokens": the unit of throughput.
        baseline: what was measured of the baseline in the same blocks; None if it did not run. It is evidence for a
            regression, and is not judged.
        tuned_per_s: throughput of the accepted plan in the search that found it; None if that is not comparable.
    """

    job: str
    segment: HistorySegment
    environment: Environment
    accepted: Figures
    budget_bytes: int | None = None
    unit: str = "samples"
    baseline: Figures | None = None
    tuned_per_s: float | None = None

    def comparable(self, record: NightRecord) -> bool:
        """Returns whether the figures of an earlier record may be compared with those of tonight."""
        if record.segment != self.segment or record.unit != self.unit:
            return False
        return record.accepted is None or record.accepted.judged_by == self.accepted.judged_by

    def changes_from(self, record: NightRecord) -> tuple[str, ...]:
        """Returns what makes an earlier record incomparable, as "name: value, was earlier value"."""
        found = [] if record.segment is None else list(self.segment.changes(record.segment))
        if record.unit != self.unit:
            found.append(f"unit: {self.unit}, was {record.unit}")
        if record.accepted is not None and record.accepted.judged_by != self.accepted.judged_by:
            found.append(f"memory reading: {self.accepted.judged_by}, was {record.accepted.judged_by}")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class ComparableNights:
    """The earlier records of a job, as tonight sees them.

    Attributes:
        comparable: the records that tonight may be compared with, oldest first.
        latest: the newest record with a segment, comparable or not; None if there is none.
    """

    comparable: tuple[NightRecord, ...]
    latest: NightRecord | None

    @classmethod
    def of(cls, past: Sequence[NightRecord], tonight: Tonight) -> "ComparableNights":
        """Returns the earlier records of a job, given all of them, oldest first."""
        known = [record for record in past if record.segment is not None]
        return cls(tuple(filter(tonight.comparable, known)), known[-1] if known else None)

    def measured(self, night: str) -> NightRecord | None:
        """Returns the newest comparable record of a night with figures; None if there is none."""
        found = (
            record for record in reversed(self.comparable) if record.night == night and record.accepted is not None
        )
        return next(found, None)


def level_of(records: Iterable[NightRecord]) -> Level:
    """Returns the level of comparable records, oldest first. Nights without figures are left out."""
    level = Level()
    for record in records:
        if record.level_accepted:
            level.accept()
        elif record.accepted is not None and record.verdict.kind not in _NOT_MEASURED:
            level.add(_past_night(record, record.accepted))
    return level


def reading(figures: Figures) -> NightReading:
    """Returns the figures of a plan as one reading."""
    return NightReading(figures.rate_per_s, figures.peak_bytes)


def _past_night(record: NightRecord, accepted: Figures) -> PastNight:
    verdict, second = record.verdict, record.confirmation or accepted
    highest_bytes = max(accepted.peak_bytes, second.peak_bytes)
    if not verdict.moved:
        return PastNight(record.night, reading(second), highest_bytes)
    return PastNight(
        record.night,
        reading(second),
        highest_bytes,
        rate_side=-1 if "slower" in verdict.moved else 1 if "faster" in verdict.moved else 0,
        memory_side=1 if "more memory" in verdict.moved else 0,
        evidence_nights=verdict.evidence_nights,
        expected=NightReading(verdict.expected_per_s or second.rate_per_s, verdict.expected_bytes or second.peak_bytes),
    )
