"""Budget: the limits on memory, time and trials. Clock: the time left of a budget."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from autofit.core.errors import ClockError
from autofit.core.strict import Strict


class Budget(Strict):
    """The limits of one `tune()`.

    Attributes:
        memory_bytes: maximum peak of a plan, in the reading that the device compares with a budget.
        memory_note: the arithmetic behind `memory_bytes`, in words.
        requested: whether the user set it. Otherwise it is what the device has available, which changes all the time.
        time_s: seconds after which no new trial starts; None for no limit.
        max_trials: maximum number of probes; None for no limit.
    """

    memory_bytes: int
    memory_note: str = ""
    requested: bool = True
    time_s: float | None = None
    max_trials: int | None = None


TIME_BUDGET = "5min"
"""Time budget of a search if the user gives none."""
TRACE_RATIO = 0.25
"""Maximum share of the time left that one trace may take: it can spare no more than a failed run."""
OVERTIME_RATIO, OVERTIME_S = 0.05, 2.0
"""A search may exceed its budget by this share of it plus this many seconds, to stop a run and put everything back."""
PROCESS_S = 0.75
"""Seconds of that overtime which a command needs to start, before its clock runs, and to end."""


@dataclass(slots=True)
class Clock:
    """Seconds since a call began, and how many are left of its time budget.

    Attributes:
        now: returns the time of a monotonic clock, in seconds.
        limit_s: the time budget; None for no limit.
        start: the time at which the call began; None uses the present time.
        waited_s: seconds of it that were spent waiting for the device.
    """

    now: Callable[[], float] = time.monotonic
    limit_s: float | None = None
    start: float | None = None
    waited_s: float = 0.0
    _start: float = field(init=False)

    def __post_init__(self) -> None:
        self._start = self.now() if self.start is None else self.start

    @property
    def elapsed_s(self) -> float:
        """Seconds since the call began.

        Raises:
            ClockError: the clock returned NaN or went backwards.
        """
        elapsed = self.now() - self._start
        if not elapsed >= 0:  # also true for NaN
            raise ClockError(
                f"the clock is broken: {elapsed:g} s have passed since the start; expected at least 0. "
                "time.monotonic is faulty or was replaced (by a mock or freezegun): tune without the replacement."
            )
        return elapsed

    @property
    def left_s(self) -> float:
        """Seconds left of the budget: negative after its end, infinity without a budget."""
        return math.inf if self.limit_s is None else self.limit_s - self.elapsed_s

    def patience_s(self) -> float:
        """Returns how many seconds a run that begins now may take before it is stopped; infinity without a budget."""
        return max(self.left_s, 0.0)

    def closing_s(self) -> float:
        """Returns how many seconds putting everything back may take: those left, and the overtime."""
        if self.limit_s is None:
            return math.inf
        return max(self.left_s, 0.0) + OVERTIME_RATIO * self.limit_s + OVERTIME_S - PROCESS_S
