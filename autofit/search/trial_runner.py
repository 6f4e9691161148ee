"""TrialRunner: runs plans, and records each run on disk as a trial before the next one starts.

Earlier: the trials of earlier runs, compared with what runs now. `settled` and `doubted` judge ambiguous failures.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from autofit.core.errors import DevicePoisoned
from autofit.core.estimate import Estimate
from autofit.core.knob import Knob
from autofit.core.measurement import Measurement
from autofit.core.outcome import DIED, IN_TRAINING, Outcome, Status
from autofit.core.plan import KnobValue, Plan, same_value
from autofit.core.trial import OPEN, Purpose, RunTerms, Trial
from autofit.core.units import format_bytes
from autofit.core.wording import describe_outcome, describe_plan
from autofit.search.common_scale import NEAR_RATIO, contradiction, other_peak
from autofit.search.ledger import Ledger
from autofit.search.no_answer import for_good, users_fault
from autofit.search.request import Event, Tuning


def settled(trials: Iterable[Trial], plan: Plan, outcome: Outcome) -> Outcome:
    """Returns an ambiguous outcome as an out-of-memory if the same combination ran at a smaller size."""
    smaller = [t for t in _ran(trials, plan) if t.plan.micro_batch_size < plan.micro_batch_size]
    if outcome.status is not Status.AMBIGUOUS or not smaller:
        return outcome
    reason = f"failed twice where a smaller micro batch ran, so taken as too large: {outcome.reason}"
    return outcome.model_copy(update={"status": Status.OUT_OF_MEMORY, "reason": reason})


def doubted(trials: Iterable[Trial], plan: Plan, outcome: Outcome, memory_bytes: int) -> Outcome:
    """Returns a lack of memory as ambiguous if the plan may not be its cause, so that the plan runs once more.

    Another process may have taken the memory for a moment: that is likely if a larger micro batch of the combination
    has run, or if the peak is far below the budget. A peak above the budget is never in doubt.
    """
    memory = None if outcome.measurement is None else outcome.measurement.memory
    above = memory is not None and not (memory.allocator_retries or memory.swallowed_ooms)
    if not outcome.status.does_not_fit or above:
        return outcome
    larger = [t for t in _ran(trials, plan) if t.plan.micro_batch_size > plan.micro_batch_size]
    if larger:
        why = f"a micro batch of {larger[0].plan.micro_batch_size} ran"
    elif memory is not None and memory.judged_bytes <= NEAR_RATIO * memory_bytes:
        why = f"its peak of {format_bytes(memory.judged_bytes)} is far below the budget of {format_bytes(memory_bytes)}"
    else:
        return outcome
    reason = f"{outcome.reason}; but {why}, so something else may have taken the memory for a moment"
    return outcome.model_copy(update={"status": Status.AMBIGUOUS, "reason": reason, "measurement": None})


def _ran(trials: Iterable[Trial], plan: Plan) -> list[Trial]:
    return [t for t in trials if t.outcome.measured and t.plan.combination == plan.combination]


BLOCKS = 3
"""Number of blocks of a race whose median speed may contradict the study; a single one may be disturbed."""


class Earlier:
    """The trials of earlier runs that are valid for this run, until a run contradicts them.

    Another peak of live tensors shows another workload: all trials are dropped. Another speed, or a plan that does not
    fit any more, may come from what else the machine does: only the trials of that plan are dropped.

    Attributes:
        trials: all trials of earlier runs, except those that were dropped.
        known: those that are informative about a plan of this search; last the baseline, measured again.
    """

    def __init__(self, tuning: Tuning) -> None:
        self._tuning, self._baseline = tuning, tuning.space.baseline
        self.trials = tuple(tuning.log.earlier())
        # A plan with another global batch, or with a knob that is not in play now, cannot be recommended now. The cause
        # of a loss that is not finite may have been fixed, and without the baseline there is no gain.
        able = (t for t in self.trials if t.purpose is not Purpose.BLOCK and not tuning.space.violation(t.plan))
        fixed = (self._baseline, Status.NUMERIC)
        self.known = tuple(t for t in able if (t.plan, t.outcome.status) != fixed)
        self._dropped: dict[Plan, str] = {}
        self._another = ""
        self._blocks: dict[str, list[Measurement]] = {}

    @property
    def caveats(self) -> list[str]:
        """Limitations that the user should know."""
        if self._another or not self._dropped:
            return [self._another] if self._another else []
        count = "1 plan" if len(self._dropped) == 1 else f"{len(self._dropped)} plans"
        plan, what = next(iter(self._dropped.items()))
        return [
            "the speed or the free memory of this machine has changed since earlier runs: the earlier trials of "
            f"{count} were dropped, first because {describe_plan(plan, self._baseline)} now shows {what}, which is "
            "more than noise. If something else uses the machine, tune again when it is idle"
        ]

    def measure_again(self, run: Callable[[], Trial]) -> None:
        """Screens, runs and records the baseline by `run`, once more if it contradicts the study.

        A baseline that ended every process in which it ran, or that failed in a training, is not run again. If it is
        screened out now, its earlier trials stay valid.
        """
        known = [t for t in self.known if t.plan == self._baseline]
        if known and known[-1].outcome.reason.startswith((DIED, IN_TRAINING)):
            return
        trial = run()
        if any(self._contradictions(trial.plan, Purpose.PROBE, trial.outcome)):
            trial = run()  # a single probe may be disturbed
        self.compare(trial.plan, Purpose.PROBE, trial.outcome)
        if trial.outcome.status is not Status.SKIPPED:
            self.known = (*(t for t in self.known if t.plan != self._baseline), trial)

    def renew(self, trial: Trial) -> None:
        """Replaces what is known of a plan by a trial of this run; drops the earlier trials that it contradicts."""
        self.compare(trial.plan, Purpose.PROBE, trial.outcome)
        if not self._another:
            self.known = (*(t for t in self.known if t.plan != trial.plan), trial)

    def compare(self, plan: Plan, purpose: Purpose, outcome: Outcome) -> None:
        """Compares a run with the study, and drops the earlier trials that it contradicts."""
        peak, what = self._contradictions(plan, purpose, outcome)
        if peak:
            self._tuning.log.drop(f"{plan} now shows {peak}")
            self._another = (
                f"the {len(self.trials)} trials of earlier runs were dropped from the study: "
                f"{describe_plan(plan, self._baseline)} now shows {peak}, which is more than noise. The workload has "
                "changed: if the search had begun, tune again to measure everything again"
            )
            self.trials = self.known = ()
        elif what:
            self._dropped[plan] = what
            self._tuning.log.drop(f"{plan} now shows {what}", plan)
            self.trials, self.known = (
                tuple(t for t in trials if t.plan != plan or not t.earlier) for trials in (self.trials, self.known)
            )

    def _contradictions(self, plan: Plan, purpose: Purpose, outcome: Outcome) -> tuple[str, str]:
        """Returns how a run contradicts the peak and the rest that the study has of its plan; "" where it agrees."""
        then = [t.outcome for t in self.known if t.plan == plan and t.earlier]
        if not then:
            return "", ""
        blocks: list[Measurement] = []
        if purpose is Purpose.BLOCK:  # collected until there are enough; their memory is not compared
            blocks = self._blocks.setdefault(plan.key, [])
            blocks += [] if outcome.measurement is None else [outcome.measurement]
            if outcome.measurement is None or len(blocks) < BLOCKS:
                return "", ""
        peak = "" if blocks else other_peak(then[-1], outcome)
        budget_bytes = self._tuning.budget.memory_bytes
        return peak, contradiction(then[-1], outcome, self._tuning.objective, budget_bytes, blocks)


class TrialRunner:
    """Runs plans and keeps their trials.

    Attributes:
        trials: every trial, those of earlier runs first. Of the blocks of a race, only those that failed are trials.
        record: the latest informative trial of each plan, by the plan's key.
        earlier: trials of earlier runs in the study.
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

    def check_for_users_fault(self, fits: Callable[[Plan], bool] = lambda plan: False) -> None:
        """Ends the search if the user's code fails with any plan. `fits` says which plans surely fit.

        Raises:
            UserCodeError: it does, or the baseline gives a loss that is not finite.
        """
        fault = users_fault([t for t in self.trials if not t.earlier], self.baseline, fits)
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
        """Ends the search after an interrupt, or a device poisoned here, or twice in a row in fresh processes."""
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
    found, warm = outcome.measurement, [knob for knob in knobs if knob.warm_up_s]

    def warming(plan: Plan) -> dict[str, KnobValue]:
        """Returns the values of a plan that must warm up."""
        values = {knob.name: plan.values.get(knob.name, knob.default) for knob in warm}
        return {knob.name: values[knob.name] for knob in warm if not same_value(values[knob.name], knob.default)}

    if found is None or found.startup_s is None:
        return outcome
    values = warming(plan)
    alike = (t for t in earlier if t.plan == plan or (values and warming(t.plan) == values))
    measured = (trial.outcome.measurement for trial in alike)
    longest_s = max((m.startup_s for m in measured if m is not None and m.startup_s is not None), default=0.0)
    if longest_s <= found.startup_s:
        return outcome
    return outcome.with_measured(startup_s=longest_s)
