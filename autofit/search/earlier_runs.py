"""Earlier: the trials of earlier runs, compared with what runs now."""

from collections.abc import Callable

from autofit.core.measurement import Measurement
from autofit.core.outcome import DIED, Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.search.contradiction import contradiction, other_peak
from autofit.search.tuning import Tuning

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
        self.known = tuple(t for t in self.trials if self._is_informative(t))
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
            f"{count} were dropped, first because {plan} now shows {what}, which is more than noise. If something else "
            "uses the machine, tune again when it is idle"
        ]

    def measure_again(self, run: Callable[[], Trial]) -> None:
        """Runs the baseline, once more if it contradicts the study.

        A baseline that ended every process in which it ran is not run again. If it is screened out now, its earlier
        trials stay valid.

        Args:
            run: screens, runs and records the baseline.
        """
        known = [t for t in self.known if t.plan == self._baseline]
        if known and known[-1].outcome.reason == DIED:
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
            self._drop_all(plan, peak)
        elif what:
            self._dropped[plan] = what
            self._tuning.log.drop(f"{plan} now shows {what}", plan)
            self.trials, self.known = (
                tuple(t for t in trials if t.plan != plan or not t.earlier) for trials in (self.trials, self.known)
            )

    def _contradictions(self, plan: Plan, purpose: Purpose, outcome: Outcome) -> tuple[str, str]:
        """Returns how a run contradicts the peak and the rest that the study has of its plan, each "" if it does not.

        Blocks, whose memory is not compared, are collected until there are enough.
        """
        then = [t.outcome for t in self.known if t.plan == plan and t.earlier]
        if not then or (purpose is Purpose.BLOCK and outcome.measurement is None):
            return "", ""
        blocks: list[Measurement] = []
        if purpose is Purpose.BLOCK and outcome.measurement is not None:
            blocks = self._blocks.setdefault(plan.key, [])
            blocks.append(outcome.measurement)
            if len(blocks) < BLOCKS:
                return "", ""
        peak = "" if blocks else other_peak(then[-1], outcome)
        budget_bytes = self._tuning.budget.memory_bytes
        return peak, contradiction(then[-1], outcome, self._tuning.objective, budget_bytes, blocks)

    def _drop_all(self, plan: Plan, what: str) -> None:
        reason = f"{plan} now shows {what}"
        self._tuning.log.drop(reason)
        self._another = (
            f"the {len(self.trials)} trials of earlier runs were dropped from the study: {reason}, which is more than "
            "noise. The workload has changed: if the search had begun, tune again to measure everything again"
        )
        self.trials = self.known = ()

    def _is_informative(self, trial: Trial) -> bool:
        # The cause of a loss that is not finite may have been fixed, and without the baseline there is no gain.
        fixed = trial.plan == self._baseline and trial.outcome.status is Status.NUMERIC
        # A plan with another global batch, or with a knob that is not in play now, cannot be recommended now.
        foreign = self._tuning.space.violation(trial.plan) is not None
        return trial.purpose is not Purpose.BLOCK and not fixed and not foreign
