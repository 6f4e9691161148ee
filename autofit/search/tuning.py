"""Tuning and Findings: the arguments of a search, and its result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from autofit.core.budget import Budget, Clock
from autofit.core.estimate import Estimate
from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.recommendation import Candidate, Ratio
from autofit.core.space import SearchSpace
from autofit.core.trial import Purpose, Trial
from autofit.estimators.base import Estimator
from autofit.search.event import Event
from autofit.search.evidence import Seen
from autofit.search.workers import NoWorkers, Workers
from autofit.searchers.base import Problem, Searcher

Evaluate = Callable[[Plan, Purpose], Outcome]
"""Runs a plan. Expected events are outcomes; raises only KeyboardInterrupt or an `AutofitError`."""


class TrialLog(Protocol):
    """Keeps trials; `autofit.study.Study` is one."""

    def begin(self, plan: Plan, purpose: Purpose) -> int:
        """Records on disk that a plan is running, and returns the number of its trial."""
        ...

    def finish(self, number: int, outcome: Outcome) -> Trial:
        """Records the outcome on disk, then returns the trial."""
        ...

    def earlier(self) -> Sequence[Trial]:
        """Returns the comparable trials of earlier runs, in order."""
        ...

    def drop(self, reason: str) -> None:
        """Discards the comparable trials of earlier runs for good, and records the reason."""
        ...

    def note(self, name: str, value: dict[str, object]) -> None:
        """Records a value beside the trials."""
        ...


@dataclass(slots=True)
class Tuning:
    """The arguments of one search.

    Attributes:
        space: the plans that may be run.
        evaluate: runs a plan.
        objective: the quantity to maximise.
        budget: limits on memory, time and trials.
        log: keeps the trials.
        searcher: makes the searcher.
        estimators: estimate memory, the one with the most trusted value first.
        clock: the time spent so far.
        listen: called with each event, in this process, between two runs.
        seed: makes the search repeatable.
        cautious: whether exceeding the budget harms the machine, so that a plan that is estimated above it is not run;
            see `autofit.feasibility.Feasibility.refusal`.
        isolated: whether `evaluate` starts a fresh process after a poisoned one, so that the search survives one
            poisoned trial.
        closing_s: seconds that a proof needs to start a fresh process; they are kept back from the time budget.
        seen: what the search sees as it runs, for its evidence.
        workers: other processes that run plans of this search.
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
    closing_s: float = 0.0
    seen: Seen = field(default_factory=Seen)
    workers: Workers = field(default_factory=NoWorkers)


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of a search.

    Attributes:
        plan: the recommended plan.
        proof: the measurement of its proof.
        baseline: the baseline and its outcome.
        gain: throughput of `plan` over the baseline; None when the baseline was not measured.
        alternatives: the other measured plans, fastest first, with the reason why each was not chosen.
        caveats: limitations of the result that the user should know.
        trials: all trials, those of earlier runs first. Of the blocks of the race, only those that failed are trials.
        counts: number of trials by status.
        stopped: reason why the search phase ended.
        estimate: estimate of the plan's peak before it first ran; None if it is known from earlier runs.
        rate_per_s: throughput of the plan on the scale of the race, in the objective's unit.
        untried: reason why only the baseline was measured; "" if another plan was.
        complete: whether the search phase ended because nothing was left that was worth a probe.
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
    complete: bool = False
