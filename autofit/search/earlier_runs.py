"""Earlier: what earlier runs left in the study, held against what runs now."""

from collections.abc import Callable

from autofit.core.measurement import Measurement
from autofit.core.outcome import DIED, Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.search.contradiction import contradiction
from autofit.search.tuning import Tuning

BLOCKS = 3
"""So many blocks of a race tell a speed that may contradict the study; one may have been disturbed."""


class Earlier:
    """The trials of earlier runs that hold for this one, until something that runs now contradicts them.

    Attributes:
        trials: all of them; empty once they were dropped.
        known: those that say something of a plan that this run searches; last the user's own setting, measured anew.
        caveats: what a person should know of them.
    """

    def __init__(self, tuning: Tuning) -> None:
        self._tuning, self._baseline = tuning, tuning.space.baseline
        self.trials = tuple(tuning.log.earlier())
        self.known = tuple(t for t in self.trials if self._says_something(t))
        self.caveats: list[str] = []
        self._blocks: dict[str, list[Measurement]] = {}

    def measure_anew(self, run: Callable[[], Trial]) -> None:
        """Runs the user's own setting. Where that contradicts the study twice, the study is dropped.

        Not run is a setting that ended each process that ran it. One that is screened out is known from earlier alone.

        Args:
            run: screens, runs and records the user's own setting.
        """
        own = [t for t in self.known if t.plan == self._baseline]
        if own and own[-1].outcome.reason == DIED:
            return
        trial = run()
        if self._contradiction(trial.plan, Purpose.PROBE, trial.outcome):
            trial = run()  # one disturbed probe is no proof
        if what := self._contradiction(trial.plan, Purpose.PROBE, trial.outcome):
            self._drop(trial.plan, what)
        if trial.outcome.status is not Status.SKIPPED:
            self.known = (*(t for t in self.known if t.plan != self._baseline), trial)

    def hold(self, plan: Plan, purpose: Purpose, outcome: Outcome) -> None:
        """Holds a block or a proof against what the study has of its plan; drops the study where it contradicts."""
        if what := self._contradiction(plan, purpose, outcome):
            self._drop(plan, what)
            self.caveats.append("this search was guided by what was dropped: tune again to measure everything anew")

    def _contradiction(self, plan: Plan, purpose: Purpose, outcome: Outcome) -> str:
        """Returns what contradicts the study, in words, or "". Blocks are collected until they say enough."""
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

    def _says_something(self, trial: Trial) -> bool:
        # What made the loss not finite may have been mended, and there is no gain without the user's own setting.
        mended = trial.plan == self._baseline and trial.outcome.status is Status.NUMERIC
        # Of another global batch, or with a knob that is not in play now: right then, no answer now.
        foreign = self._tuning.space.violation(trial.plan) is not None
        return trial.purpose is not Purpose.BLOCK and not mended and not foreign
