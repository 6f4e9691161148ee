"""A tuning of a fake bench."""

from typing import Any

from autofit import estimators, searchers
from autofit.core.budget import Budget, Clock
from autofit.core.objective import Objective
from autofit.search.request import TrialLog, Tuning
from scripts.bench.search.simulated import FakeBench, MemoryLog


def tuning_of(bench: FakeBench, log: TrialLog | None = None, **changes: Any) -> Tuning:
    """Returns a tuning of `bench` with the default searcher and estimators; `changes` replace its fields."""
    fields: dict[str, Any] = {
        "space": bench.space,
        "evaluate": bench.evaluate,
        "objective": Objective(),
        "budget": Budget(memory_bytes=bench.budget_bytes),
        "log": log or MemoryLog(),
        "searcher": searchers.members()[0],
        "estimators": [estimators.Measured()],
        "clock": Clock(bench.time),
        "listen": lambda event: None,
    }
    return Tuning(**(fields | changes))
