"""Phases: the current phase of a child that opens its target, since when, and how long each phase took."""

import math
from collections.abc import Callable

from autofit.core.budget import Clock
from autofit.core.units import format_duration

STARTING = "starting its process"
SUFFICES_RATIO, ROUNDED_S = 2.0, 10
"""Time that probably suffices for an opening, relative to the time after which it was cut off, rounded up to a multiple
of `ROUNDED_S` seconds: the phase that was cut off may have been near its end, and a probe must follow."""


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

    def cut_off(self) -> str:
        """Returns the seconds of each phase of an opening that was cut off, and the time that would suffice."""
        took = [f"{phase!r} took {format_duration(spent_s)}" for phase, spent_s in self.spent_s.items()]
        running = f"{self.current!r} had been running for {format_duration(self.since_s)}"
        wanted_s = math.ceil(SUFFICES_RATIO * self._clock.elapsed_s / ROUNDED_S) * ROUNDED_S
        advice = f"Give about {format_duration(wanted_s)}, or look for what hangs in this phase"
        return f"{', '.join([*took, running])}. {advice}"
