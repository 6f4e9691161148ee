"""Facts of a night in words, the same in every format: verdicts in order, figures beside what was expected, changes."""

import json
import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence

from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.recommendation import Ratio
from autofit.core.units import format_bytes, short_number
from autofit.core.wording import describe_plan
from autofit.nightly.instants import instant
from autofit.nightly.records import Figures, NightRecord, VerdictKind
from autofit.nightly.result import NightResult
from autofit.reports.sentences import counted, difference

History = Mapping[str, Sequence[NightRecord]]
"""All records of each job, oldest first."""
MARK = "<!-- autofit nightly -->"
"""Comment in the first lines of the files of a night, by which an earlier one is recognised."""

URGENCY = (
    VerdictKind.REGRESSION, VerdictKind.DOES_NOT_FIT, VerdictKind.ERROR, VerdictKind.CANNOT_COMPARE,
    VerdictKind.FASTER, VerdictKind.STEADY,
)  # fmt: skip
"""Verdicts in the order in which they are shown."""
ATTENTION = frozenset({VerdictKind.REGRESSION, VerdictKind.DOES_NOT_FIT, VerdictKind.ERROR})
"""Verdicts that somebody should look at."""
_COUNTED = {
    VerdictKind.REGRESSION: ("regression", "regressions"),
    VerdictKind.DOES_NOT_FIT: ("does not fit", "do not fit"),
    VerdictKind.ERROR: ("failed", "failed"),
    VerdictKind.CANNOT_COMPARE: ("cannot be compared", "cannot be compared"),
    VerdictKind.FASTER: ("faster", "faster"),
    VerdictKind.STEADY: ("steady", "steady"),
}
_PLAN_KEY = re.compile(r"\{[^{}]*\}")


def by_urgency(records: Sequence[NightRecord]) -> list[NightRecord]:
    """Returns records, sorted so that those that somebody should look at come first."""
    return sorted(records, key=lambda record: URGENCY.index(record.verdict.kind))


def noteworthy(records: Sequence[NightRecord]) -> list[NightRecord]:
    """Returns the records that have a section of their own: somebody should look at them, or they have a proposal."""
    return [record for record in records if record.verdict.kind in ATTENTION or record.proposed is not None]


def headline(night: NightResult) -> str:
    """Returns in one sentence what somebody should look at."""
    total = len(night.records) + len(night.unchecked)
    urgent = sum(record.verdict.kind in ATTENTION for record in night.records)
    problems = f"{counted(len(night.problems), 'error')} in the jobs file" if night.problems else ""
    if urgent:
        start = "The job needs" if total == 1 else f"{urgent:,} of {total:,} jobs need{'s' if urgent == 1 else ''}"
        counts = ", ".join(text for text in (verdict_counts(night.records, ATTENTION), problems) if text)
        return f"{start} attention: {counts}."
    start = "The job needs no attention" if total == 1 else f"None of {total:,} jobs needs attention"
    start = start if night.records else "No job was checked"
    return f"{start}; {problems}." if problems else f"{start}."


def other_counts(night: NightResult) -> str:
    """Returns how many jobs have the verdicts that the headline does not name; "" if there is none."""
    counts = [verdict_counts(night.records, set(URGENCY) - ATTENTION)]
    counts += [f"{len(night.unchecked):,} not checked"] if night.unchecked else []
    return ", ".join(text for text in counts if text)


def verdict_counts(records: Sequence[NightRecord], among: Container[VerdictKind] = URGENCY) -> str:
    """Returns how many records have each of some verdicts: "2 regressions, 1 failed"; "" if none has one."""
    kinds = Counter(record.verdict.kind for record in records)
    shown = (kind for kind in URGENCY if kinds[kind] and kind in among)
    return ", ".join(f"{kinds[kind]:,} {_COUNTED[kind][kinds[kind] != 1]}" for kind in shown)


def day(night: str) -> str:
    """Returns the date on which a night began, such as "2026-11-25"; other texts as given."""
    found = instant(night)
    return night if found is None else f"{found:%Y-%m-%d}"


def moment(night: str) -> str:
    """Returns the time at which a night began, such as "2026-11-25 01:00 UTC"; other texts as given."""
    found = instant(night)
    return night if found is None else f"{found:%Y-%m-%d %H:%M} UTC"


def merged(night: NightResult, history: History) -> dict[str, tuple[NightRecord, ...]]:
    """Returns the records of each job, oldest first, with those of the night, whether the history holds them or not."""
    found = {job: tuple(records) for job, records in history.items()}
    for record in night.records:
        known = found.get(record.job, ())
        if all(record.id != one.id for one in known):
            found[record.job] = (*known, record)
    return {job: records for job, records in found.items() if records}


def since(records: Sequence[NightRecord]) -> tuple[str, int]:
    """Returns the night since which a job has had its latest verdict, and the number of nights since then."""
    kind, count = records[-1].verdict.kind, 0
    while count < len(records) and records[-1 - count].verdict.kind is kind:
        count += 1
    return records[-count].night, count


def rate_change(record: NightRecord) -> float | None:
    """Returns the relative difference of the throughput from the expected one; None if it was not compared."""
    expected = record.verdict.expected_per_s
    return record.accepted.rate_per_s / expected - 1 if record.accepted is not None and expected else None


def rate(record: NightRecord) -> str:
    """Returns the throughput of the accepted plan with its unit; "" if it did not run."""
    return "" if record.accepted is None else _rate(record.accepted, record)


def _rate(figures: Figures, record: NightRecord) -> str:
    return f"{short_number(figures.rate_per_s)} {record.unit}/s"


def change(record: NightRecord) -> str:
    """Returns the relative difference of the throughput from the expected one as a text; "" if there is none."""
    found = rate_change(record)
    return "" if found is None else difference(found)


def peak(record: NightRecord) -> str:
    """Returns the measured peak and the budget; "" if the plan did not run."""
    if record.accepted is None:
        return ""
    of = f" of {format_bytes(record.budget_bytes)}" if record.budget_bytes else ""
    return f"{format_bytes(record.accepted.peak_bytes)}{of}"


def evidence(record: NightRecord) -> list[tuple[str, str]]:
    """Returns what was measured and what it was compared with, as names with texts, none of them empty."""
    second = record.confirmation
    entries = [
        ("throughput", _joined(rate(record), _expected_rate(record))),
        ("measured again", "" if second is None else _rate(second, record)),
        ("peak memory", _joined(peak(record), _expected_peak(record))),
        ("over the baseline", _ratio(record.gain)),
        ("accepted plan", plan_words(record.accepted.plan, record) if record.accepted is not None else ""),
        ("tuned because", record.tuned),
        ("proposed plan" if not record.replaced else "new accepted plan", _proposal(record)),
        ("device", device(record)),
    ]
    return [(name, text) for name, text in entries if text]


def _joined(first: str, second: str) -> str:
    return f"{first}; {second}" if first and second else first


def _expected_rate(record: NightRecord) -> str:
    verdict = record.verdict
    if verdict.low_per_s is None or verdict.high_per_s is None:
        return ""
    band = f"{short_number(verdict.low_per_s)} to {short_number(verdict.high_per_s)}"
    return f"expected {band} by {counted(verdict.compared_nights, 'night')}"


def _expected_peak(record: NightRecord) -> str:
    high = record.verdict.high_bytes
    return "" if high is None else f"expected at most {format_bytes(high)}"


def _ratio(ratio: Ratio | None) -> str:
    return "" if ratio is None else str(ratio)


def _proposal(record: NightRecord) -> str:
    if record.proposed is None:
        return ""
    gain = f": {record.proposed_gain} of the accepted plan's throughput" if record.proposed_gain is not None else ""
    return f"{plan_words(record.proposed, record)}{gain}"


def plan_words(plan: Plan, record: NightRecord) -> str:
    """Returns a plan in words: its batch, and what it changes from the baseline if that is known."""
    sizes = [plan.values.get(name, 1) for name in (MICRO_BATCH_SIZE, ACCUMULATION_STEPS)]
    if MICRO_BATCH_SIZE not in plan.values or not all(type(size) is int for size in sizes):
        return str(plan)
    return describe_plan(plan, record.baseline.plan if record.baseline is not None else Plan())


def device(record: NightRecord) -> str:
    """Returns the device with its driver and torch; "" if the workload could not be opened."""
    if record.segment is None:
        return ""
    versions = [f"driver {record.segment.driver}" if record.segment.driver else "", f"torch {record.segment.torch}"]
    return ", ".join([record.segment.device, *(version for version in versions if version)])


def readable(changed: str) -> str:
    """Returns a change with the keys of plans, which are JSON, as "knob=value knob=value"."""
    return _PLAN_KEY.sub(_without_json, changed)


def _without_json(found: re.Match[str]) -> str:
    try:
        values = json.loads(found[0])
    except ValueError:
        return found[0]
    return " ".join(f"{name}={value}" for name, value in values.items()) or str(Plan())
