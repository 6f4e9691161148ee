"""Earlier: the trials of earlier runs, compared with what runs now."""

from collections.abc import Callable

from autofit.core.measurement import Measurement
from autofit.core.outcome import DIED, Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.search.contradiction import contradiction
from autofit.search.tuning import Tuning

BLOCKS = 3
"""Number of blocks of a race whose median speed may contradict the study; a single one may be disturbed."""


class Earlier:
    """The trials of earlier runs that are valid for this run, until a run contradicts them.

    Attributes:
        trials: all trials of earlier runs; empty once they were dropped.
        known: those that are informative about a plan of this search; last the baseline, measured again.
        caveats: limitations that the user should know.
    """

    def __init__(self, tuning: Tuning) -> None:
        self._tuning, self._baseline = tuning, tuning.space.baseline
        self.trials = tuple(tuning.log.earlier())
        self.known = tuple(t for t in self.trials if self._is_informative(t))
        self.caveats: list[str] = []
        self._blocks: dict[str, list[Measurement]] = {}

    def measure_again(self, run: Callable[[], Trial]) -> None:
        """Runs the baseline. If it contradicts the study twice, the earlier trials are dropped.

        A baseline that ended every process in which it ran is not run again. If it is screened out now, its earlier
        trials stay valid.

        Args:
            run: screens, runs and records the baseline.
        """
        known = [t for t in self.known if t.plan == self._baseline]
        if known and known[-1].outcome.reason == DIED:
            return
        trial = run()
        if self._contradiction(trial.plan, Purpose.PROBE, trial.outcome):
            trial = run()  # a single probe may be disturbed
        if what := self._contradiction(trial.plan, Purpose.PROBE, trial.outcome):
            self._drop(trial.plan, what)
        if trial.outcome.status is not Status.SKIPPED:
            self.known = (*(t for t in self.known if t.plan != self._baseline), trial)

    def renew(self, trial: Trial) -> None:
        """Replaces what is known of a plan by a trial of this run; drops the earlier trials if it contradicts them."""
        self.compare(trial.plan, Purpose.PROBE, trial.outcome)
        if self.trials:
            self.known = (*(t for t in self.known if t.plan != trial.plan), trial)

    def compare(self, plan: Plan, purpose: Purpose, outcome: Outcome) -> None:
        """Compares a block or a proof with the study; drops the earlier trials if it contradicts them."""
        if what := self._contradiction(plan, purpose, outcome):
            self._drop(plan, what)
            self.caveats.append("this search was guided by the dropped trials: tune again to measure everything again")

    def _contradiction(self, plan: Plan, purpose: Purpose, outcome: Outcome) -> str:
        """Returns the contradiction to the study in words, or "". Blocks are collected until there are enough."""
        then = [t.outcome for t in self.known if t.plan == plan and t.earlier]
        if not then or (purpose is Purpose.BLOCK and outcome.measurement is None):
            return ""
        blocks: list[Measurement] = []
        if purpose is Purpose.BLOCK and outcome.measurement is not None:
            blocks = self._blocks.setdefault(plan.key, [])
            blocks.append(outcome.measurement)
            if len(blocks) < BLOCKS:
                return ""
        return contradiction(then[-1], outcome, self._tuning.objective, self._tuning.budget.memory_bytes, blocks)

    def _drop(self, plan: Plan, what: str) -> None:
        reason = f"{plan} now shows {what}"
        self._tuning.log.drop(reason)
        self.caveats.append(
            f"the {len(self.trials)} trials of earlier runs were dropped from the study: {reason}, which is more than "
            "noise. The workload or the machine has changed"
        )
        self.trials = self.known = ()

    def _is_informative(self, trial: Trial) -> bool:
        # The cause of a loss that is not finite may have been fixed, and without the baseline there is no gain.
        fixed = trial.plan == self._baseline and trial.outcome.status is Status.NUMERIC
        # A plan with another global batch, or with a knob that is not in play now, cannot be recommended now.
        foreign = self._tuning.space.violation(trial.plan) is not None
        return trial.purpose is not Purpose.BLOCK and not fixed and not foreign
