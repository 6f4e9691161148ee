"""Phases: the current phase of a child that opens its target, since when, and how long each phase took."""

from collections.abc import Callable

from autofit.core.budget import Clock

STARTING = "starting its process"


class Phases:
    """Follows the phases that a child reports while it opens its target.

    Args:
        clock: the time of the search.
        report: called with each phase as the child reports it.

    Attributes:
        current: the current phase.
        spent_s: seconds that each finished phase took.
    """

    def __init__(self, clock: Clock, report: Callable[[str], None]) -> None:
        self._clock, self._report, self._began_s = clock, report, clock.elapsed_s
        self.current = STARTING
        self.spent_s: dict[str, float] = {}

    @property
    def since_s(self) -> float:
        """Seconds since the current phase began."""
        return self._clock.elapsed_s - self._began_s

    def enter(self, phase: str) -> None:
        """Begins a phase. If it is already the current phase, only reports it again, as a sign of life."""
        if phase != self.current:
            self.spent_s[self.current] = self.spent_s.get(self.current, 0.0) + self.since_s
            self.current, self._began_s = phase, self._clock.elapsed_s
        self._report(phase)
