"""Judging: from the figures of a night and the earlier nights of a job to a verdict with its evidence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from autofit.core.environment import Environment
from autofit.core.printable import one_line
from autofit.core.units import format_bytes
from autofit.nightly import bisecting, evidence
from autofit.nightly.comparison import ComparableNights, Tonight, level_of, reading
from autofit.nightly.decision import Decision, decide
from autofit.nightly.levels import Level, NightReading
from autofit.nightly.records import Figures, HistorySegment, NightRecord, Verdict, VerdictKind
from autofit.nightly.rule import LEAST_NIGHTS, WINDOW

__all__ = ["Judged", "Tonight", "failed", "judge", "level_accepted"]

UNKNOWN_PAST = "the earlier nights are not known, because the history is not available"
"""Reason for a verdict while too few records are at hand."""
Moved = Literal["slower", "faster", "more memory"]


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on a job in one night.

    Attributes:
        verdict: the verdict.
        confirmation: the second measurement of the accepted plan; None if none was asked for, or it did not run.
    """

    verdict: Verdict
    confirmation: Figures | None = None


def judge(
    past: Sequence[NightRecord], tonight: Tonight, confirm: Callable[[], Figures | None], *, known: bool = True
) -> Judged:
    """Returns the verdict on a night in which the accepted plan ran.

    That a job regressed, became faster, or is back at its level is claimed only if a second measurement agrees.

    Args:
        past: all earlier records of the job, oldest first.
        tonight: what was measured.
        confirm: measures the accepted plan once more in this night; returns None if it did not run. Called at most
            once. The later it measures, the less noise the two measurements share.
        known: whether `past` has all earlier records. False while the storage of the history is not available.
    """
    peak_bytes, budget_bytes = tonight.accepted.peak_bytes, tonight.budget_bytes
    if budget_bytes is not None and peak_bytes > budget_bytes:
        over = f"its peak {format_bytes(peak_bytes)} is above the budget of {format_bytes(budget_bytes)}"
        return Judged(failed(past, tonight.segment, tonight.environment, over, fits=False))
    earlier = ComparableNights.of(past, tonight)
    level, confirming = level_of(earlier.comparable), _Confirming(confirm)
    if level.missing_nights:
        if not known:
            return Judged(Verdict(kind=VerdictKind.CANNOT_COMPARE, reason=UNKNOWN_PAST))
        lost = _slower_than_tuned(tonight, earlier, level, confirming)
        return Judged(lost or _incomparable(past, tonight, earlier, level.missing_nights), confirming.figures)
    decision = decide(level, reading(tonight.accepted), confirming)
    verdict = _verdict(tonight, earlier, level, decision)
    if verdict.kind is VerdictKind.STEADY and evidence.unnoticed(decision.rate.band) > evidence.WIDE_BAND:
        unknown = {"kind": VerdictKind.CANNOT_COMPARE, "reason": f"too noisy to tell: {verdict.reason}"}
        verdict = _slower_than_tuned(tonight, earlier, level, confirming) or verdict.model_copy(update=unknown)
    return Judged(verdict, confirming.figures)


def failed(
    past: Sequence[NightRecord],
    segment: HistorySegment | None,
    environment: Environment | None,
    reason: str,
    *,
    fits: bool,
) -> Verdict:
    """Returns the verdict on a night in which the accepted plan gave no figures.

    Args:
        past: all earlier records of the job, oldest first.
        segment: the segment of the night; None if the workload could not be opened.
        environment: its environment; None if the workload could not be opened.
        reason: why there are no figures, in one sentence.
        fits: False if the plan ran out of memory or exceeded its budget, True if it failed otherwise.
    """
    kind = VerdictKind.ERROR if fits else VerdictKind.DOES_NOT_FIT
    ran = next((record for record in reversed(past) if record.accepted is not None), None)
    changed: tuple[str, ...] = ()
    bisect: tuple[str, ...] = ()
    if environment is not None and ran is not None:
        changed = bisecting.changes(environment, ran)
        if segment is not None and ran.segment is not None and segment.plan != ran.segment.plan:
            changed += (f"plan: {segment.plan}, was {ran.segment.plan}",)
        bisect = () if fits else bisecting.steps(ran.job, environment, ran)
    return Verdict(kind=kind, reason=one_line(reason).rstrip("."), changed=changed, bisect=bisect)


def level_accepted(past: Sequence[NightRecord], *, id: str, night: str, at: str) -> NightRecord | None:
    """Returns the record that accepts the level of the open regression of a job; None if there is none.

    Once it is in the history, later nights are compared with the nights since the regression began.

    Args:
        past: all earlier records of the job, oldest first.
        id: unique identifier of the record.
        night: UTC time in ISO 8601, as an identifier of a night.
        at: UTC time in ISO 8601.
    """
    last = next(
        (record for record in reversed(past) if record.accepted and record.segment and record.environment), None
    )
    if last is None or last.accepted is None or last.segment is None or last.environment is None:
        return None
    measured = Tonight(last.job, last.segment, last.environment, last.accepted, unit=last.unit)
    level = level_of(ComparableNights.of(past, measured).comparable)
    found = []
    if level.rate.side < 0:
        now, before = (
            evidence.rate_text(rate, last.unit) for rate in (median(level.rate.changed), level.rate.expected)
        )
        found.append(f"throughput of {now} since {level.rate.since}, {before} before")
    if level.memory.side:
        now, before = (format_bytes(round(peak)) for peak in (median(level.memory.changed), level.memory.expected))
        found.append(f"peak of {now} since {level.memory.since}, {before} before")
    if not found:
        return None
    verdict = Verdict(kind=VerdictKind.STEADY, reason=f"accepted as the new level: {'; '.join(found)}")
    return NightRecord(
        id=id, job=last.job, night=night, at=at, unit=last.unit, environment=last.environment, segment=last.segment,
        budget_bytes=last.budget_bytes, verdict=verdict, level_accepted=True,
    )  # fmt: skip


@dataclass(slots=True)
class _Confirming:
    """Measures once more when it is first called, and keeps the figures for the record."""

    confirm: Callable[[], Figures | None]
    figures: Figures | None = field(default=None, init=False)
    _asked: bool = field(default=False, init=False)

    def __call__(self) -> NightReading | None:
        if not self._asked:
            self._asked, self.figures = True, self.confirm()
        return None if self.figures is None else reading(self.figures)


def _verdict(tonight: Tonight, earlier: ComparableNights, level: Level, decision: Decision) -> Verdict:
    rate, memory = decision.rate, decision.memory
    moved = _moved(decision)
    changed = tonight.changes_from(earlier.latest) if earlier.latest is not None else ()
    reason = evidence.sentence(decision, reading(tonight.accepted), level.rate, tonight.unit)
    if changed:
        reason = f"an earlier segment continues ({', '.join(changed)}): {reason}"
    kind, bisect, since = VerdictKind.STEADY, tuple[str, ...](), ""
    if moved:
        regressed = moved != ("faster",)
        kind = VerdictKind.REGRESSION if regressed else VerdictKind.FASTER
        steady = earlier.measured(_last_steady(level, decision))
        since = _since(level, decision)
        changed = bisecting.changes(tonight.environment, steady)
        if regressed:
            bisect = bisecting.steps(tonight.job, tonight.environment, steady)
            bisect += _notes(tonight, earlier, level, decision)
    return Verdict(
        kind=kind, reason=reason, changed=changed, bisect=bisect, moved=moved, since=since,
        expected_per_s=rate.band.expected, low_per_s=rate.band.low, high_per_s=rate.band.high,
        expected_bytes=round(memory.band.expected), high_bytes=round(memory.band.high),
        compared_nights=rate.band.nights,
        evidence_nights=rate.suspicion.nights if rate.begins and rate.suspicion is not None else 1,
    )  # fmt: skip


def _slower_than_tuned(
    tonight: Tonight, earlier: ComparableNights, level: Level, confirming: _Confirming
) -> Verdict | None:
    """Returns the verdict on a night that is far slower than the search that found its plan; None if it is not.

    That search is the reference where the nights cannot tell: there are too few, or they differ too much. It is none
    any more once a person has accepted another level.
    """
    tuned, rate_per_s = tonight.tuned_per_s, tonight.accepted.rate_per_s
    if tuned is None or any(record.level_accepted for record in earlier.comparable):
        return None
    limit = (1 - evidence.WIDE_BAND) * tuned
    second = confirming() if rate_per_s < limit else None
    if second is None or second.rate_per_s >= limit:
        return None
    now, again, then = (evidence.rate_text(each, tonight.unit) for each in (rate_per_s, second.rate_per_s, tuned))
    lost = f"{1 - rate_per_s / tuned:.0%}"
    return Verdict(
        kind=VerdictKind.REGRESSION,
        reason=f"throughput is {lost} lower than in the search that found the plan: {now}, measured again {again}, "
        f"{then} then",
        bisect=bisecting.steps(tonight.job, tonight.environment, None),
        moved=("slower",),
        since=level.rate.since if level.rate.side < 0 else "",
        expected_per_s=tuned,
        low_per_s=limit,
    )


def _moved(decision: Decision) -> tuple[Moved, ...]:
    found: list[Moved] = []
    if decision.rate.side:
        found.append("slower" if decision.rate.side < 0 else "faster")
    if decision.memory.side:
        found.append("more memory")
    return tuple(found)


def _since(level: Level, decision: Decision) -> str:
    """Returns the first night of the change that is claimed; "" if it is tonight."""
    rate = decision.rate
    if rate.begins and rate.suspicion is not None and rate.suspicion.nights > 1:
        return level.rate.nights[1 - rate.suspicion.nights]
    return rate.since if rate.side else decision.memory.since


def _last_steady(level: Level, decision: Decision) -> str:
    """Returns the last night before the change that is claimed; for a slow decline, the last of the first nights."""
    rate = decision.rate
    if not rate.side:
        return level.memory.nights[-1] if level.memory.nights else ""
    if not rate.begins or rate.suspicion is None:
        return level.rate.nights[-1] if level.rate.nights else ""
    return level.rate.nights[WINDOW - 1 if rate.suspicion.cause == "drift" else -rate.suspicion.nights]


def _notes(tonight: Tonight, earlier: ComparableNights, level: Level, decision: Decision) -> tuple[str, ...]:
    """Returns further evidence on a regression: what the baseline did, and when the peak reaches the budget."""
    found = []
    if decision.rate.side < 0:
        found.append(bisecting.baseline_note(tonight, [r for r in earlier.comparable if not r.verdict.moved]))
    if decision.memory.side:
        found.append(evidence.until_budget(level.memory, tonight.accepted.peak_bytes, tonight.budget_bytes))
    return tuple(note for note in found if note)


def _incomparable(past: Sequence[NightRecord], tonight: Tonight, earlier: ComparableNights, missing: int) -> Verdict:
    """Returns the verdict while the segment has too few nights, with what began it."""
    latest = earlier.latest
    changed = () if latest is None else tonight.changes_from(latest)
    parts = []
    if latest is None:
        parts.append("the first night of this job")
    elif changed:
        parts.append(f"not comparable with the night before ({', '.join(changed)})")
        parts += _unjudged(past, tonight, latest)
    count, more = LEAST_NIGHTS - missing + 1, missing - 1
    needed = (
        f"{evidence.counted_nights(more)} more {'is' if more == 1 else 'are'} needed" if more else "it now has them"
    )
    if tonight.tuned_per_s is not None:
        ratio = tonight.accepted.rate_per_s / tonight.tuned_per_s
        parts.append(f"throughput is {ratio - 1:+.1%} from the search that found the plan")
    parts.append(f"night {count} of its segment; nights are compared once it has {LEAST_NIGHTS}: {needed}")
    return Verdict(kind=VerdictKind.CANNOT_COMPARE, reason="; ".join(parts), changed=changed)


def _unjudged(past: Sequence[NightRecord], tonight: Tonight, latest: NightRecord) -> list[str]:
    """Returns what is worth knowing about the previous segment, although it is not judged."""
    found, before, now = [], latest.segment, tonight.segment
    if before is not None and (before.workload, before.device, before.plan) == (now.workload, now.device, now.plan):
        rates = [
            record.accepted.rate_per_s for record in past
            if record.accepted is not None and record.segment == before and record.unit == tonight.unit
        ][-WINDOW:]  # fmt: skip
        if rates:
            ratio = tonight.accepted.rate_per_s / median(rates)
            found.append(f"not judged: throughput is {ratio - 1:+.1%} from the median of the previous segment")
    if latest.verdict.kind is VerdictKind.REGRESSION:
        found.append(f"the regression since {latest.verdict.since or latest.night} was open in the previous segment")
    return found
