"""What a search is asked (Request), needs (Bench, Tuning), reports while it runs (Event), and returns (Findings)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from autofit import searchers
from autofit.core.answer import Candidate, Ratio
from autofit.core.briefing import Briefing
from autofit.core.budget import Budget, Clock
from autofit.core.errors import UsageError
from autofit.core.estimate import Estimate
from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.space import Refusal, SearchSpace
from autofit.core.trial import OPEN, Purpose, RunTerms, Trial
from autofit.estimators.base import Estimator
from autofit.gates.verdict import Checked, GateVerdict
from autofit.memory.trace import Trace
from autofit.search.choice import DISTURBED_NOISE_RATIO
from autofit.search.evidence import Answered, Placing, SearchEvidence, SearchResult
from autofit.searchers.base import Problem, Searcher


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a search.

    Attributes:
        kind: "start", when a search begins; "stage", "trial", "skipped", "answer", "race" or "proof"; "running" when a
            probe or a proof begins; "busy" if the device or the study is in use by another tuner, for which the search
            waits; "result" for the last event of a search; or "waiting", which comes from another thread if a run
            makes no progress for long.
        text: one line of text.
        trial: the trial, for "trial", "skipped" and "proof".
        done: number of trials run so far.
        result: what the search found, for "result", also if the search failed.
        phase: "survey", "search", "race" or "proof"; "" if unknown.
        plan: the plan that begins to run, for "running"; the answer so far, for "answer"; the leader, for "race" once
            every plan has run enough rounds.
        estimate: estimated peak of `plan`, for "running"; None if there is none.
        gain: throughput of `plan` over the baseline, for "race".
        asked: the request and its environment, for "start".
        so_far: throughput of the answer so far over that of the baseline, by probes; None before there is one.
        standings: the plans of the race, best first, for "race". A gain whose `pairs` is 0 rests on probes alone. The
            `note` is why a plan left the race.
    """

    kind: str
    text: str
    trial: Trial | None = None
    done: int = 0
    result: SearchResult | None = None
    phase: str = ""
    plan: Plan | None = None
    estimate: Estimate | None = None
    gain: Ratio | None = None
    asked: SearchEvidence | None = None
    standings: tuple[Placing, ...] = ()
    so_far: float | None = None


DEFAULT_STUDY = Path(".autofit") / "study.journal"

Listen = Callable[[Event], None]
"""Called with each event of a search."""


@dataclass(frozen=True, slots=True)
class Request:
    """The options of a search that the bench does not need.

    Attributes:
        time_s: seconds for the whole call; None for no limit.
        max_trials: maximum number of probes; None for no limit.
        study: storage of the trials: a path, an Optuna storage URL, ":memory:", or None for `DEFAULT_STUDY`.
        searcher: name of the searcher; None for the default.
        planned_steps: optimizer steps of the planned training at the baseline's global batch. The warm-up cost of a
            plan is amortised over the samples of these steps. None ignores the warm-up cost, or assumes
            `search.PLANNED_STEPS` if a knob of the space has one.
        isolated: whether plans run in a process that is replaced when its device is poisoned.
        title: what is tuned, for reports.
        command: the command or call that started the search, without secrets.
        prove_s: seconds for which the answer runs once more at the end, beyond the time for the search; 0 for no time.
        plan_file: plan file beside which trainings may have left records; "" for none.

    Raises:
        UsageError: the searcher is unknown, or the planned steps are not a whole number of at least 1.
    """

    time_s: float | None = None
    max_trials: int | None = None
    study: str | Path | None = None
    searcher: str | None = None
    objective: Objective = field(default_factory=Objective)
    planned_steps: int | None = None
    seed: int = 0
    isolated: bool = False
    title: str = ""
    command: str = ""
    prove_s: float = 0.0
    plan_file: str = ""

    def __post_init__(self) -> None:
        searcher_of(self.searcher)  # a misspelt name is refused before the bench is opened
        if self.planned_steps is not None and (type(self.planned_steps) is not int or self.planned_steps < 1):
            raise UsageError(
                f"found planned_steps={self.planned_steps!r}; expected the optimizer steps of your training, a whole "
                "number of at least 1, or none to ignore the warm-up cost."
            )


def searcher_of(name: str | None) -> type[Searcher]:
    """Returns the searcher with this name; the default one for None.

    Raises:
        UsageError: no searcher has this name.
    """
    if name is None:
        return searchers.members()[0]
    for member in searchers.members():
        if member.name == name:
            return member
    known = ", ".join(member.name for member in searchers.members())
    raise UsageError(f"unknown searcher {name!r}; expected one of {known}.")


class Bench(Protocol):
    """A workload on a device, ready to run plans.

    `autofit.probing` has two implementations, one in this process and one in a child process. Benchmarks of the search
    use a third one, which reads a recorded table.
    """

    @property
    def briefing(self) -> Briefing:
        """Facts that are known before the first probe. Without an `account`, no plan is traced."""

    @property
    def proof_start_s(self) -> float:
        """Seconds that a proof needs to start a fresh process; 0 if it needs none."""

    def evaluate(self, plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Outcome:
        """Runs a plan on the given terms.

        Expected events are outcomes. Only `KeyboardInterrupt` or an `AutofitError` is raised.
        """

    def check(self, plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        """Compares the gradient of a plan with the baseline's, given the verdicts on values that are known."""

    def trace(self, plan: Plan) -> Trace:
        """Returns the allocations of a plan's training steps, without running them.

        Raises:
            Untraceable: something in the step cannot run without data.
            SpaceError: the plan cannot be applied to this workload.
        """


Evaluate = Callable[[Plan, Purpose, RunTerms], Outcome]
"""Runs a plan on the given terms. Expected events are outcomes; raises only KeyboardInterrupt or an `AutofitError`."""
Check = Callable[[Plan, Mapping[str, GateVerdict]], Checked]
"""Compares the gradient of a plan with the baseline's, given the verdicts that are known."""


Examine = Callable[[Plan, float], str]
"""Looks at a few steps of a proven plan, within a number of seconds. Returns a caveat, or "" for nothing."""


class TrialLog(Protocol):
    """Keeps trials; `autofit.study.Study` is one."""

    def begin(self, plan: Plan, purpose: Purpose) -> int:
        """Records on disk that a plan is running, and returns the number of its trial."""

    def finish(self, number: int, outcome: Outcome) -> Trial:
        """Records the outcome on disk, then returns the trial."""

    def earlier(self) -> Sequence[Trial]:
        """Returns the comparable trials of earlier runs, in order."""

    def drop(self, reason: str, plan: Plan | None = None) -> None:
        """Discards the comparable trials of earlier runs, or those of a plan, for good, and records the reason."""

    def note(self, name: str, value: dict[str, object]) -> None:
        """Records a value beside the trials."""

    def kept_notes(self) -> Mapping[str, object]:
        """Returns the values beside the trials, those of earlier runs among them."""


@dataclass(slots=True)
class Tuning:
    """The arguments of one search.

    Attributes:
        estimators: estimate memory, the one with the most trusted value first.
        listen: called with each event, in this process, between two runs.
        cautious: whether exceeding the budget harms the machine, so that a plan that is estimated above it is not run;
            see `autofit.feasibility.Feasibility.refusal`.
        isolated: whether `evaluate` starts a fresh process after a poisoned one, so that the search survives one
            poisoned trial.
        proof_start_s: seconds that a proof of its own needs to start a fresh process; 0 if it needs none.
        noise_ratio: standard deviation of the ratio of two separate probes on this device, beyond their own spread.
        check: checks the gradient of a plan that is about to become the answer; None: every plan passes.
        examine: looks at the steps of the answer once it is proven; None: nothing does.
        endure: runs the answer for a long time after that, and says what its memory did; None: nothing does.
        prove_s: seconds of that.
        checked_as: digest of what verdicts hold for: workload, device and versions.
    """

    space: SearchSpace
    evaluate: Evaluate
    objective: Objective
    budget: Budget
    log: TrialLog
    searcher: Callable[[Problem], Searcher]
    estimators: Sequence[Estimator]
    clock: Clock
    listen: Callable[[Event], None]
    seed: int = 0
    cautious: bool = False
    isolated: bool = False
    proof_start_s: float = 0.0
    noise_ratio: float = DISTURBED_NOISE_RATIO
    check: Check | None = None
    examine: Examine | None = None
    endure: Examine | None = None
    prove_s: float = 0.0
    checked_as: str = ""


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of a search. Attributes that are not listed here are those of `autofit.core.answer.Answer`.

    Attributes:
        trials: all trials, those of earlier runs first. Of the blocks of the race, only those that failed are trials.
        interrupted: whether the user stopped the search.
        weighing: quantity by which micro batches are weighted; "" for their number of samples.
        refused: values that were found to change the gradient.
        allowed: values that change the gradient, and are allowed.
        answers: each answer of the search, with the seconds at which it came.
        examined: what was found in the steps of the answer, as a caveat; "" for nothing.
    """

    plan: Plan
    proof: Measurement
    baseline: Candidate
    gain: Ratio | None
    alternatives: tuple[Candidate, ...]
    caveats: tuple[str, ...]
    trials: tuple[Trial, ...]
    counts: dict[str, int]
    stopped: str
    estimate: Estimate | None = None
    rate_per_s: float | None = None
    untried: str = ""
    interrupted: bool = False
    weighing: str = ""
    refused: tuple[Refusal, ...] = ()
    allowed: tuple[str, ...] = ()
    answers: tuple[Answered, ...] = ()
    examined: str = ""
    long_proof: str = ""
