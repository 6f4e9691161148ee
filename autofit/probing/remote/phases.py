"""Phases: what a child that opens its target is doing, since when, and how long each phase took."""

from collections.abc import Callable

from autofit.core.budget import Clock

STARTING = "starting its process"


class Phases:
    """Follows the phases that a child reports while it opens its target.

    Args:
        clock: the time of the search.
        tell: called with each phase as it is reported.

    Attributes:
        current: the phase that goes on.
        spent_s: seconds that each phase took which has ended.
    """

    def __init__(self, clock: Clock, tell: Callable[[str], None]) -> None:
        self._clock, self._tell, self._began_s = clock, tell, clock.elapsed_s
        self.current = STARTING
        self.spent_s: dict[str, float] = {}

    @property
    def since_s(self) -> float:
        """For how many seconds the current phase has gone on."""
        return self._clock.elapsed_s - self._began_s

    def enter(self, phase: str) -> None:
        """Begins a phase; one that goes on already is only told again, as a sign of life."""
        if phase != self.current:
            self.spent_s[self.current] = self.spent_s.get(self.current, 0.0) + self.since_s
            self.current, self._began_s = phase, self._clock.elapsed_s
        self._tell(phase)
