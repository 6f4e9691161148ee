"""Loop: the search phase. Ask, look, screen, probe, record, then tell."""

import math
from dataclasses import dataclass

from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.core.units import format_duration
from autofit.feasibility import Feasibility
from autofit.search.no_answer import poison_ends_search, too_short
from autofit.search.screening import reason_to_skip
from autofit.search.trial_runner import TrialRunner
from autofit.search.tuning import Tuning
from autofit.searchers.base import Problem

REPEATS = 100
"""The search ends when a searcher proposes plans with a known outcome more often than this in a row."""


NOT_CONCLUSIVE = (
    Status.CRASHED, Status.TIMED_OUT, Status.AMBIGUOUS, Status.POISONED, Status.INTERRUPTED, Status.SKIPPED,
)  # fmt: skip
"""Outcomes of a worker that are not conclusive. The plan then runs in this process, which may run it twice."""


@dataclass(frozen=True, slots=True)
class SearchEnd:
    """How the search phase ended.

    Attributes:
        stopped: reason for the end.
        early: whether a limit ended it.
        wanted: the plan that would have run next, if only the baseline ran before a limit; else None.
    """

    stopped: str
    early: bool = False
    wanted: Plan | None = None


class Loop:
    """The search phase.

    Args:
        tuning: the arguments of the search.

    Attributes:
        runner: runs plans and keeps their trials.
        feasibility: answers whether a plan fits.
        end: how the search ended; a limit appears here as soon as it is reached.
    """

    def __init__(self, tuning: Tuning) -> None:
        self.runner = TrialRunner(tuning)
        self.feasibility = Feasibility(
            tuning.space, tuning.budget.memory_bytes, tuning.estimators, cautious=tuning.cautious
        )
        self.end = SearchEnd("")
        self._tuning, self._baseline = tuning, tuning.space.baseline
        self.runner.most_left_s = self._most_left_s
        self._searcher = tuning.searcher(
            Problem(
                space=tuning.space,
                objective=tuning.objective,
                memory_bytes=tuning.budget.memory_bytes,
                feasibility=self.feasibility,
                seed=tuning.seed,
                patience_s=self._patience_s,
                is_over=self._spent,
            )
        )

    def recall(self) -> None:
        """Learns the trials of earlier runs, after the baseline ran again and did not contradict them.

        Raises:
            UserCodeError: the baseline gives a loss that is not finite.
        """
        runner = self.runner
        if plans := len({trial.plan.key for trial in runner.earlier.known}):
            known = "1 plan is" if plans == 1 else f"{plans} plans are"
            runner.say("stage", f"{known} known from earlier runs; the baseline is measured again")
            if runner.time.left_s() > 0:
                runner.earlier.measure_again(self._run_baseline)
        runner.trials[:0] = runner.earlier.trials
        for trial in runner.earlier.known:
            self._learn(trial)
        runner.check_for_users_fault()

    def search(self) -> None:
        """Asks and runs until the searcher has nothing left or a limit is reached."""
        self.runner.say("stage", "searching")
        with poison_ends_search():
            self.feasibility.begin()  # also if every plan is known
        repeats = 0
        while not self._spent():
            self._collect()
            plan = self._ask()
            if plan is None and self._spent():  # a limit was reached while the searcher looked at plans
                break
            if self._must_wait(plan, repeats):
                self._wait_for_workers()  # what they find may make another plan worth a probe
                continue
            if plan is None or repeats > REPEATS:
                why = "nothing left that was worth a probe" if plan is None else "the searcher repeats itself"
                self.end = SearchEnd(why)
                break
            known = self.runner.record.get(plan.key)
            repeats = repeats + 1 if known is not None else 0
            if known is not None:
                self._searcher.tell(known)
                continue
            self._look(plan)
            self._run_or_hand_out(plan)
        self._finish_with_workers()
        self.runner.most_left_s = lambda: None
        self._close()

    def _close(self) -> None:
        """Says how the search ended, and keeps what it left out."""
        if self.end.early and len(self.runner.record) == 1:  # for the report of a time budget that was too small
            self.end = SearchEnd(self.end.stopped, early=True, wanted=self._ask())
        self.runner.say("stage", f"search ended: {self.end.stopped}")
        self._tuning.seen.stopped, self._tuning.seen.omissions = self.end.stopped, self._searcher.omissions()
        left_out = [omission.model_dump(mode="json") for omission in self._tuning.seen.omissions]
        self._tuning.log.note("left_out", {"combinations": left_out})

    def consider(self, plan: Plan) -> Trial:
        """Looks at a plan, then probes it unless it is screened out, and learns from its trial.

        Raises:
            UserCodeError: the user's code fails with any plan.
        """
        self._look(plan, alone=True)
        return self._run(plan)

    def ensure_baseline(self) -> None:
        """Gives the baseline an outcome if the searcher did not ask for it.

        Raises:
            BudgetSpent: the time was over before any plan ran. The baseline has run nevertheless, so that the next
                search has a starting point.
        """
        record, runner = self.runner.record, self.runner
        if self._baseline.key in record:
            return
        refused, late = self.feasibility.refused_size(self._baseline), runner.time.left_s() <= 0
        if refused is not None:
            trial = runner.skip(self._baseline, f"the same combination did not fit at micro batch {refused}")
        elif late and record:
            trial = runner.skip(self._baseline, "the time budget was spent before it was run")
        else:
            trial = self._run_baseline()
        self._learn(trial)
        runner.check_for_users_fault()
        if late and len(record) == 1 and trial.outcome.measured:
            raise too_short(trial, self.end.stopped, runner.time.probe_s())

    def _patience_s(self) -> float:
        """Returns the seconds that a probe may take now; infinity once a limit ended the search.

        A plan that is asked for then is only named.
        """
        return math.inf if self.end.early else self.runner.time.patience_s()

    def _most_left_s(self) -> float | None:
        """Returns the seconds that the search phase may still take, by the probes that may be left; None if unknown."""
        known, most = self._searcher.probes_left(), self._tuning.budget.max_trials
        bounds = [known, None if most is None else max(most - self.runner.probes, 0)]
        return self.runner.time.search_left_s(min((bound for bound in bounds if bound is not None), default=None))

    def _spent(self) -> bool:
        """Returns whether a limit ends the search, and keeps the reason in `end`."""
        budget, left_s = self._tuning.budget, self.runner.time.left_s()
        stopped = ""
        begun = self.runner.probes + len(self._tuning.workers.pending)
        if budget.max_trials is not None and begun >= budget.max_trials:
            trials = f"{budget.max_trials} trial{'s' if budget.max_trials != 1 else ''}"
            stopped = f"the limit of {trials} was reached"
        elif left_s <= 0:
            stopped = f"the time budget of {format_duration(budget.time_s or 0)} is spent"
        elif left_s <= self.runner.time.reserve_s():
            stopped = (
                f"the {format_duration(left_s)} left of {format_duration(budget.time_s or 0)} are kept for the race "
                "and the proof"
            )
        self.end = SearchEnd(stopped, early=bool(stopped))
        return self.end.early

    def _ask(self) -> Plan | None:
        with poison_ends_search():
            return self._searcher.ask()

    def _look(self, plan: Plan, alone: bool = False) -> None:
        with poison_ends_search():
            self.feasibility.look(plan, alone)

    def _must_wait(self, plan: Plan | None, repeats: int) -> bool:
        """Returns whether a plan is to be asked for again after the workers have finished theirs."""
        pending = self._tuning.workers.pending
        return bool(pending) and (plan is None or plan.key in pending or repeats > REPEATS)

    def _run_or_hand_out(self, plan: Plan) -> None:
        """Runs a plan, here or in a worker. The first plans run here, until one was measured."""
        workers = self._tuning.workers
        if not workers.free() or not any(trial.outcome.measured for trial in self.runner.record.values()):
            self._run(plan)
        elif (reason := reason_to_skip(plan, self._tuning.space, self.feasibility)) is not None:
            self._learn(self.runner.skip(plan, reason))
        else:
            workers.hand_out(plan)
            self._searcher.hand_out(plan)

    def _collect(self) -> bool:
        """Learns the trials of workers, and returns whether there were any. An inconclusive plan runs again here."""
        trials = self._tuning.workers.collect()
        for trial in trials:
            self.runner.received(trial)
            if trial.outcome.status not in NOT_CONCLUSIVE:
                self._learn(trial)
            elif self.runner.time.left_s() > self.runner.time.reserve_s():
                self._run(trial.plan)
        self.runner.check_for_users_fault()
        return bool(trials)

    def _wait_for_workers(self) -> None:
        """Waits until a worker has finished a plan, while there is time."""
        workers, time = self._tuning.workers, self.runner.time
        while workers.pending and time.left_s() > time.reserve_s() and not self._collect():
            workers.wait()

    def _finish_with_workers(self) -> None:
        """Waits for the plans that workers run, while there is time, and takes back the others."""
        workers, time = self._tuning.workers, self.runner.time
        while workers.pending and time.left_s() > time.reserve_s():
            self._wait_for_workers()
        workers.dismiss()

    def _run_baseline(self) -> Trial:
        self._look(self._baseline, alone=True)
        return self._screened(self._baseline)

    def _run(self, plan: Plan) -> Trial:
        trial = self._screened(plan)
        self._learn(trial)
        self.runner.check_for_users_fault()
        return trial

    def _screened(self, plan: Plan) -> Trial:
        reason = reason_to_skip(plan, self._tuning.space, self.feasibility)
        if reason is not None:
            return self.runner.skip(plan, reason)
        self.runner.say_running(plan, self.feasibility.estimate(plan))
        return self.runner.probe(plan)

    def _learn(self, trial: Trial) -> None:
        self.runner.record[trial.plan.key] = trial
        self.feasibility.tell(trial)
        self._searcher.tell(trial)
