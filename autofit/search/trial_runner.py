"""TrialRunner: runs plans, and records each run on disk as a trial before the next one starts."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from autofit.core.errors import DevicePoisoned
from autofit.core.estimate import Estimate
from autofit.core.knob import Knob
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import KnobValue, Plan, same_value
from autofit.core.run_terms import OPEN, RunTerms
from autofit.core.trial import Purpose, Trial
from autofit.core.wording import describe_outcome, describe_plan
from autofit.search.ambiguous_failures import doubted, settled
from autofit.search.earlier_runs import Earlier
from autofit.search.event import Event
from autofit.search.ledger import Ledger
from autofit.search.no_answer import for_good, users_fault
from autofit.search.tuning import Tuning


class TrialRunner:
    """Runs plans and keeps their trials.

    Attributes:
        tuning: the arguments of the search.
        baseline: the user's own plan.
        trials: every trial, those of earlier runs first. Of the blocks of a race, only those that failed are trials.
        record: the latest informative trial of each plan, by the plan's key.
        earlier: trials of earlier runs in the study.
        ledger: what actions cost, and the time left.
        probes: number of probes that have run.
        so_far: returns the throughput of the answer so far over the baseline's; None before there is one.
        phase: phase of the search (`Event.phase`).
    """

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self.baseline = tuning.space.baseline
        self.trials: list[Trial] = []
        self.record: dict[str, Trial] = {}
        self.earlier = Earlier(tuning)
        self.ledger = Ledger(tuning)
        self.probes = 0
        self.so_far: Callable[[], float | None] = lambda: None
        self.phase = "search"
        self._poisoned = 0

    def probe(self, plan: Plan, terms: RunTerms = OPEN) -> Trial:
        """Runs a plan as a probe on the given terms, and records its duration in the ledger."""
        began_s = self.tuning.clock.elapsed_s
        trial = self.attempt(plan, Purpose.PROBE, terms)
        self.probes += 1
        self.ledger.probed(self.tuning.clock.elapsed_s - began_s, trial.outcome)
        self.say_finished("trial", trial)
        return trial

    def attempt(self, plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Trial:
        """Runs a plan and records it. Repeats a run once if its failure is ambiguous, inconclusive or doubted.

        An inconclusive run that took longer than the time left is not repeated: it would be cut off even sooner.
        """
        began_s = self.tuning.clock.elapsed_s
        trial = self._once(plan, purpose, terms, lambda outcome: self._doubted(plan, outcome))
        hurried = self.ledger.left_s() < self.tuning.clock.elapsed_s - began_s or self.ledger.left_s() <= 0
        again = trial.outcome.status.inconclusive and not hurried
        if again or trial.outcome.status is Status.AMBIGUOUS:
            trial = self._once(plan, purpose, terms, lambda outcome: settled(self.record.values(), plan, outcome))
        if purpose is Purpose.PROOF:
            self.earlier.compare(plan, purpose, trial.outcome)
        return trial

    def block(self, plan: Plan) -> tuple[Outcome, Trial | None]:
        """Runs one block of a race. Only a failed block is recorded, and its trial returned."""
        outcome = self.tuning.evaluate(plan, Purpose.BLOCK, OPEN)
        ambiguous = self._doubted(plan, outcome).status is Status.AMBIGUOUS
        if (outcome.status.inconclusive or ambiguous) and self.ledger.left_s() > 0:
            outcome = self.tuning.evaluate(plan, Purpose.BLOCK, OPEN)
        self.earlier.compare(plan, Purpose.BLOCK, outcome)
        self._count_poison(outcome)
        if outcome.measured and outcome.measurement is not None:
            return outcome, None
        trial = self._finish(self.tuning.log.begin(plan, Purpose.BLOCK), outcome)
        self._refuse_poison(outcome)
        return outcome, trial

    def skip(self, plan: Plan, reason: str) -> Trial:
        """Records that a plan is not run, with the reason."""
        number = self.tuning.log.begin(plan, Purpose.PROBE)
        trial = self._finish(number, Outcome(status=Status.SKIPPED, reason=reason))
        self.say("skipped", f"{self.named(plan)}: skipped, {reason}", trial=trial)
        return trial

    def check_for_users_fault(self) -> None:
        """Ends the search if the user's code fails with any plan.

        Raises:
            UserCodeError: it does, or the baseline gives a loss that is not finite.
        """
        fault = users_fault([t for t in self.trials if not t.earlier], self.baseline)
        if fault is not None:
            raise fault

    def named(self, plan: Plan) -> str:
        """Returns the batch of a plan and what it changes, as a person reads it."""
        return describe_plan(plan, self.baseline)

    def say(self, kind: str, text: str, **details: Any) -> None:
        """Sends an event to the listener; `details` are further attributes of `Event`."""
        self.tuning.listen(Event(kind, text, done=self.probes, phase=self.phase, so_far=self.so_far(), **details))

    def say_finished(self, kind: str, trial: Trial) -> None:
        """Reports a finished trial: its plan, and its throughput and peak or the reason why it has none."""
        outcome = describe_outcome(trial.outcome, self.tuning.objective.unit)
        self.say(kind, f"{self.named(trial.plan)}: {outcome}", trial=trial)

    def say_running(self, plan: Plan, estimate: Estimate | None) -> None:
        """Reports that a plan begins to run, with the estimate of its peak."""
        self.say("running", f"running {self.named(plan)}", plan=plan, estimate=estimate)

    def _doubted(self, plan: Plan, outcome: Outcome) -> Outcome:
        return doubted(self.record.values(), plan, outcome, self.tuning.budget.memory_bytes)

    def _once(self, plan: Plan, purpose: Purpose, terms: RunTerms, settle: Callable[[Outcome], Outcome]) -> Trial:
        """Runs a plan once. Its trial is on disk as running before, and as finished after, even if it raises."""
        number = self.tuning.log.begin(plan, purpose)
        try:
            outcome = self.tuning.evaluate(plan, purpose, terms)
            self._count_poison(outcome)
            earlier = (*self.earlier.trials, *self.trials)
            outcome = from_cold_start(settle(outcome), plan, earlier, self.tuning.space.facts.knobs)
        except KeyboardInterrupt:
            self._finish(number, Outcome(status=Status.INTERRUPTED, reason="stopped by the user"))
            raise
        except DevicePoisoned as error:
            self._finish(number, Outcome(status=Status.POISONED, reason=str(error) or "the device is poisoned"))
            raise
        except Exception as error:
            self._finish(number, Outcome(status=Status.CRASHED, reason=f"{type(error).__name__}: {error}"))
            raise
        trial = self._finish(number, outcome)
        self._refuse_poison(outcome)
        return trial

    def _count_poison(self, outcome: Outcome) -> None:
        self._poisoned = self._poisoned + 1 if outcome.status is Status.POISONED else 0

    def _finish(self, number: int, outcome: Outcome) -> Trial:
        trial = self.tuning.log.finish(number, outcome)
        self.trials.append(trial)
        return trial

    def _refuse_poison(self, outcome: Outcome) -> None:
        """Ends the search after an interrupt, or if the device stays poisoned.

        Raises:
            KeyboardInterrupt: the outcome is an interrupt.
            DevicePoisoned: the device is poisoned in this process, or twice in a row in fresh processes.
        """
        if outcome.status is Status.INTERRUPTED:
            raise KeyboardInterrupt(outcome.reason)
        if self._poisoned > int(self.tuning.isolated):
            raise for_good(outcome.reason)


def from_cold_start(outcome: Outcome, plan: Plan, earlier: Iterable[Trial], knobs: Sequence[Knob]) -> Outcome:
    """Returns `outcome` with the warm-up cost of a first training, for a plan that runs warm.

    A process that ran a plan before has its kernels compiled and tuned. Plans with the same value of a knob that must
    warm up share most of their code: the first of them compiles it, and the others find it in the compile cache of the
    search. None of them may look cheaper for that, so each is charged the longest warm-up that it, or a plan with these
    values, has shown.
    """
    values, found = dict(_warming(plan, knobs)), outcome.measurement
    if found is None or found.startup_s is None:
        return outcome
    alike = (t for t in earlier if t.plan == plan or (values and dict(_warming(t.plan, knobs)) == values))
    measured = (trial.outcome.measurement for trial in alike)
    longest_s = max((m.startup_s for m in measured if m is not None and m.startup_s is not None), default=0.0)
    if longest_s <= found.startup_s:
        return outcome
    return outcome.model_copy(update={"measurement": found.model_copy(update={"startup_s": longest_s})})


def _warming(plan: Plan, knobs: Sequence[Knob]) -> Iterator[tuple[str, KnobValue]]:
    """Yields the values of a plan that must warm up."""
    for knob in knobs:
        value = plan.values.get(knob.name, knob.default)
        if knob.warm_up_s and not same_value(value, knob.default):
            yield knob.name, value
