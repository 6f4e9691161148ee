"""How fast a training is under its plan, against what the plan promised, and where the rest of the time goes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from autofit.core.recommendation import Recommendation
from autofit.core.units import format_duration, short_number
from autofit.fit import Fit

_WARM_UP_STEPS = 5
"""Optimizer steps that are not counted: the first ones allocate memory and start the loader's workers."""
LEAST_STEPS = 20
"""With fewer counted steps, nothing is said."""
TOLERANCE = 0.05
"""Smallest shortfall that is reported."""


def promised_per_s(found: Recommendation) -> float:
    """Returns the throughput that was shown for a plan, in samples per second, without waiting for the loader."""
    by_race = found.rate_per_s if found.objective.unit == "samples" else None
    return by_race or found.proof.samples_per_s


@dataclass(slots=True)
class ReachedThroughput:
    """Counts the micro batches of a training, and the time in them and between them.

    A trainer calls `begin` and `end` around each micro batch: the forward and backward pass, and the update after the
    last of a step. `pause` drops the time until the next `begin`, as for a validation. On an accelerator, work that is
    still queued when `end` is called counts as time between.

    Attributes:
        fit: the plan, which promises a throughput.
        clock: seconds, monotonic.
    """

    fit: Fit
    clock: Callable[[], float] = time.perf_counter
    _batches: int = 0
    _inside_s: float = 0.0
    _between_s: float = 0.0
    _since: float | None = field(default=None)
    _began: float = 0.0

    def begin(self) -> None:
        """Is called before a micro batch."""
        self._began = self.clock()
        if self._since is not None and self._warm:
            self._between_s += self._began - self._since

    def end(self) -> None:
        """Is called after a micro batch."""
        self._since = self.clock()
        if self._warm:
            self._inside_s += self._since - self._began
        self._batches += 1

    def pause(self) -> None:
        """Is called before what is not training, such as a validation."""
        self._since = None

    @property
    def promised_per_s(self) -> float:
        """Samples per second of the plan when it was measured, without waiting for the loader."""
        return promised_per_s(self.fit.recommendation)

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second of the training; None if it had too few steps."""
        spent_s = self._inside_s + self._between_s
        return self._samples / spent_s if self._steps >= LEAST_STEPS and spent_s > 0 else None

    def shortfall(self) -> str:
        """Returns by how much and why the training is slower than the plan promised; "" if it is not, or too short."""
        reached = self.samples_per_s
        if reached is None or reached >= self.promised_per_s * (1 - TOLERANCE):
            return ""
        size, steps = self.fit.plan.global_batch_size, self._steps
        inside_s, between_s, promised_s = self._inside_s / steps, self._between_s / steps, size / self.promised_per_s
        return (
            f"the training reached {short_number(reached)} samples/s, and the plan promised "
            f"{short_number(self.promised_per_s)}. An optimizer step took {format_duration(inside_s)} instead of "
            f"{format_duration(promised_s)}; {format_duration(between_s)} were spent between its micro batches, on the "
            "loader, callbacks and logging"
        )

    @property
    def _warm(self) -> bool:
        return self._batches >= _WARM_UP_STEPS * self.fit.plan.accumulation_steps

    @property
    def _steps(self) -> float:
        return max(0.0, self._batches / self.fit.plan.accumulation_steps - _WARM_UP_STEPS)

    @property
    def _samples(self) -> float:
        return self._steps * self.fit.plan.global_batch_size
