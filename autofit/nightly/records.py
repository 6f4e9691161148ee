"""Records of a night: what was measured for a job, and the verdict on it. The history of a job is a list of these."""

import json
from enum import StrEnum
from statistics import median
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from autofit.core.answer import Ratio
from autofit.core.environment import Environment
from autofit.core.plan import Plan

NIGHT_SCHEMA = "autofit.night/1"
Moved = Literal["slower", "faster", "more memory"]
"""What may be outside its band."""
PROTOCOL = 1
"""Version of how a night measures. Figures of different versions are not compared: raise it with each change."""


class _NightPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class HistorySegment(_NightPart):
    """What must be equal for the figures of two nights to be compared. A change begins a new segment.

    Attributes:
        workload: signature of the workload: model, batches and loss.
        device: kind and name of the device, with its capacity in GiB.
        driver: version of its driver; "" if it has none.
        torch: version of torch.
        protocol: how the night measured (`PROTOCOL`).
        plan: key of the plan that was measured (`Plan.key`).
    """

    workload: str
    device: str
    driver: str
    torch: str
    protocol: int
    plan: str

    @classmethod
    def of(cls, environment: Environment, plan: Plan) -> "HistorySegment":
        """Returns the segment of a plan that is measured in an environment by this version."""
        versions = environment.versions
        return cls(
            workload=environment.workload,
            device=f"{environment.device_type} {environment.device_name}, {environment.capacity_bytes / 2**30:.0f} GiB",
            driver=versions.get("driver", ""),
            torch=versions.get("torch", ""),
            protocol=PROTOCOL,
            plan=plan.key,
        )

    def changes(self, earlier: "HistorySegment", names: set[str] | None = None) -> tuple[str, ...]:
        """Returns what differs from an earlier segment, of these names, as "name: value, was earlier value"."""
        now, then = self.model_dump(include=names), earlier.model_dump(include=names)
        words = {"plan": _plan_in_words}
        return tuple(
            f"{name}: {words.get(name, str)(now[name])}, was {words.get(name, str)(then[name])}"
            for name in now
            if now[name] != then[name]
        )


def _plan_in_words(key: str) -> str:
    """Returns a plan as "knob=value knob=value", given its key, which is JSON."""
    try:
        return str(Plan(values=json.loads(key)))
    except ValueError:  # also pydantic's ValidationError
        return key


class Figures(_NightPart):
    """What a night measured of one plan.

    Attributes:
        plan: the plan.
        rates_per_s: throughput of each block, in the unit of the record, in the order in which the blocks ran.
        peak_bytes: measured peak, in the reading that is compared with the budget.
        judged_by: name of that reading.
    """

    plan: Plan
    rates_per_s: tuple[float, ...] = Field(min_length=1)
    peak_bytes: int
    judged_by: str = ""

    @property
    def rate_per_s(self) -> float:
        """Median throughput of the blocks."""
        return median(self.rates_per_s)


class VerdictKind(StrEnum):
    """What a night says of a job."""

    STEADY = "steady"
    FASTER = "faster"
    REGRESSION = "regression"  # slower, or more memory, than the segment; measured twice
    DOES_NOT_FIT = "does not fit"  # the accepted plan does not run within its budget any more
    CANNOT_COMPARE = "cannot compare"  # too few nights in the segment, or a changed environment
    ERROR = "error"  # the job could not be checked


NOT_MEASURED = (VerdictKind.DOES_NOT_FIT, VerdictKind.ERROR)
"""Verdicts on a night in which the accepted plan gave no figures that count."""


class Verdict(_NightPart):
    """The verdict on a job in one night, with its evidence.

    Attributes:
        kind: the verdict.
        reason: the evidence in one sentence without a full stop.
        expected_per_s: median throughput of the nights that it was compared with; None if it was not compared.
        low_per_s: lower limit of the noise band of throughput; None if it was not compared.
        high_per_s: upper limit of the noise band of throughput; None if it was not compared.
        expected_bytes: peak that it was compared with; None if it was not compared.
        high_bytes: upper limit of the noise band of the peak; None if it was not compared.
        compared_nights: number of nights that it was compared with.
        moved: what is outside its band, confirmed by a second measurement or open since an earlier night.
        since: first night of the change in `moved`; "" if it began tonight or nothing moved.
        evidence_nights: number of nights, this one included, that are together the evidence for a new change of
            throughput.
        changed: what differs from the last steady night, as "name: value, was earlier value".
    """

    kind: VerdictKind
    reason: str
    expected_per_s: float | None = None
    low_per_s: float | None = None
    high_per_s: float | None = None
    expected_bytes: int | None = None
    high_bytes: int | None = None
    compared_nights: int = 0
    moved: tuple[Moved, ...] = ()
    since: str = ""
    evidence_nights: int = 1
    changed: tuple[str, ...] = ()


class NightRecord(_NightPart):
    """One job in one night. Appended to the history once the job is done; never changed.

    Attributes:
        schema_name: the record's schema and version.
        id: unique identifier, so that a record whose writing is tried again is stored once.
        job: name of the job.
        night: identifier of the night: the UTC time at which it began, in ISO 8601.
        at: UTC time at which the job was checked, in ISO 8601.
        duration_s: seconds spent on the job.
        probes: number of runs of plans, without those of a search.
        unit: "samples" or "tokens": the unit of throughput.
        environment: where it was measured; None if the workload could not be opened.
        segment: what the figures may be compared with; None if no accepted plan was tried.
        budget_bytes: memory budget of the job; None if unknown.
        accepted: what was measured of the accepted plan; None if it did not run.
        confirmation: the second measurement of the accepted plan in the same night; None if none was needed.
        baseline: what was measured of the baseline; None if it did not run.
        gain: throughput of the accepted plan over the baseline, from interleaved blocks; None without a baseline.
        verdict: the verdict.
        tuned: why the job was tuned in this night; "" if it was not.
        proposed: the better plan that the night found; None if there is none.
        proposed_gain: throughput of that plan over the accepted one, from interleaved blocks; None if the accepted plan
            does not run.
        replaced: whether that plan replaced the accepted one in this night.
        level_accepted: whether a person accepted the level of an open regression. Such a record has no figures
            (`autofit.nightly.verdict.level_accepted`).
        notes: further notes for people.
    """

    schema_name: Literal["autofit.night/1"] = Field(default="autofit.night/1", alias="schema")
    id: str
    job: str
    night: str
    at: str
    duration_s: float = 0.0
    probes: int = 0
    unit: str = "samples"
    environment: Environment | None = None
    segment: HistorySegment | None = None
    budget_bytes: int | None = None
    accepted: Figures | None = None
    confirmation: Figures | None = None
    baseline: Figures | None = None
    gain: Ratio | None = None
    verdict: Verdict
    tuned: str = ""
    proposed: Plan | None = None
    proposed_gain: Ratio | None = None
    replaced: bool = False
    level_accepted: bool = False
    notes: tuple[str, ...] = ()


class NightResult(_NightPart):
    """The result of a night, for its outputs and its exit code.

    Attributes:
        schema_name: the schema and version of the result.
        night: identifier of the night: the UTC time at which it began, in ISO 8601.
        records: one record for each job that was checked, in the order in which they were checked. A continued night
            has those of its earlier processes first.
        problems: errors of the jobs file, each with file, line, what was found and what was expected.
        unchecked: for each job that was not checked, the reason.
        notes: what people should know of the night besides: a hook that failed, a database that is away.
        exit_code: exit code of the command line.
    """

    schema_name: Literal["autofit.nightly/1"] = Field(default="autofit.nightly/1", alias="schema")
    night: str
    records: tuple[NightRecord, ...] = ()
    problems: tuple[str, ...] = ()
    unchecked: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    exit_code: int = 0


def to_text(record: NightRecord) -> str:
    """Returns a record as JSON in ASCII."""
    # Unpaired surrogates, as in the name of a file that is not UTF-8, are not valid JSON for other readers.
    text = json.dumps(record.model_dump(mode="json", by_alias=True), ensure_ascii=False)
    return json.dumps(json.loads(text.encode("utf-8", "replace")))


def from_text(text: str) -> NightRecord | None:
    """Returns the record of a text; None if it cannot be read."""
    try:
        return NightRecord.model_validate_json(text)
    except ValueError:  # pydantic's ValidationError is one
        return None
