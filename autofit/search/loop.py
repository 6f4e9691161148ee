"""The search phase: ask, screen, probe, record, then tell."""

import math
from dataclasses import dataclass

from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.core.units import format_duration
from autofit.search.endings import too_short
from autofit.search.other_sizes import refused_below
from autofit.search.runner import TrialRunner
from autofit.search.screening import Screening
from autofit.search.tuning import Tuning
from autofit.searchers.base import Problem

REPEATS = 100
"""A searcher that asks this often in a row for what is known has nothing new to ask."""


@dataclass(frozen=True, slots=True)
class SearchEnd:
    """How the search phase ended.

    Attributes:
        stopped: why.
        early: whether a limit ended it.
        wanted: what would have been run next, where the user's own setting alone was; else None.
    """

    stopped: str
    early: bool = False
    wanted: Plan | None = None


class Loop:
    """The search phase.

    Args:
        tuning: what the search was given.

    Attributes:
        runner: runs plans and keeps their trials.
        screening: decides which plans are run.
        end: how the search ended; a limit shows here as soon as it is reached.
    """

    def __init__(self, tuning: Tuning) -> None:
        self.runner = TrialRunner(tuning)
        self.screening = Screening(tuning, self.runner.record)
        self.end = SearchEnd("")
        self._tuning, self._baseline = tuning, tuning.space.baseline
        self._searcher = tuning.searcher(
            Problem(
                space=tuning.space,
                objective=tuning.objective,
                memory_bytes=tuning.budget.memory_bytes,
                estimate=self.screening.estimate,
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
        runner = self.runner
        if plans := len({trial.plan.key for trial in runner.earlier.known}):
            runner.say("stage", f"{plans} plans are known from earlier runs; your own setting is measured anew")
            if runner.time.left_s() > 0:
                runner.earlier.measure_anew(self._own)
        runner.trials[:0] = runner.earlier.trials
        for trial in runner.earlier.known:
            self._learn(trial)
        runner.check_for_users_fault()

    def search(self) -> None:
        """Asks and runs until the searcher has nothing left or a limit is reached."""
        self.runner.say("stage", "searching")
        self.screening.begin()  # also where all is known
        repeats, declined = 0, set[str]()
        while not self._spent():
            plan = self._searcher.ask()
            if plan is None or repeats > REPEATS:
                why = "nothing left that was worth a probe" if plan is None else "the searcher repeats itself"
                self.end = SearchEnd(why)
                break
            known = self.runner.record.get(plan.key)
            repeats = repeats + 1 if known is not None else 0
            if known is not None:
                self._searcher.tell(known)
                continue
            self.screening.refine_all()
            self.screening.look(plan)
            if plan.key in declined or self._searcher.still(plan):
                self._run(plan)
            else:
                declined.add(plan.key)
        if self.end.early and len(self.runner.record) == 1:  # what a person is told who gave too little time
            self.end = SearchEnd(self.end.stopped, early=True, wanted=self._searcher.ask())
        self.runner.say("stage", f"search ended: {self.end.stopped}")
        self._tuning.seen.stopped, self._tuning.seen.omissions = self.end.stopped, self._searcher.omissions()
        left_out = [omission.model_dump(mode="json") for omission in self._tuning.seen.omissions]
        self._tuning.log.note("left_out", {"combinations": left_out})

    def consider(self, plan: Plan) -> Trial:
        """Probes a plan unless it is screened out, records it, and tells it.

        Raises:
            UserCodeError: the user's code fails whatever the plan.
        """
        self.screening.look(plan)
        return self._run(plan)

    def ensure_baseline(self) -> None:
        """Gives the user's own setting an outcome when the searcher did not ask for it.

        Raises:
            BudgetSpent: the time was over before anything ran. Their own setting has run all the same, so that the next
                run has something to begin with.
        """
        record, runner = self.runner.record, self.runner
        if self._baseline.key in record:
            return
        refused, late = refused_below(record.values(), self._baseline), runner.time.left_s() <= 0
        if refused is not None:
            trial = runner.skip(self._baseline, f"the same combination did not fit at micro batch {refused}")
        elif late and record:
            trial = runner.skip(self._baseline, "the time budget was spent before it was run")
        else:
            trial = self._own()
        self._learn(trial)
        runner.check_for_users_fault()
        if late and len(record) == 1 and trial.outcome.measured:
            raise too_short(trial, self.end.stopped, runner.time.probe_s())

    def _patience_s(self) -> float:
        """Returns the seconds that a probe may take now; no limit once the search was cut short.

        What is asked for then is only named.
        """
        return math.inf if self.end.early else self.runner.time.patience_s()

    def _spent(self) -> bool:
        """Returns whether a limit ends the search, and says why in `end`."""
        budget, left_s = self._tuning.budget, self.runner.time.left_s()
        stopped = ""
        if budget.max_trials is not None and self.runner.probes >= budget.max_trials:
            stopped = f"{budget.max_trials} trials were allowed and run"
        elif left_s <= 0:
            stopped = f"the time budget of {format_duration(budget.time_s or 0)} is spent"
        elif left_s <= self.runner.time.reserve_s():
            stopped = (
                f"the {format_duration(left_s)} left of {format_duration(budget.time_s or 0)} are kept for the race "
                "and the proof"
            )
        self.end = SearchEnd(stopped, early=bool(stopped))
        return self.end.early

    def _own(self) -> Trial:
        self.screening.look(self._baseline)
        return self._screened(self._baseline)

    def _run(self, plan: Plan) -> Trial:
        trial = self._screened(plan)
        self._learn(trial)
        self.runner.check_for_users_fault()
        return trial

    def _screened(self, plan: Plan) -> Trial:
        reason = self.screening.reason_to_skip(plan, self._searcher.vouches)
        if reason is not None:
            return self.runner.skip(plan, reason)
        self.runner.say_running(plan, self.screening.estimate(plan))
        return self.runner.probe(plan)

    def _learn(self, trial: Trial) -> None:
        self.runner.record[trial.plan.key] = trial
        self.screening.tell(trial)
        self._searcher.tell(trial)
