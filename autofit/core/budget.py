"""Budget: the limits on memory, time and trials. Clock: time that a test can replace."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from autofit.core.errors import ClockError
from autofit.core.trial import Purpose


class Budget(BaseModel):
    """The limits of one `tune()`.

    Attributes:
        memory_bytes: no plan may peak above this, in the reading that the device judges by.
        memory_note: the arithmetic behind `memory_bytes`, for a person.
        time_s: seconds after which no new trial starts; None for no limit.
        max_trials: probes at most; None for no limit.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_bytes: int
    memory_note: str = ""
    time_s: float | None = None
    max_trials: int | None = None


OVERTIME_RATIO, OVERTIME_S = 0.05, 2.0
"""What still runs when the time budget is over has this share of it, and so many seconds more, until it is stopped.
With what stopping and putting back take, nothing goes on for more than 10 % and 5 s beyond its budget."""
SHARES = {Purpose.PROBE: 0.5, Purpose.BLOCK: 0.5, Purpose.PROOF: 1.0}
"""Shares of the time left that one run may take: what takes more than half of it cannot be proven in the rest."""
TRACE_SHARE = 0.25
"""The same for a trace."""
GATES_SHARE = 0.15
"""The same for all gates together, so that with the traces they leave most of the time to the probes."""
LEAST_PATIENCE_S, MOST_SHARE, FLOOR_S = 5.0, 0.8, 2.0
"""What is given a share of the time left has at least so many seconds, where that is not more than this share of it;
and at the very end so many, unless it would end beyond the overtime."""


@dataclass(slots=True)
class Clock:
    """Seconds since a call began, from a monotonic source, and what is left of its time budget.

    Attributes:
        now: reads the source.
        limit_s: the time budget; None for no limit.
        start: what the source read when the call began; None: now.
    """

    now: Callable[[], float] = time.monotonic
    limit_s: float | None = None
    start: float | None = None
    _start: float = field(init=False)

    def __post_init__(self) -> None:
        self._start = self.now() if self.start is None else self.start

    @property
    def elapsed_s(self) -> float:
        """Seconds since the call began.

        Raises:
            ClockError: the source gives no number, or went backwards.
        """
        elapsed = self.now() - self._start
        if not elapsed >= 0:  # NaN too
            raise ClockError(
                f"the clock is broken: {elapsed} s after the start. Something has replaced time.monotonic or the "
                "machine's clock is faulty; expected seconds that only grow. Tune without it."
            )
        return elapsed

    @property
    def left_s(self) -> float:
        """Seconds that are left of the budget, below 0 when it is over; infinity without one."""
        return math.inf if self.limit_s is None else self.limit_s - self.elapsed_s

    def patience_s(self, share: float = 1.0) -> float:
        """Returns the seconds that what begins now may take before it is stopped; infinity without a budget.

        Args:
            share: of the time that is left, if the rest is wanted for something else; 1: all of it, and the overtime.
        """
        if self.limit_s is None:
            return math.inf
        most = self.left_s + OVERTIME_RATIO * self.limit_s + OVERTIME_S
        least = max(min(LEAST_PATIENCE_S, MOST_SHARE * self.left_s), FLOOR_S)
        wanted = most if share >= 1 else max(share * self.left_s, least)
        return max(min(wanted, most), 0.0)
