"""What a searcher is given of a fake bench, and how it is told a trial."""

from collections.abc import Callable
from typing import Any

from autofit.core.estimate import Estimate
from autofit.core.objective import Objective
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.feasibility import Feasibility
from autofit.searchers.base import Problem, Searcher
from scripts.bench.search.simulated import FakeBench
from tests.fakes.estimators import Estimates


def problem_of(
    bench: FakeBench, estimate: Callable[[Plan], Estimate | None] = lambda plan: None, **changes: Any
) -> Problem:
    """Returns the problem of `bench`, with memory estimated by a function; `changes` replace its fields."""
    fields: dict[str, Any] = {
        "space": bench.space,
        "objective": Objective(),
        "memory_bytes": bench.budget_bytes,
        "feasibility": Feasibility(bench.space, bench.budget_bytes, [Estimates(estimate)]),
    }
    return Problem(**(fields | changes))


def tell(searcher: Searcher, trial: Trial) -> None:
    """Tells a trial in the order of the loop: first the feasibility, then the searcher."""
    searcher.problem.feasibility.tell(trial)
    searcher.tell(trial)
