"""What a search needs and returns: the interface of a bench, the arguments (Tuning), and the result (Findings)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from autofit.core.answer import Candidate, Ratio
from autofit.core.briefing import Briefing
from autofit.core.budget import Budget, Clock
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
from autofit.search.evidence import Answered
from autofit.search.request import Event
from autofit.searchers.base import Problem, Searcher


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
