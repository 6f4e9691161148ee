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
        self._plans = problem.feasibility.plans
        others = list(range(1, len(self._plans.plans)))
        random.Random(problem.seed).shuffle(others)
        self._left = dict.fromkeys((0, *others))  # places, in the order in which they are proposed

    def ask(self) -> Plan | None:
        """Returns the next plan without a trial; None if there is none."""
        place = next(iter(self._left), None)
        return None if place is None else self._plans.plans[place]

    def tell(self, trial: Trial) -> None:
        """Removes a plan from the list; ignores blocks of a race."""
        place = self._plans.place(trial.plan)
        if trial.purpose is not Purpose.BLOCK and place is not None:
            self._left.pop(place, None)
