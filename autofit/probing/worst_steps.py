"""WorstSteps: what the first steps of a probe, on the worst batch known, have shown."""

import math
from dataclasses import dataclass, field

from autofit.core.measurement import Measurement, Memory
from autofit.probing.meter import beyond


@dataclass(slots=True)
class WorstSteps:
    """What the steps on the worst batch gave.

    Attributes:
        samples: samples of one of these steps.
        wanted: steps that had to be done.
        tokens: useful tokens of one of these steps.
        steps_s: times of those that were.
        skipped: steps whose update the scaler skipped.
        skipped_s: seconds that these took.
        loss: of the last of them.
        ruined: number of the first of them whose loss was not finite, from 1 on; None when there was none.
        memory: the peak over all of them.
    """

    samples: int
    wanted: int
    tokens: float | None = None
    steps_s: list[float] = field(default_factory=list)
    skipped: int = 0
    skipped_s: float = 0.0
    loss: float | None = None
    ruined: int | None = None
    memory: Memory | None = None

    @property
    def is_sound(self) -> bool:
        """Whether nothing was seen that a full probe would object to."""
        memory = self.memory
        tight = memory is not None and (memory.allocator_retries or memory.swallowed_ooms)
        return not tight and (self.loss is None or math.isfinite(self.loss))

    @property
    def startup_s(self) -> float:
        """Seconds these steps took beyond as many of the fastest after the first, and all those of skipped ones."""
        return beyond(self.steps_s, min(self.steps_s[1:] or self.steps_s)) + self.skipped_s

    def metered(self, memory: Memory, held_bytes: int) -> None:
        """Keeps the peak that was metered, with the bytes that are live beside it."""
        more = {
            "allocated_bytes": memory.allocated_bytes + held_bytes,
            "judged_bytes": memory.judged_bytes + held_bytes,
        }
        self.memory = memory.model_copy(update=more)

    def measurement(self, memory: Memory, *warnings: str) -> Measurement:
        """Returns these steps as a measurement: of the worst batch, and slowed by the meter on a host."""
        return Measurement(
            step_times_s=tuple(self.steps_s),
            samples_per_step=self.samples,
            tokens_per_step=self.tokens,
            memory=memory,
            startup_s=self.startup_s,
            worst_steps=self.wanted,
            skipped_steps=self.skipped,
            warnings=warnings,
        )
