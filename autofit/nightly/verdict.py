"""The verdict on a job in one night: from its figures and the earlier nights to a kind and its evidence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from autofit.core.environment import Environment
from autofit.core.printable import one_line
from autofit.core.units import format_bytes, short_number
from autofit.nightly.levels import LEAST_NIGHTS, WINDOW, Band, Decision, Level, NightReading, Ruling, decide
from autofit.nightly.records import NOT_MEASURED, Figures, HistorySegment, NightRecord, Verdict, VerdictKind
from autofit.reports.sentences import counted

WIDE_BAND = 0.3
"""Share of the throughput that a night may lose unnoticed, above which its band is too wide to tell. It is also what a
night may lose against the search that found its plan: two separate runs on a shared machine differ by that much."""
_SAME_PLAN = {"workload", "device", "plan"}
"""What the throughput of two segments has in common if it may be shown side by side."""


@dataclass(frozen=True, slots=True)
class Tonight:
    """What a night measured of a job, before it is judged, with the fields of its record.

    `tuned_per_s` is the throughput of the accepted plan in the search that found it; None if that is not comparable.
    """

    segment: HistorySegment
    environment: Environment
    accepted: Figures
    budget_bytes: int | None = None
    unit: str = "samples"
    tuned_per_s: float | None = None

    @property
    def reading(self) -> NightReading:
        """The first measurement as a reading."""
        return _reading(self.accepted)

    def changes_from(self, record: NightRecord | None) -> tuple[str, ...]:
        """Returns what makes an earlier record incomparable, as "name: value, was earlier value"."""
        if record is None or record.segment is None:
            return ()
        found = list(self.segment.changes(record.segment))
        if record.unit != self.unit:
            found.append(f"unit: {self.unit}, was {record.unit}")
        if record.accepted is not None and record.accepted.judged_by != self.accepted.judged_by:
            found.append(f"memory reading: {self.accepted.judged_by}, was {record.accepted.judged_by}")
        return tuple(found)

    def comparable(self, past: Sequence[NightRecord]) -> list[NightRecord]:
        """Returns the earlier records whose figures may be compared with those of tonight, oldest first."""
        return [record for record in past if record.segment == self.segment and not self.changes_from(record)]


def judge(
    past: Sequence[NightRecord], tonight: Tonight, confirm: Callable[[], Figures | None]
) -> tuple[Verdict, Figures | None]:
    """Returns the verdict on a night in which the accepted plan ran, and its second measurement if one was made.

    That a job regressed, became faster, or is back at its level is claimed only if a second measurement agrees.

    Args:
        past: all earlier records of the job, oldest first.
        tonight: what was measured.
        confirm: measures the accepted plan once more, and returns None if it did not run. Called at most once. The
            later it measures, the less noise the two measurements share.
    """
    peak_bytes, budget_bytes = tonight.accepted.peak_bytes, tonight.budget_bytes
    if budget_bytes is not None and peak_bytes > budget_bytes:
        over = f"its peak {format_bytes(peak_bytes)} is above the budget of {format_bytes(budget_bytes)}"
        return failed(past, tonight.segment, tonight.environment, over, fits=False), None
    nights, measured = tonight.comparable(past), list[Figures | None]()

    def again() -> NightReading | None:
        if not measured:
            measured.append(confirm())
        return None if measured[0] is None else _reading(measured[0])

    level = level_of(nights)
    if level.missing_nights:
        few = _too_few_nights(past, tonight, level.missing_nights)
        return _slower_than_tuned(tonight, nights, level, again) or few, next(iter(measured), None)
    decision = decide(level, tonight.reading, again)
    verdict = _verdict(past, tonight, nights, level, decision)
    if verdict.kind is VerdictKind.STEADY and _unnoticed(decision.rate.band) > WIDE_BAND:
        unknown = {"kind": VerdictKind.CANNOT_COMPARE, "reason": f"too noisy to tell: {verdict.reason}"}
        verdict = _slower_than_tuned(tonight, nights, level, again) or verdict.model_copy(update=unknown)
    return verdict, next(iter(measured), None)


def failed(
    past: Sequence[NightRecord], segment: HistorySegment, environment: Environment, reason: str, *, fits: bool
) -> Verdict:
    """Returns the verdict on a night in which the accepted plan gave no figures, for a reason in one sentence.

    `fits` is False if the plan ran out of memory or exceeded its budget, True if it failed otherwise.
    """
    ran = next((record for record in reversed(past) if record.accepted is not None), None)
    changed = _changes(environment, ran)
    if ran is not None and ran.segment is not None:
        changed += segment.changes(ran.segment, {"plan"})
    kind = VerdictKind.ERROR if fits else VerdictKind.DOES_NOT_FIT
    return Verdict(kind=kind, reason=one_line(reason).rstrip("."), changed=changed)


def level_accepted(past: Sequence[NightRecord], *, id: str, night: str, at: str) -> NightRecord | None:
    """Returns the record that accepts the level of the open regression of a job; None if there is none.

    Once it is in the history, later nights are compared with the nights since the regression began.
    """
    last = next((record for record in reversed(past) if record.accepted and record.segment), None)
    if last is None or last.accepted is None or last.segment is None or last.environment is None:
        return None
    level = level_of(Tonight(last.segment, last.environment, last.accepted, unit=last.unit).comparable(past))
    found = []
    if level.rate.side < 0:
        now, before = (rate_text(rate, last.unit) for rate in (median(level.rate.changed), level.rate.expected))
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


def level_of(records: Sequence[NightRecord]) -> Level:
    """Returns the level of comparable records, oldest first. Nights without figures are left out."""
    level = Level()
    for record in records:
        if record.level_accepted:
            level.accept()
        elif record.accepted is not None and record.verdict.kind not in NOT_MEASURED:
            second = record.confirmation or record.accepted
            level.add(record.night, _reading(record.accepted), _reading(second), record.verdict)
    return level


def rate_text(rate_per_s: float, unit: str) -> str:
    """Returns a throughput with its unit."""
    return f"{short_number(rate_per_s)} {unit}/s"


def _reading(figures: Figures) -> NightReading:
    return NightReading(figures.rate_per_s, figures.peak_bytes)


def _verdict(
    past: Sequence[NightRecord], tonight: Tonight, nights: list[NightRecord], level: Level, decision: Decision
) -> Verdict:
    rate, memory = decision.rate, decision.memory
    latest = next((record for record in reversed(past) if record.segment is not None), None)
    changed, reason = tonight.changes_from(latest), _evidence(tonight, level, decision)
    if changed:
        reason = f"an earlier segment continues ({', '.join(changed)}): {reason}"
    moved, evidence_nights = decision.moved, decision.evidence_nights
    measured = [record for record in nights if record.accepted and record.verdict.kind not in NOT_MEASURED]
    since = rate.since if rate.side else memory.since
    if evidence_nights > 1:
        since = measured[1 - evidence_nights].night
    if moved:
        steady = [record for record in measured if not since or record.night < since]
        changed = _changes(tonight.environment, steady[-1] if steady else None)
    kind = VerdictKind.FASTER if moved == ("faster",) else VerdictKind.REGRESSION if moved else VerdictKind.STEADY
    return Verdict(
        kind=kind, reason=reason, changed=changed, moved=moved, since=since if moved else "",
        expected_per_s=rate.band.expected, low_per_s=rate.band.low, high_per_s=rate.band.high,
        expected_bytes=round(memory.band.expected), high_bytes=round(memory.band.high),
        compared_nights=rate.band.nights, evidence_nights=evidence_nights,
    )  # fmt: skip


def _changes(now: Environment, steady: NightRecord | None) -> tuple[str, ...]:
    """Returns what differs from the environment of an earlier night, as "name: value, was earlier value"."""
    return () if steady is None or steady.environment is None else tuple(now.differences(steady.environment))


def _slower_than_tuned(
    tonight: Tonight, nights: Sequence[NightRecord], level: Level, again: Callable[[], NightReading | None]
) -> Verdict | None:
    """Returns the verdict on a night that is far slower than the search that found its plan; None if it is not.

    That search is the reference where the nights cannot tell: there are too few, or they differ too much. It is none
    any more once a person has accepted another level.
    """
    tuned, rate_per_s = tonight.tuned_per_s, tonight.accepted.rate_per_s
    if tuned is None or any(record.level_accepted for record in nights):
        return None
    limit = (1 - WIDE_BAND) * tuned
    second = again() if rate_per_s < limit else None
    if second is None or second.rate_per_s >= limit:
        return None
    now, repeated, then = (rate_text(each, tonight.unit) for each in (rate_per_s, second.rate_per_s, tuned))
    return Verdict(
        kind=VerdictKind.REGRESSION,
        reason=f"throughput is {1 - rate_per_s / tuned:.0%} lower than in the search that found the plan: {now}, "
        f"measured again {repeated}, {then} then",
        moved=("slower",),
        since=level.rate.since if level.rate.side < 0 else "",
        expected_per_s=tuned,
        low_per_s=limit,
    )


def _too_few_nights(past: Sequence[NightRecord], tonight: Tonight, missing: int) -> Verdict:
    """Returns the verdict while the segment has too few nights, with what began it."""
    latest = next((record for record in reversed(past) if record.segment is not None), None)
    changed = tonight.changes_from(latest)
    parts = ["the first night of this job"] if latest is None else []
    if latest is not None and changed:
        parts.append(f"not comparable with the night before ({', '.join(changed)})")
        same_plan = latest.segment is not None and not tonight.segment.changes(latest.segment, _SAME_PLAN)
        before = [each.accepted for each in past if each.segment == latest.segment and each.unit == tonight.unit]
        if same_plan and (rates := [figures.rate_per_s for figures in before if figures is not None]):
            ratio = tonight.accepted.rate_per_s / median(rates[-WINDOW:])
            parts.append(f"not judged: throughput is {ratio - 1:+.1%} from the median of the previous segment")
        if latest.verdict.kind is VerdictKind.REGRESSION:
            since = latest.verdict.since or latest.night
            parts.append(f"the regression since {since} was open in the previous segment")
    if tonight.tuned_per_s is not None:
        ratio = tonight.accepted.rate_per_s / tonight.tuned_per_s
        parts.append(f"throughput is {ratio - 1:+.1%} from the search that found the plan")
    count, more = LEAST_NIGHTS - missing + 1, missing - 1
    needed = f"{counted(more, 'night')} more {'is' if more == 1 else 'are'} needed" if more else "it now has them"
    parts.append(f"night {count} of its segment; nights are compared once it has {LEAST_NIGHTS}: {needed}")
    return Verdict(kind=VerdictKind.CANNOT_COMPARE, reason="; ".join(parts), changed=changed)


def _evidence(tonight: Tonight, level: Level, decision: Decision) -> str:
    """Returns the evidence on both measures without a full stop, a claim first."""
    rate, memory = decision.rate, decision.memory
    first, second = tonight.reading, decision.second or (None, None)
    texts = [
        _described("throughput", lambda x: rate_text(x, tonight.unit), rate, first[0], second[0]),
        _described("the peak", lambda x: format_bytes(round(x)), memory, first[1], second[1]),
    ]
    if rate.side > 0 and not rate.begins:
        more = LEAST_NIGHTS - len(level.rate.changed) - 1
        when = f"after {counted(more, 'night')} more" if more > 0 else "from now on"
        texts[0] += f"; {when}, nights are compared with the new level"
    lost = _unnoticed(rate.band)
    if lost > WIDE_BAND and rate.suspicion is None and not rate.since:
        texts[0] += f", so wide that a night is not noticed before it loses {lost:.0%}: the nights differ too much"
    return "; ".join(texts[::-1] if memory.side and not rate.side else texts)


def _described(name: str, shown: Callable[[float], str], ruling: Ruling, first: float, second: float | None) -> str:
    """Returns what is claimed of one measure, and its evidence."""
    found, band = ruling.suspicion, ruling.band
    readings = shown(first) + ("" if second is None else f", measured again {shown(second)}")
    limits = f"{shown(band.low)} to {shown(band.high)}"
    if ruling.since:  # a change that was open before tonight
        figures = f"{readings}, {shown(band.expected)} before"
        if not ruling.side:
            return f"{name} is back: {figures}; the change since {ruling.since} ended"
        still = (
            f"still {_difference(first, band.expected)} than" if found is None else "not reliably back to where it was"
        )
        end = "" if ruling.side > 0 and name == "throughput" else "; reported until it is back or accepted"
        return f"{name} is {still} before {ruling.since}: {figures}{end}"
    if found is None:
        return f"{name} {shown(first)} is inside its band of {counted(band.nights, 'night')}, {limits}"
    if ruling.side:
        over = f" over the last {found.nights} nights" if found.nights > 1 else ""
        moved = f"{_difference(found.shown, found.expected)}{over}"
        claim = f"is {moved} than the median of {counted(found.before, 'night')}, {shown(found.expected)}"
    else:
        again = ", and was not measured again" if second is None else " once, not when measured again"
        claim = f"was {'higher' if found.side > 0 else 'lower'} than expected{again}"
    return f"{name} {claim}: tonight {readings}, band {limits}"


def _difference(value: float, expected: float) -> str:
    """Returns by how much a value is higher or lower."""
    return f"{abs(value / expected - 1):.1%} {'higher' if value > expected else 'lower'}" if expected else "higher"


def _unnoticed(band: Band) -> float:
    """Returns the share of the throughput that a night may lose inside its band."""
    return 1 - band.low / band.expected if band.expected else 0.0
