"""Yardstick: what the progress of a search is compared with."""

from collections.abc import Callable
from dataclasses import dataclass, field

from autofit.core.briefing import Briefing
from autofit.core.budget import Clock
from autofit.core.objective import Objective
from autofit.core.plan import Plan
from autofit.search.request import Request


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What the progress of a search is compared with.

    Attributes:
        objective: what is maximised.
        baseline: the user's own plan; None if it is not known, so that there is no ratio.
        memory_bytes: the memory budget, or None.
        time_s: the time budget, or None.
        max_trials: maximum number of probes, or None.
        clock: running since the call began.
        doing: returns the name of the step that runs now, as `autofit.probing.watchdog.Watchdog.doing` has it.
    """

    objective: Objective = field(default_factory=Objective)
    baseline: Plan | None = None
    memory_bytes: int | None = None
    time_s: float | None = None
    max_trials: int | None = None
    clock: Clock = field(default_factory=Clock)
    doing: Callable[[], str] = field(default=lambda: "")

    @classmethod
    def of(
        cls, briefing: Briefing | None, request: Request, clock: Clock, doing: Callable[[], str] = lambda: ""
    ) -> "Yardstick":
        """Returns the yardstick of a search; `briefing` is None before the workload was looked at."""
        return cls(
            objective=request.objective,
            baseline=None if briefing is None else briefing.space.baseline,
            memory_bytes=None if briefing is None else briefing.budget.memory_bytes,
            time_s=request.time_s,
            max_trials=request.max_trials,
            clock=clock,
            doing=doing,
        )
