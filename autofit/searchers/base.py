"""Searcher: proposes the next plan."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from autofit.core.objective import Objective
from autofit.core.plan import Plan
from autofit.core.space import Omission, SearchSpace
from autofit.core.trial import Trial
from autofit.feasibility import Feasibility


@dataclass(frozen=True, slots=True)
class Problem:
    """What a searcher is given.

    Attributes:
        feasibility: answers whether a plan fits, from all that is known so far; it learns of a trial before the
            searcher does.
        patience_s: returns the seconds that a probe may take now, before the time budget ends it.
        is_over: returns whether a limit has ended the search. A plan that is asked for then is only named, so a
            searcher spends no more time on looking at plans.
    """

    space: SearchSpace
    objective: Objective
    memory_bytes: int
    feasibility: Feasibility
    seed: int = 0
    patience_s: Callable[[], float] = lambda: math.inf
    is_over: Callable[[], bool] = lambda: False


class Searcher(ABC):
    """Proposes plans and learns from their trials.

    Made once per `tune()`, in the process that runs the loop; never loads torch. The loop calls `tell` for every
    trial of the study, first for those of earlier runs, then after each `ask`. A plan that was screened out has
    a trial with the status `SKIPPED`.

    Attributes:
        name: the name that `tune(searcher=...)` takes.
    """

    name: ClassVar[str]

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @abstractmethod
    def ask(self) -> Plan | None:
        """Returns the next plan to run, or None when nothing left is worth running.

        May have plans looked at (`Feasibility.look`), which takes time. The loop looks at the plan that is returned,
        which costs nothing if the searcher has just done so.

        Raises:
            DevicePoisoned: a look found the device in an error state.
        """

    @abstractmethod
    def tell(self, trial: Trial) -> None:
        """Learns from a trial, also from one whose plan this searcher did not ask for."""

    def leave_out(self, refused: Callable[[Plan], bool]) -> None:  # noqa: B027  # optional
        """Learns which plans cannot be the answer any more, since a value of theirs changes the gradient."""

    def expected_s(self, plan: Plan) -> float | None:
        """Returns the seconds that a probe of a plan is expected to take; None if unknown."""
        return None

    def expected_gain(self, plan: Plan) -> float | None:
        """Returns the expected gain of a plan over the best that ran, as a log ratio; None if unknown."""
        return None

    def omissions(self) -> list[Omission]:
        """Returns why no plan of some combinations was measured. Called once, when the search has ended."""
        return []
