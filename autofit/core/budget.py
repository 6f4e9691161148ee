"""Budget: the limits on memory, time and trials. Clock: time that a test can replace."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict


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


@dataclass(slots=True)
class Clock:
    """Seconds since this clock was made, from a monotonic source."""

    now: Callable[[], float] = time.monotonic
    start: float = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.now()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the clock was made."""
        return self.now() - self.start
