"""The search phase: ask, screen, probe, record, then tell."""

import math
from collections.abc import Callable
from statistics import median

from autofit.core.budget import SHARES
from autofit.core.errors import DevicePoisoned
from autofit.core.estimate import Estimate
from autofit.core.event import Event
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.core.units import format_bytes, format_duration
from autofit.search.choice import finalists, measurement_of
from autofit.search.earlier_runs import Earlier
from autofit.search.endings import for_good, too_short, users_fault
from autofit.search.other_sizes import refused_below, settled
from autofit.search.screening import Foresight, loose
from autofit.search.tuning import Tuning
from autofit.searchers.base import Problem

REPEATS = 100
"""A searcher that asks this often in a row for what is known has nothing new to ask."""
RESERVE_PROBES = 12
"""The race and the proof are taken to last as long as this many probes: 4 rounds of 3 short blocks, and the proof."""
PROOF_PROBES, PROOF_STEPS = 1.5, 10
"""A proof is taken to last as long as this many probes, or steps: where steps are slow it is cut to 5, and 4 more in a
process with limited memory, and one of another plan may be slower."""
RESERVE_RATIO = 0.5
"""At most this share of the time budget is kept for them, once a second plan may win: without one there is no race."""
GUESS_RATIO = 1.5
"""Under `cautious`, an estimate that is loose keeps a plan from running only from this multiple of the budget on."""


class Loop:
    """The search phase and the record of trials."""

    def __init__(self, tuning: Tuning) -> None:
        self.tuning = tuning
        self.baseline = tuning.space.baseline
        self.trials: list[Trial] = []
        self.record: dict[str, Trial] = {}
        self.stopped = ""
        self.early = False
        self.earlier = Earlier(tuning)
        self.predicted: dict[str, Estimate] = {}
        self.wanted: Plan | None = None
        self._done = 0
        self._poisoned = 0
        self._durations_s: list[float] = []
        self._foresight = Foresight(tuning)
        self._searcher = tuning.searcher(
            Problem(
                space=tuning.space,
                objective=tuning.objective,
                memory_bytes=tuning.budget.memory_bytes,
                estimate=self._foresight.estimate,
                seed=tuning.seed,
                cautious=tuning.cautious,
                patience_s=self._patience_s,
            )
        )

    def recall(self) -> None:
        """Learns the trials of earlier runs, once the user's own setting ran again and did not contradict them.

        Raises:
            UserCodeError: the user's own setting gives a loss that is not finite.
        """
        if plans := len({trial.plan.key for trial in self.earlier.known}):
            self.say("stage", f"{plans} plans are known from earlier runs; your own setting is measured anew")
            if self.time_left_s() > 0:
                self.earlier.measure_anew(self._own)
        self.trials = [*self.earlier.trials, *self.trials]
        for trial in self.earlier.known:
            self._learn(trial)
        self._check()

    def search(self) -> None:
        """Asks and runs until the searcher has nothing left or a limit is reached."""
        self.say("stage", "searching")
        self._foresight.begin()  # also where all is known
        repeats, declined = 0, set[str]()
        while not self._spent():
            plan = self._searcher.ask()
            if plan is None or repeats > REPEATS:
                self.stopped = "nothing left that was worth a probe" if plan is None else "the searcher repeats itself"
                break
            known = self.record.get(plan.key)
            repeats = repeats + 1 if known is not None else 0
            if known is not None:
                self._searcher.tell(known)
            else:
                self._foresight.survey()
                self._look(plan)
                if plan.key in declined or self._searcher.still(plan):
                    self._run(plan)
                else:
                    declined.add(plan.key)
        if self.early and len(self.record) == 1:  # what a person is told who gave too little time
            self.wanted = self._searcher.ask()
        self.say("stage", f"search ended: {self.stopped}")
        left_out = [omission.model_dump(mode="json") for omission in self._searcher.omissions()]
        self.tuning.log.note("left_out", {"combinations": left_out})

    def consider(self, plan: Plan) -> Trial:
        """Probes a plan unless it is screened out, records it, and tells it.

        Raises:
            UserCodeError: the user's code fails whatever the plan.
        """
        self._look(plan)
        return self._run(plan)

    def ensure_baseline(self) -> None:
        """Gives the user's own setting an outcome when the searcher did not ask for it.

        Raises:
            BudgetSpent: the time was over before anything ran. Their own setting has run all the same, so that the next
                run has something to begin with.
        """
        if self.baseline.key in self.record:
            return
        refused, late = refused_below(self.record.values(), self.baseline), self.time_left_s() <= 0
        if refused is not None:
            trial = self._skip(self.baseline, f"the same combination did not fit at micro batch {refused}")
        elif late and self.record:
            trial = self._skip(self.baseline, "the time budget was spent before it was run")
        else:
            trial = self._own()
        self._learn(trial)
        self._check()
        if late and len(self.record) == 1 and trial.outcome.measured:
            raise too_short(trial, self.stopped, self.probe_s())

    def attempt(self, plan: Plan, purpose: Purpose) -> Trial:
        """Runs a plan and records it; a failure that is ambiguous or inconclusive is run once more.

        One that took longer than it may take now is not: it would be ended sooner than before.
        """
        began_s = self.tuning.clock.elapsed_s
        trial = self._once(plan, purpose, lambda outcome: outcome)
        took_s = self.tuning.clock.elapsed_s - began_s
        hurried = self.time_left_s() <= 0 or self.tuning.clock.patience_s(SHARES[purpose]) < took_s
        again = trial.outcome.status.inconclusive and not hurried
        if again or trial.outcome.status is Status.AMBIGUOUS:
            trial = self._once(plan, purpose, lambda outcome: settled(self.record.values(), plan, outcome))
        if purpose is Purpose.PROOF:
            self.earlier.hold(plan, purpose, trial.outcome)
        return trial

    def evaluate(self, plan: Plan, purpose: Purpose) -> Outcome:
        """Runs a plan.

        Raises:
            KeyboardInterrupt: also for an outcome that says so.
        """
        outcome = self.tuning.evaluate(plan, purpose)
        if purpose is Purpose.BLOCK and outcome.status.inconclusive and self.time_left_s() > 0:
            outcome = self.tuning.evaluate(plan, purpose)
        if purpose is Purpose.BLOCK:
            self.earlier.hold(plan, purpose, outcome)
        self._poisoned = self._poisoned + 1 if outcome.status is Status.POISONED else 0
        return outcome

    def refuse_poison(self, outcome: Outcome) -> None:
        """Ends the search after an interrupt, or when the device is poisoned for good.

        Raises:
            KeyboardInterrupt: the outcome is an interrupt.
            DevicePoisoned: in this process, or twice in a row where each attempt had a fresh process.
        """
        if outcome.status is Status.INTERRUPTED:
            raise KeyboardInterrupt(outcome.reason)
        if self._poisoned > int(self.tuning.isolated):
            raise for_good(outcome.reason)

    def time_left_s(self) -> float:
        """Returns the seconds left of the time budget, but for what closing takes; infinity without one."""
        limit = self.tuning.budget.time_s
        return float("inf") if limit is None else limit - self.tuning.closing_s - self.tuning.clock.elapsed_s

    def _patience_s(self) -> float:
        """Returns the seconds that a probe may take now, and leave time for the race and the proof.

        One that takes no longer than others did has its time kept, see `_spent`. No limit once the search was cut
        short: what is asked for then is only named.
        """
        if self.early:
            return math.inf
        left_s = self.time_left_s() - self._reserve_s() + self.probe_s()
        return min(self.tuning.clock.patience_s(SHARES[Purpose.PROBE]), left_s)

    def probe_s(self) -> float:
        """Returns the seconds that a probe takes, from those that ran; 0 before the first."""
        return median(self._durations_s) if self._durations_s else 0.0

    def proof_s(self) -> float:
        """Returns the seconds that a proof takes, whichever of the plans that may win it is of; 0 before any ran."""
        measured = [t for t in self.record.values() if t.outcome.measured]
        able = finalists(measured, self.baseline, self.tuning.objective)
        rivals = [t for t in able if t.plan != self.baseline] or able
        step_s = max((measurement_of(t).step_time_s for t in rivals), default=0.0)
        return max(PROOF_PROBES * self.probe_s(), PROOF_STEPS * step_s)

    def say(self, kind: str, text: str, trial: Trial | None = None) -> None:
        """Tells the listener."""
        self.tuning.listen(Event(kind, text, trial, self._done))

    def _spent(self) -> bool:
        """Says whether a limit ends the search, and why in `stopped`."""
        budget, left = self.tuning.budget, self.time_left_s()
        reserve = self._reserve_s()
        if budget.max_trials is not None and self._done >= budget.max_trials:
            self.stopped = f"{budget.max_trials} trials were allowed and run"
        elif left <= 0:
            self.stopped = f"the time budget of {format_duration(budget.time_s or 0)} is spent"
        elif left <= reserve:
            self.stopped = (
                f"the {format_duration(left)} left of {format_duration(budget.time_s or 0)} are kept for the race and "
                "the proof"
            )
        self.early = bool(self.stopped)
        return self.early

    def _own(self) -> Trial:
        self._look(self.baseline)
        return self._screened(self.baseline)

    def _reserve_s(self) -> float:
        """Returns the seconds to keep: for the proof and the next probe, and for a race once two may win it."""
        time_s, measured = self.tuning.budget.time_s, [t for t in self.record.values() if t.outcome.measured]
        if time_s is None or not measured:
            return 0.0
        if len(finalists(measured, self.baseline, self.tuning.objective)) < 2:
            return self.probe_s() + self.proof_s()
        return min(RESERVE_PROBES * self.probe_s(), RESERVE_RATIO * time_s)

    def _look(self, plan: Plan) -> None:
        if (estimate := self._foresight.look(plan)) is not None:
            self.predicted[plan.key] = estimate.model_copy(update={"said_bytes": None})  # a searcher's, not a reader's

    def _run(self, plan: Plan) -> Trial:
        trial = self._screened(plan)
        self._learn(trial)
        self._check()
        return trial

    def _screened(self, plan: Plan) -> Trial:
        reason = self._unwanted(plan)
        if reason is not None:
            return self._skip(plan, reason)
        before = self.tuning.clock.elapsed_s
        trial = self.attempt(plan, Purpose.PROBE)
        self._done += 1
        self._durations_s.append(self.tuning.clock.elapsed_s - before)
        self.say("trial", f"{plan}: {summary(trial.outcome, self.tuning.objective)}", trial)
        return trial

    def _unwanted(self, plan: Plan) -> str | None:
        """Returns why a plan is not run, or None."""
        violation = self.tuning.space.violation(plan)
        if violation is not None:
            return f"not in the search space: {violation}"
        refused = refused_below(self.record.values(), plan) if self.tuning.cautious else None
        if refused is not None:
            return f"the same combination did not fit at micro batch {refused}"
        estimate = self._foresight.estimate(plan)
        if estimate is None:
            return None
        limit = self.tuning.budget.memory_bytes
        against = f"the budget of {format_bytes(limit)} ({estimate.basis})"
        if estimate.lower_bytes is not None and estimate.lower_bytes > limit:
            return f"needs at least {format_bytes(estimate.lower_bytes)}, above {against}"
        allowed = limit * (GUESS_RATIO if loose(estimate) else 1)
        above = not estimate.worst_case and estimate.value_bytes > allowed
        if self.tuning.cautious and above and not self._searcher.vouches(plan):
            how = "predicted" if estimate.is_bounded else "guessed"
            return f"is {how} to need {format_bytes(estimate.value_bytes)}, above {against}"
        return None

    def _skip(self, plan: Plan, reason: str) -> Trial:
        number = self.tuning.log.begin(plan, Purpose.PROBE)
        trial = self.tuning.log.finish(number, Outcome(status=Status.SKIPPED, reason=reason))
        self.trials.append(trial)
        self.say("skipped", f"{plan}: skipped, {reason}", trial)
        return trial

    def _once(self, plan: Plan, purpose: Purpose, settle: Callable[[Outcome], Outcome]) -> Trial:
        """Runs a plan once; its trial is on disk as running before and as finished after, whatever happens."""
        number = self.tuning.log.begin(plan, purpose)
        try:
            outcome = settle(self.evaluate(plan, purpose))
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
        self.refuse_poison(outcome)
        return trial

    def _finish(self, number: int, outcome: Outcome) -> Trial:
        trial = self.tuning.log.finish(number, outcome)
        self.trials.append(trial)
        return trial

    def _learn(self, trial: Trial) -> None:
        self.record[trial.plan.key] = trial
        self._foresight.tell(trial)
        self._searcher.tell(trial)

    def _check(self) -> None:
        fault = users_fault([t for t in self.trials if not t.earlier], self.baseline)
        if fault is not None:
            raise fault


def summary(outcome: Outcome, objective: Objective) -> str:
    """Returns an outcome in a few words."""
    measurement = outcome.measurement
    if not outcome.measured or measurement is None:
        return f"{outcome.status.value}, {outcome.reason}"
    speed = f"{objective.score(measurement):.4g} {objective.unit}/s"
    return f"{speed}, peak {format_bytes(measurement.memory.judged_bytes)}"
