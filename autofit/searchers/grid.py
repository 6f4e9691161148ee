"""Grid: every plan once, in random order. The reference for what a searcher saves."""

import random

from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.searchers.base import Problem, Searcher


class Grid(Searcher):
    """Proposes the baseline first, then every other plan in an order that the seed decides."""

    name = "grid"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        space = problem.space
        plans = [space.at(combination, size) for combination in space.combinations() for size in space.sizes]
        random.Random(problem.seed).shuffle(plans)
        self._left = {plan.key: plan for plan in [space.baseline, *plans]}

    def ask(self) -> Plan | None:
        """Returns the next plan without a trial; None if there is none."""
        return next(iter(self._left.values()), None)

    def probes_left(self) -> int:
        """Returns the number of plans without a trial."""
        return len(self._left)

    def tell(self, trial: Trial) -> None:
        """Removes a plan from the list; ignores blocks of a race."""
        if trial.purpose is not Purpose.BLOCK:
            self._left.pop(trial.plan.key, None)
