"""A searcher that proposes a list of plans, and a calm device, for the tests of a search."""

from collections.abc import Callable
from typing import Any

from autofit.core.plan import KnobValue, Plan
from autofit.core.trial import Trial
from autofit.search.request import Tuning
from autofit.searchers.base import Problem, Searcher
from tests.fakes import (
    OPTIMIZER,
    PRECISION,
    FakeBench,
    small_bench,
    space_of,
    tuning_of,
)


class Listed(Searcher):
    """Asks for the plans of a list, in order."""

    name = "listed"
    plans: tuple[Plan, ...] = ()

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.left = list(self.plans)
        self.told: list[Trial] = []

    def ask(self) -> Plan | None:
        return self.left.pop(0) if self.left else None

    def tell(self, trial: Trial) -> None:
        self.told.append(trial)


def listed(*plans: Plan) -> tuple[Callable[[Problem], Searcher], list[Listed]]:
    """Returns a searcher over `plans`, and the list that its instance is put into."""
    made: list[Listed] = []

    def make(problem: Problem) -> Searcher:
        searcher: Listed = type("Once", (Listed,), {"plans": plans})(problem)
        made.append(searcher)
        return searcher

    return make, made


def at(bench: FakeBench, size: int, **values: KnobValue) -> Plan:
    return bench.space.at(bench.space.baseline.combination.replace(**values), size)


def calm(**changes: object) -> FakeBench:
    """A bench of 9 combinations and 5 sizes with little noise."""
    return small_bench(**({"space": space_of((PRECISION, OPTIMIZER), (4, 8, 16, 32, 64), 8)} | changes))


def only(bench: FakeBench, *plans: Plan, **changes: Any) -> Tuning:
    """A tuning that asks for these plans and nothing else, without estimators."""
    fields: dict[str, Any] = {"searcher": listed(*plans)[0], "estimators": []}
    return tuning_of(bench, **(fields | changes))
