"""How fast a training is under its plan, against what the plan promised, and where the rest of the time goes."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from autofit.core.recommendation import Recommendation
from autofit.core.units import format_duration, short_number
from autofit.integrations.work_clock import WorkClock

WARM_UP_STEPS = 5
"""Optimizer steps that are not counted: the first ones allocate memory and start the loader's workers."""
LEAST_STEPS = 20
"""With fewer counted steps, nothing is said of a shortfall."""
TOLERANCE = 0.05
"""Smallest shortfall that is reported."""


def promised_per_s(found: Recommendation) -> float:
    """Returns the throughput that was shown for a plan, in samples per second, without waiting for the loader."""
    by_race = found.rate_per_s if found.objective.unit == "samples" else None
    return by_race or found.proof.samples_per_s


def overhead_text(overhead_s: float | None) -> str:
    """Returns a sentence, to add to another, on the time of each step that the trainer and its loader cost."""
    if overhead_s is None:
        return ""
    return f". Of each step, {format_duration(overhead_s)} are overhead of the trainer, batches included"


@dataclass(slots=True)
class ReachedThroughput:
    """Times the parts of a training, and the time between them, on one device.

    A trainer calls `begin` and `end` around each part: an optimizer step, or a micro batch, with the update in the last
    one of a step. `pause` drops the time until the next `begin`, as for a validation. An optimizer step takes its parts
    and, as often, the mean time between two of them. On an accelerator, work that is still queued when `end` is called
    counts as time between.

    Attributes:
        recommendation: the plan, which promises a throughput.
        samples_per_step: samples of an optimizer step on this device.
        parts_per_step: parts of an optimizer step.
        warm_up_steps: optimizer steps at the beginning that are not counted.
        clock: seconds, monotonic.
        work: time in forward passes, backward passes and updates, which the trainer notes.
        parts: parts so far, warm-up included.
    """

    recommendation: Recommendation
    samples_per_step: int
    parts_per_step: int = 1
    warm_up_steps: int = WARM_UP_STEPS
    clock: Callable[[], float] = time.perf_counter
    work: WorkClock = field(default_factory=WorkClock)
    parts: int = 0
    _work_s: float = 0.0
    _inside_s: float = 0.0
    _between_s: float = 0.0
    _gaps: int = 0
    _ended_s: float | None = None
    _began_s: float = 0.0

    def begin(self) -> None:
        """Is called before a part."""
        self._began_s = self.clock()
        if self._ended_s is not None and self._warm:
            self._between_s += self._began_s - self._ended_s
            self._gaps += 1

    def end(self) -> None:
        """Is called after a part."""
        self._ended_s, work_s = self.clock(), self.work.taken()
        if self._warm:
            self._inside_s += self._ended_s - self._began_s
            self._work_s += work_s
        self.parts += 1

    def pause(self) -> None:
        """Is called before what is not training, such as a validation."""
        self._ended_s = None

    @property
    def steps(self) -> float:
        """Optimizer steps that were counted."""
        return max(0.0, self.parts / self.parts_per_step - self.warm_up_steps)

    @property
    def promised_per_s(self) -> float:
        """Samples per second of the plan when it was measured, without waiting for the loader."""
        return promised_per_s(self.recommendation)

    @property
    def inside_s(self) -> float:
        """Seconds inside the parts of an optimizer step; 0 before one was counted."""
        return self._inside_s / self.steps if self.steps else 0.0

    @property
    def between_s(self) -> float:
        """Seconds between the parts of an optimizer step, and before the first of them."""
        return self._between_s / self._gaps * self.parts_per_step if self._gaps else 0.0

    @property
    def samples_per_s(self) -> float | None:
        """Samples per second of the training; None before a step was counted."""
        return self.samples_per_step / (self.inside_s + self.between_s) if self.inside_s > 0 else None

    @property
    def overhead_s(self) -> float | None:
        """Seconds of each step that the trainer and its loader cost: outside forward pass, backward pass and update.

        None before a step was counted, or on an accelerator, where work is queued.
        """
        if self.samples_per_s is None or not self._work_s or not self.recommendation.environment.is_host:
            return None
        return self.inside_s + self.between_s - self._work_s / self.steps

    def shortfall(self) -> str:
        """Returns by how much and why the training is slower than the plan promised; "" if it is not, or too short."""
        reached, promised = self.samples_per_s, self.promised_per_s
        if self.steps < LEAST_STEPS or reached is None or reached >= promised * (1 - TOLERANCE):
            return ""
        return (
            f"the training reached {short_number(reached)} samples/s, and the plan promised {short_number(promised)}. "
            f"An optimizer step took {format_duration(self.inside_s)} instead of "
            f"{format_duration(self.samples_per_step / promised)}; {format_duration(self.between_s)} were spent "
            f"between its micro batches, on the loader, callbacks and logging{overhead_text(self.overhead_s)}"
        )

    @property
    def _warm(self) -> bool:
        return self.parts >= self.warm_up_steps * self.parts_per_step
