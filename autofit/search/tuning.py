"""What a search is given, and what it finds."""

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
from autofit.searchers.base import Problem, Searcher

Evaluate = Callable[[Plan, Purpose], Outcome]
"""Runs a plan. Expected events are outcomes; raises only KeyboardInterrupt or an `AutofitError`."""


class TrialLog(Protocol):
    """Where trials are kept; `autofit.study.Study` is one."""

    def begin(self, plan: Plan, purpose: Purpose) -> int:
        """Puts on disk that this plan is running, and returns the number of its trial."""
        ...

    def finish(self, number: int, outcome: Outcome) -> Trial:
        """Puts the outcome on disk before it returns the trial."""
        ...

    def earlier(self) -> Sequence[Trial]:
        """Returns the comparable trials of earlier runs, in order."""
        ...

    def drop(self, reason: str) -> None:
        """Has the comparable trials of earlier runs never be given again, and keeps why."""
        ...

    def note(self, name: str, value: dict[str, object]) -> None:
        """Keeps a value beside the trials."""
        ...


@dataclass(slots=True)
class Tuning:
    """What one search is given.

    Attributes:
        space: the plans that may be run.
        evaluate: runs a plan.
        objective: what is maximised.
        budget: limits on memory, time and trials.
        log: where trials are kept.
        searcher: makes the searcher.
        estimators: estimate memory, the most trusted value first; own bounds go before guesses.
        clock: the time spent so far.
        listen: told of each event, in this process, between two runs.
        seed: makes the search repeatable.
        cautious: never run a plan whose estimated value is above the budget (where exceeding it harms the machine);
            half as much again is allowed to an estimate that is loose, see `autofit.search.loop`.
        closing_s: what a proof takes before it begins, beside the probe that it is: kept of the time budget.
        seen: filled while the search runs, for its evidence.
        isolated: whether `evaluate` starts a fresh process after a poisoned one, so that one such trial is survived.
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


@dataclass(frozen=True, slots=True)
class Findings:
    """What a search found.

    Attributes:
        plan: the recommended plan.
        proof: the measurement of its proof.
        baseline: the user's own setting and what became of it.
        gain: throughput of `plan` over the baseline; None when the baseline was not measured.
        alternatives: the other measured plans, fastest first, with why they were not chosen.
        caveats: what a person should know.
        trials: all trials, those of earlier runs first; of the blocks of the race only those that failed.
        counts: number of trials by status.
        stopped: why the search for plans ended.
        estimate: of the plan's peak before it first ran; None for one known from earlier runs.
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
