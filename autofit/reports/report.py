"""Report: everything that a report shows, computed once. HTML, Markdown and JSON are written from this record alone."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from autofit.core.answer import Ratio
from autofit.core.briefing import GateRecord
from autofit.core.environment import Environment
from autofit.core.estimate import Estimate
from autofit.core.space import Refusal, StrategyRecord
from autofit.memory.profile import Profile

Role = Literal["recommended", "baseline", ""]
BATCH_ONLY = "batch size only"
"""`PlanRow.combination` of the baseline, and of plans that differ from it in the batch alone."""
UPPER_BOUND = "upper bound (sizes depend on the data)"
"""What is written beside an estimate, or a trace, that holds for all possible data rather than for what ran."""
WHAT_EACH_DOES = "What each strategy does"
"""Title of the list of strategies whose values differ between the recommended plan and the baseline."""


class _Record(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", populate_by_name=True, json_schema_serialization_defaults_required=True
    )


class PlanRow(_Record):
    """One plan that was tried, skipped or refused. Values that are not known are None, "" or {}.

    Attributes:
        rank: position in the table of all plans, from 1; the fastest plan that fits comes first.
        label: the plan in words: its batch and what it changes from the baseline.
        combination: what it changes from the baseline beside the batch; "batch size only" if nothing else.
        values: the value of each knob.
        role: "recommended", "baseline", or "" for any other plan. A baseline that was chosen is "recommended".
        is_baseline: whether it is the user's own plan.
        status: how its latest run ended (`autofit.core.outcome.Status`).
        reason: why it has no measurement, or why it was not chosen.
        rate_per_s: throughput on the scale shared by all rows, if it was measured within the budget.
        gain: throughput over the baseline. `gain.pairs` is 0 if the two did not race.
        peak_bytes: measured peak, in the reading that is compared with the budget.
        estimate: estimated peak before the plan first ran. Only estimates with a bound appear.
        on_front: whether no other measured plan is both faster and lighter.
        phases_s: seconds of one step by phase, of its latest run.
        duration_s: seconds that its latest run took, preparation included.
        earlier: whether its latest run is of an earlier search.
    """

    rank: int
    label: str
    combination: str
    values: dict[str, bool | int | str]
    micro_batch_size: int
    accumulation_steps: int
    role: Role = ""
    is_baseline: bool = False
    status: str
    reason: str = ""
    rate_per_s: float | None = None
    gain: Ratio | None = None
    peak_bytes: int | None = None
    estimate: Estimate | None = None
    on_front: bool = False
    phases_s: dict[str, float] = {}
    duration_s: float = 0.0
    earlier: bool = False

    @property
    def has_worst_case(self) -> bool:
        """Whether its estimate is the maximum over all possible data, which is not compared with a measured peak."""
        return self.estimate is not None and self.estimate.worst_case

    @property
    def expected_bytes(self) -> int | None:
        """The estimated peak; None without an estimate, or if it is the maximum over all possible data."""
        return None if self.estimate is None or self.estimate.worst_case else self.estimate.value_bytes


class SpeedCurve(_Record):
    """Throughput of one combination: its measured plans by rank, smallest micro batch first.

    `refused_sizes` are the micro batch sizes that did not fit, measured or estimated, in ascending order.
    """

    combination: str
    ranks: tuple[int, ...]
    refused_sizes: tuple[int, ...] = ()


class Racer(_Record):
    """A finalist of the race.

    Attributes:
        rank: its row (`PlanRow.rank`).
        ratio: throughput over that of the plan in `Report.race_reference`, with its 95 % interval.
        ratios: the ratio of each round, in order; () if they were not kept. With the baseline as reference: over the
            recommended plan in the same round, times the gain of that plan.
        note: why it was not chosen; "" for the recommended plan.
    """

    rank: int
    ratio: Ratio
    ratios: tuple[float, ...] = ()
    note: str = ""


class AnswerTime(_Record):
    """An answer of the search, with the seconds after which it came and the rank of its plan.

    `ratio` is its throughput over that of the baseline; None if the baseline was not measured.
    """

    at_s: float
    rank: int
    rate_per_s: float
    ratio: float | None = None


class PlanMemory(_Record):
    """The memory of the recommended plan or of the baseline, from its trace."""

    role: Role
    label: str
    profile: Profile


class LeftOut(_Record):
    """A combination of which no plan was measured: the plan of it that came closest to being run, and why none was.

    `basis` is the evidence behind the reason: "measured", "estimated" or "assumed".
    """

    label: str
    basis: str
    reason: str


class Report(_Record):
    """Everything that a report shows.

    All throughputs are on one scale, so a plan with a lower gain never has a higher throughput. A guess without bounds
    is not in the report. Texts that are not known are "".

    Attributes:
        title: what was tuned, such as "examples/gpt.py:make_workload".
        headline: the answer in a sentence: what the recommended plan brings, or why there is none.
        chosen: the recommended plan in words, how it changes the global batch, and its peak.
        cause: why there is no answer, in a few words.
        failure: whole message of the error that ended the search.
        feasible: whether there is an answer.
        unit: "samples" or "tokens": what `rate_per_s` counts.
        global_batch_size: samples per optimizer step of the recommended plan; None without one.
        proof_rate_per_s: throughput of the proof, in `unit`, if it contradicts that of the recommended plan; None if it
            agrees or cannot be compared.
        budget_note: the arithmetic of the memory budget.
        rows: every plan, best first.
        curves: one for each combination with at least two measured plans, and one for the recommended plan's
            combination, fastest first; () if no combination has two.
        race: the finalists beside the reference, fastest first; () if nothing raced.
        race_reference: the plan that the others are compared with: "baseline", or "recommended" if the baseline did not
            race; "" if nothing raced.
        answers: each plan that was the answer of the search, in the order in which they came; () if that is unknown.
        memory: the recommended plan, then the baseline; those whose memory was traced.
        left_out: combinations of which nothing was measured.
        refused: strategies and knob values that were not searched.
        evaluation: sentences on the plan for evaluation between epochs; () if the training has none.
        strategies: what the strategies do whose values differ between the recommended plan and the baseline.
        caveats: notes to read before using the plan.
        missing: parts that this report cannot show, each with the reason.
        study: where the trials are kept, without passwords.
        counts: number of trials by status.
        created: UTC time of the answer, in ISO 8601.
        stopped: why the search for plans ended.
        command: command line, or Python call, that repeats the search.
    """

    schema_name: Literal["autofit.report/1"] = Field(default="autofit.report/1", alias="schema")
    title: str
    headline: str
    chosen: str = ""
    cause: str = ""
    failure: str = ""
    feasible: bool
    unit: str
    global_batch_size: int | None = None
    proof_rate_per_s: float | None = None
    budget_bytes: int
    budget_note: str = ""
    rows: tuple[PlanRow, ...]
    curves: tuple[SpeedCurve, ...] = ()
    race: tuple[Racer, ...] = ()
    race_reference: Role = ""
    answers: tuple[AnswerTime, ...] = ()
    memory: tuple[PlanMemory, ...] = ()
    gates: tuple[GateRecord, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    refused: tuple[Refusal, ...] = ()
    evaluation: tuple[str, ...] = ()
    strategies: tuple[StrategyRecord, ...] = ()
    caveats: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    environment: Environment
    study: str = ""
    counts: dict[str, int] = {}
    duration_s: float = 0.0
    created: str = ""
    apply_code: str = ""
    stopped: str = ""
    command: str = ""
    plan_file: str = ""

    def row(self, rank: int) -> PlanRow:
        """Returns the row with this rank."""
        return self.rows[rank - 1]

    def is_upper_bound(self, plan: PlanMemory) -> bool:
        """Returns whether the trace of a plan holds for all possible data, so that less memory may be needed."""
        row = self.row_of(plan.role)
        return row is not None and row.has_worst_case

    def row_of(self, role: Role) -> PlanRow | None:
        """Returns the row of the recommended plan if that is the role, or else of the baseline."""
        return self.recommended if role == "recommended" else self.baseline

    @property
    def recommended(self) -> PlanRow | None:
        """The row of the recommended plan; None if nothing fits."""
        return next((row for row in self.rows if row.role == "recommended"), None)

    @property
    def baseline(self) -> PlanRow | None:
        """The row of the baseline, also if it is the recommended plan; None if it was never tried."""
        return next((row for row in self.rows if row.is_baseline), None)


def to_json(report: Report) -> str:
    """Returns a report as JSON text, as the published schema describes it."""
    return report.model_dump_json(by_alias=True, indent=2) + "\n"
