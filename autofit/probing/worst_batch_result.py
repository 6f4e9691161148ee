"""WorstBatchResult: results of the first steps of a probe, on the worst batch known."""

import math
from dataclasses import dataclass, field, replace
from typing import Self

from autofit.core.measurement import Measurement, Memory
from autofit.probing.step_timing import Lap, beyond
from autofit.probing.timing_window import WindowResult


@dataclass(slots=True)
class WorstBatchResult:
    """Results of the steps on the worst batch.

    Attributes:
        samples: samples per step.
        wanted: number of steps to run.
        tokens: useful tokens per step.
        steps_s: durations of the steps that updated the weights.
        skipped: number of steps whose update the scaler skipped.
        skipped_s: duration of the skipped steps.
        loss: loss of the last step.
        ruined: number of the first step whose loss was not finite, counted from 1; None if there was none.
        memory: peak over all steps.
        growth_bytes: live memory that each step left behind, see `autofit.probing.leaks.growth`.
        cut_off: whether the time ended before all of them ran.
        compile_s: duration of the steps before them that compiled, in seconds; None if the plan does not compile.
        before_s: warm-up cost of other steps that ran before, which is then the whole.
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
    growth_bytes: int = 0
    cut_off: bool = False
    compile_s: float | None = None
    before_s: float = 0.0

    def add(self, ran: WindowResult) -> None:
        """Adds one step."""
        self.loss = ran.loss
        if ran.ruined and self.ruined is None:
            self.ruined = len(self.steps_s) + self.skipped + 1
        if ran.updated:
            self.steps_s.append(ran.seconds)
        else:
            self.skipped += 1
            self.skipped_s += ran.seconds

    @property
    def is_sound(self) -> bool:
        """Whether a full probe would find no fault: memory is not tight, and the loss is finite."""
        memory = self.memory
        tight = memory is not None and (memory.allocator_retries or memory.swallowed_ooms)
        return not tight and (self.loss is None or math.isfinite(self.loss))

    @property
    def lap(self) -> Lap:
        """These steps as timed ones, where no others are."""
        return Lap(steps_s=self.steps_s, loss=self.loss, ruined=self.ruined)

    @property
    def timed(self) -> Lap:
        """These steps as timed ones, the first of them as their warm-up."""
        return Lap(
            warmup_s=self.steps_s[:1], steps_s=self.steps_s[1:] or self.steps_s, loss=self.loss, ruined=self.ruined
        )

    def joined(self, before: Self) -> Self:
        """Returns these steps with the peak and the warm-up of others that ran before on the same batch."""
        assert self.memory is not None, "the meter has filled its reading"
        assert before.memory is not None, "the meter has filled its reading"
        memory = max(self.memory, before.memory, key=lambda reading: reading.judged_bytes)
        return replace(self, memory=memory, before_s=before.startup_s)

    @property
    def startup_s(self) -> float:
        """Seconds beyond the same number of steps at the speed of the fastest after the first, plus skipped steps.

        The steps that compiled count too, less one such step.
        """
        fastest_s = min(self.steps_s[1:] or self.steps_s)
        compiling_s = max((self.compile_s or 0.0) - fastest_s, 0.0)
        return self.before_s or beyond(self.steps_s, fastest_s) + self.skipped_s + compiling_s

    def metered(self, memory: Memory, held_bytes: int) -> None:
        """Stores the metered peak, plus `held_bytes` that are live in addition."""
        more = {
            "allocated_bytes": memory.allocated_bytes + held_bytes,
            "judged_bytes": memory.judged_bytes + held_bytes,
        }
        self.memory = memory.model_copy(update=more)

    def measurement(self, memory: Memory, *warnings: str) -> Measurement:
        """Returns these steps as a measurement. It is of the worst batch, and on a host the meter slows it down."""
        return Measurement(
            step_times_s=tuple(self.steps_s),
            samples_per_step=self.samples,
            tokens_per_step=self.tokens,
            memory=memory,
            startup_s=self.startup_s,
            compile_s=self.compile_s,
            worst_steps=len(self.steps_s),
            growth_bytes=self.growth_bytes,
            skipped_steps=self.skipped,
            warnings=warnings,
        )
