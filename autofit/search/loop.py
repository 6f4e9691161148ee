"""Loop: the search phase. Ask, look, screen, probe, record, tell; then the plan may become the answer."""

import math
from dataclasses import dataclass, replace

from autofit.core.plan import Plan
from autofit.core.space import Omission
from autofit.core.trial import Trial
from autofit.core.units import format_duration
from autofit.feasibility import Feasibility
from autofit.search.answers import Answers, Checks
from autofit.search.choice import finalists, measurement_of, ranked
from autofit.search.evidence import STOPPED_BY_USER
from autofit.search.no_answer import poison_ends_search, too_short
from autofit.search.race import MIN_ROUNDS, Race
from autofit.search.request import Tuning
from autofit.search.trial_runner import TrialRunner
from autofit.searchers.base import Problem

REPEATS = 100
"""The search ends when a searcher proposes plans with a known outcome more often than this in a row."""
RACE_GAIN = 0.03
"""What a race is worth, as a log ratio: how much slower a choice by probes alone is. Probes continue instead while the
next one promises more."""


@dataclass(frozen=True, slots=True)
class SearchEnd:
    """How the search phase ended.

    Attributes:
        stopped: reason for the end.
        early: whether a limit, an error or the user ended it.
        wanted: the plan that would have run next, if a limit ended it before another plan than the baseline ran, or if
            the time left was too short for it; else None.
        wanted_s: expected duration of its probe in seconds; None if unknown.
        interrupted: whether the user ended it.
    """

    stopped: str
    early: bool = False
    wanted: Plan | None = None
    wanted_s: float | None = None
    interrupted: bool = False


class Loop:
    """The search phase.

    Attributes:
        runner: runs plans and keeps their trials.
        checks: checks the gradient of plans.
        answers: the best plan so far that is proven and checked.
        feasibility: answers whether a plan fits.
        end: how the search ended; a limit appears here as soon as it is reached.
        omissions: why combinations were not measured, once the search has ended.
        race: the race that follows, once it has begun.
    """

    def __init__(self, tuning: Tuning) -> None:
        self.runner = TrialRunner(tuning)
        self.checks = Checks(tuning, self.runner.ledger)
        self.answers = Answers(self.runner, self.checks)
        self.feasibility = Feasibility(
            tuning.space,
            tuning.budget.memory_bytes,
            tuning.estimators,
            cautious=tuning.cautious,
            hurried=tuning.budget.time_s is not None,
            light=tuning.budget.time_s is not None and not (tuning.cautious and tuning.budget.requested),
            now=lambda: tuning.clock.elapsed_s,
        )
        self.end, self.omissions = SearchEnd(""), list[Omission]()
        self.race: Race | None = None
        self._tuning, self._baseline, self._ledger = tuning, tuning.space.baseline, self.runner.ledger
        self._refused, self._naming = 0, False
        self._searcher = tuning.searcher(
            Problem(
                space=tuning.space,
                objective=tuning.objective,
                memory_bytes=tuning.budget.memory_bytes,
                feasibility=self.feasibility,
                seed=tuning.seed,
                patience_s=self._patience_s,
                is_over=lambda: self._naming or self._spent(),
            )
        )

    def search(self) -> None:
        """Learns what earlier runs found, then searches. The baseline has an outcome when this returns.

        Raises:
            UserCodeError: the user's code fails with any plan, or the baseline gives a loss that is not finite.
            BudgetSpent: the time was over before any plan ran, and the baseline did not end one step.
        """
        self._recall()
        self.runner.say("stage", "searching")
        self._ask_and_run()
        if self.end.early and len(self.runner.record) == 1:  # for the report of a time budget that was too small
            self.end = replace(self.end, wanted=self.end.wanted or self._next_plan())
        self.runner.say("stage", f"search ended: {self.end.stopped}")
        self.omissions = self._searcher.omissions()
        if self._baseline.key not in self.runner.record:
            self._learn(self._outcome_of_baseline())
            self.runner.check_for_users_fault()

    def _recall(self) -> None:
        """Learns the trials of earlier runs, after their best plan (the answer at once) and the baseline ran again."""
        runner, earlier = self.runner, self.runner.earlier
        if plans := len({trial.plan.key for trial in earlier.known}):
            known = "1 plan is" if plans == 1 else f"{plans} plans are"
            runner.say("stage", f"{known} known from earlier runs; the best and the baseline are measured again")
            if self._ledger.left_s() > 0:
                again = self._known_best()
                earlier.measure_again(self._run_baseline)
                if again is not None and earlier.trials:
                    earlier.renew(again)
        runner.trials[:0] = earlier.trials
        for trial in earlier.known:
            self._learn(trial)
        runner.check_for_users_fault()
        self.answers.settle(earlier.known)

    def _known_best(self) -> Trial | None:
        """Runs the best plan of earlier runs, which becomes the answer; returns its new trial, or None."""
        plans = (trial.plan for trial in ranked(self.runner.earlier.known, self._tuning.objective))
        able = (p for p in plans if self._tuning.space.unpinned(p) is None and not self.checks.refusal(p))
        best = next(able, self._baseline)
        if best == self._baseline:
            return None
        trial = self.runner.probe(best, self.answers.terms(best, None))
        if not trial.outcome.measured:
            return None
        self.runner.record[best.key] = trial
        self.answers.consider(trial)
        return trial

    def _ask_and_run(self) -> None:
        """Asks and runs until the searcher has nothing left, a limit is reached, or a race is worth more."""
        repeats, fits = 0, self.feasibility
        while not self._spent():
            # Estimates of all other plans begin with those of the baseline; where time is limited, once it has run.
            if not fits.light and (not fits.hurried or self._baseline.key in self.runner.record):
                with poison_ends_search():
                    fits.begin()
            plan = self._ask()
            if plan is None and self._spent():  # a limit was reached while the searcher looked at plans
                return
            if plan is None or repeats > REPEATS:
                self.end = self._exhausted() if plan is None else SearchEnd("the searcher repeats itself")
                return
            known = self.runner.record.get(plan.key)
            repeats = repeats + 1 if known is not None else 0
            if known is not None:
                self._searcher.tell(known)
            elif self._race_is_worth_more(plan):
                left = format_duration(self._ledger.left_s())
                self.end = SearchEnd(f"a race of the best plans was worth more than a probe in the last {left}", True)
                return
            else:
                self.consider(plan, alone=False)

    def stop(self, error: BaseException) -> None:
        """Records that an error or the user ended the search, after there was an answer."""
        interrupted = isinstance(error, KeyboardInterrupt)
        why = f"{type(error).__name__}: {error}"
        if interrupted:
            why = f"{STOPPED_BY_USER}: {error}" if str(error) else STOPPED_BY_USER
        self.end = SearchEnd(why, early=True, interrupted=interrupted)

    def consider(self, plan: Plan, alone: bool = True) -> Trial:
        """Looks at a plan, then probes it unless it is screened out, and learns from its trial.

        `alone` is as in `Feasibility.look`.

        Raises:
            UserCodeError: the user's code fails with any plan.
        """
        self._look(plan, alone)
        trial = self._screened(plan)
        self._learn(trial)
        self.runner.check_for_users_fault(self._surely_fits)
        self.answers.consider(trial)
        if len(self.checks.refused) != self._refused:  # plans with these values cannot be the answer any more
            self._refused = len(self.checks.refused)
            self._searcher.leave_out(lambda plan: bool(self.checks.refusal(plan)))
        return trial

    def _surely_fits(self, plan: Plan) -> bool:
        estimate = self.feasibility.estimate(plan)
        upper_bytes = None if estimate is None else estimate.upper_bytes
        return upper_bytes is not None and upper_bytes <= self._tuning.budget.memory_bytes

    def _outcome_of_baseline(self) -> Trial:
        """Returns a trial of the baseline, for which the searcher did not ask."""
        refused, late = self.feasibility.refused_size(self._baseline), self._ledger.left_s() <= 0
        if late and not self.runner.record:
            raise too_short(self.end.stopped, self._tuning.clock.elapsed_s)
        if refused is not None:
            return self.runner.skip(self._baseline, f"the same combination did not fit at micro batch {refused}")
        if late:
            return self.runner.skip(self._baseline, "the time budget was spent before it was run")
        return self._run_baseline()

    def _patience_s(self) -> float:
        """Returns the seconds that a probe may take now; infinity for a plan that is only named."""
        return math.inf if self._naming else self._ledger.left_s()

    def _spent(self) -> bool:
        """Returns whether a limit ends the search, and keeps the reason in `end`."""
        budget, stopped = self._tuning.budget, ""
        if budget.max_trials is not None and self.runner.probes >= budget.max_trials:
            trials = f"{budget.max_trials} trial{'s' if budget.max_trials != 1 else ''}"
            stopped = f"the limit of {trials} was reached"
        elif self._ledger.left_s() <= 0:
            stopped = f"the time budget of {format_duration(budget.time_s or 0)} is spent"
        self.end = SearchEnd(stopped, early=bool(stopped))
        return self.end.early

    def _race_is_worth_more(self, plan: Plan) -> bool:
        """Returns whether a race would not end in time after a probe of a plan, which promises less than the race."""
        left_s, expected_s = self._ledger.left_s(), self._searcher.expected_s(plan)
        if math.isinf(left_s) or self.answers.best is None:
            return False
        measured = [t for t in self.runner.record.values() if t.outcome.measured]
        able = finalists(measured, self._baseline, self._tuning.objective, most=2)
        race_s = MIN_ROUNDS * sum(self._ledger.block_s(measurement_of(t)) for t in able)
        if len(able) < 2 or race_s > left_s or left_s - (expected_s or self._ledger.probe_s()) > race_s:
            return False
        gain = self._searcher.expected_gain(plan)
        return gain is None or gain < RACE_GAIN

    def _ask(self) -> Plan | None:
        with poison_ends_search():
            return self._searcher.ask()

    def _next_plan(self) -> Plan | None:
        """Returns the plan that would be next with more time. It is named, not looked at."""
        self._naming = True
        try:
            return self._ask()
        finally:
            self._naming = False

    def _exhausted(self) -> SearchEnd:
        """Returns the end of a search that has no plan left to propose: the time, if a longer one would have one."""
        left_s, wanted = self._ledger.left_s(), self._next_plan()
        wanted_s = None if wanted is None else self._searcher.expected_s(wanted)
        if wanted is None or wanted_s is None or wanted_s <= left_s or not self.feasibility.is_likely(wanted):
            return SearchEnd("nothing left that was worth a probe")
        why = f"the time ended before another plan could run, with {format_duration(left_s)} left"
        return SearchEnd(why, early=True, wanted=wanted, wanted_s=wanted_s)

    def _look(self, plan: Plan, alone: bool) -> None:
        with poison_ends_search():
            self.feasibility.look(plan, alone, self._searcher.expected_s(plan))

    def _run_baseline(self) -> Trial:
        self._look(self._baseline, alone=True)
        return self._screened(self._baseline)

    def _screened(self, plan: Plan) -> Trial:
        violation = self._tuning.space.violation(plan)
        reason = self.feasibility.refusal(plan) if violation is None else f"not in the search space: {violation}"
        if reason := reason or self.checks.refusal(plan):
            return self.runner.skip(plan, reason)
        self.runner.say_running(plan, self.feasibility.estimate(plan))
        expected_s = None if plan == self._baseline else self._searcher.expected_s(plan)
        return self.runner.probe(plan, self.answers.terms(plan, expected_s))

    def _learn(self, trial: Trial) -> None:
        self.runner.record[trial.plan.key] = trial
        self.feasibility.tell(trial)
        self._searcher.tell(trial)
