"""A night as JUnit XML: one test case for each job, so that continuous integration shows the jobs as it shows tests.

No specification exists. The document obeys both schemas in common use: that of Ant's JUnit task
(windyroad/JUnit-Schema, JUnit.xsd) and that of Jenkins' xUnit plugin (junit-10.xsd).
"""

from collections.abc import Sequence
from typing import NamedTuple

from autofit.nightly.instants import instant
from autofit.nightly.outputs.facts import MARK, History, evidence, headline, other_counts, readable
from autofit.nightly.records import NightRecord, VerdictKind
from autofit.nightly.result import NightResult
from autofit.reports.markup import Markup, element, joined, shortened

JOB_CLASS, FILE_CLASS = "autofit.nightly", "autofit.jobs_file"
"""Class names of the test cases of jobs, and of the errors in the jobs file."""
_OUTCOMES = {
    VerdictKind.REGRESSION: "failure",
    VerdictKind.DOES_NOT_FIT: "failure",
    VerdictKind.ERROR: "error",
    VerdictKind.CANNOT_COMPARE: "skipped",  # it ran, but nothing says whether well
}
"""Element that says how the test case of a verdict ended; others passed."""
_MOST_NAME, _MOST_REASON = 200, 1000
_NO_TIME = "1970-01-01T00:00:00"


class _Case(NamedTuple):
    """A test case: its name and class, how long it took, the element of its outcome ("" if it passed), and why."""

    name: str
    class_name: str
    took_s: float
    outcome: str
    kind: str
    reason: str
    evidence: Sequence[str] = ()


def rendered(night: NightResult, history: History) -> str:
    """Returns the night as one test suite. Jobs that were not checked or cannot be compared are skipped tests.

    Characters that XML 1.0 does not allow are left out or replaced.
    """
    cases = [*map(_of_record, night.records), *_others(night)]
    started = instant(night.night)
    counts = {name: sum(case.outcome == name for case in cases) for name in ("failure", "error", "skipped")}
    counted = f"{headline(night)} {other_counts(night)}".rstrip()
    notes = "\n".join(map(_reason, night.notes))
    suite = element(
        "testsuite", _properties(night), "\n", joined(map(_element, cases), "\n"), "\n",
        element("system-out", counted), element("system-err", notes),
        name="autofit nightly", package="autofit", id=0, hostname="localhost",
        timestamp=_NO_TIME if started is None else f"{started:%Y-%m-%dT%H:%M:%S}",
        tests=len(cases), failures=counts["failure"], errors=counts["error"], skipped=counts["skipped"],
        time=f"{sum(case.took_s for case in cases):.3f}",
    )  # fmt: skip
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{MARK}\n{element("testsuites", suite)}\n'


def _of_record(record: NightRecord) -> _Case:
    verdict = record.verdict
    lines = [f"{name}: {text}" for name, text in evidence(record)]
    lines += [f"changed since the last steady night: {readable(text)}" for text in verdict.changed]
    lines += [f"to find the cause: {text}" for text in verdict.bisect]
    outcome = _OUTCOMES.get(verdict.kind, "")
    return _Case(record.job, JOB_CLASS, record.duration_s, outcome, verdict.kind.value, verdict.reason, lines)


def _others(night: NightResult) -> list[_Case]:
    unchecked = [_Case(job, JOB_CLASS, 0.0, "skipped", "not checked", why) for job, why in night.unchecked.items()]
    problems = [
        _Case(f"error {number}", FILE_CLASS, 0.0, "error", "jobs file", text)
        for number, text in enumerate(night.problems, start=1)
    ]
    return [*unchecked, *problems]


def _element(case: _Case) -> Markup:
    inside = None
    if case.outcome:
        reason = _reason(case.reason)
        lines = "\n".join([reason, *map(_reason, case.evidence)])
        inside = element(case.outcome, lines, message=reason, type=case.kind if case.outcome != "skipped" else None)
    name = shortened(case.name, _MOST_NAME) or "unnamed"
    return element("testcase", inside, classname=case.class_name, name=name, time=f"{case.took_s:.3f}")


def _reason(text: str) -> str:
    return shortened(text, _MOST_REASON)


def _properties(night: NightResult) -> Markup:
    entries = {"night": night.night, "exit_code": str(night.exit_code)}
    entries |= {f"device of {record.job}": record.segment.device for record in night.records if record.segment}
    found = (
        element("property", name=shortened(name, _MOST_NAME), value=shortened(text, _MOST_NAME))
        for name, text in entries.items()
    )
    return element("properties", joined(found))
