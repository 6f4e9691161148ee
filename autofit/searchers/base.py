"""Searcher: proposes the next plan."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from autofit.core.estimate import Estimate
from autofit.core.objective import Objective
from autofit.core.omission import Omission
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.core.trial import Trial


@dataclass(frozen=True, slots=True)
class Problem:
    """What a searcher is given.

    Attributes:
        space: the plans that may be proposed.
        objective: what is maximised.
        memory_bytes: the budget on the peak.
        estimate: estimates the peak of a plan from all that is known so far, or None for no opinion. Asking again costs
            next to nothing.
        seed: makes the search repeatable.
        cautious: whether exceeding the budget harms the machine, and not only the trial.
        patience_s: returns the seconds that a probe may take now, before the time budget ends it.
    """

    space: SearchSpace
    objective: Objective
    memory_bytes: int
    estimate: Callable[[Plan], Estimate | None]
    seed: int = 0
    cautious: bool = False
    patience_s: Callable[[], float] = lambda: math.inf


class Searcher(ABC):
    """Proposes plans and learns from their trials.

    Made once per `tune()`, in the process that runs the loop; never loads torch. The loop calls `tell` for every
    trial of the study, first for those of earlier runs, then after each `ask`, unless the plan is no longer wanted
    (`still`). A plan that was screened out is told with the status `SKIPPED`; under `cautious` one that is estimated
    above the budget is, unless the searcher `vouches` for it.

    Attributes:
        name: what `tune(searcher=...)` calls it.
    """

    name: ClassVar[str]

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abstractmethod
    def ask(self) -> Plan | None:
        """Returns the next plan to run, or None when nothing left is worth running."""

    def still(self, plan: Plan) -> bool:
        """Says whether a plan that was asked for is wanted after a closer look at its memory; else it is not run."""
        return True

    def vouches(self, plan: Plan) -> bool:
        """Says whether a plan is likely to fit though it is estimated above the budget: estimates were too high."""
        return False

    def omissions(self) -> list[Omission]:
        """Returns why nothing of some combinations was measured; asked once, when the search has ended."""
        return []

    @abstractmethod
    def tell(self, trial: Trial) -> None:
        """Learns from a trial. Trials that this searcher did not ask for are told too."""
