"""The outcome of a plan whose steps all ran, from their times, losses and the allocator's counters."""

import gc
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Self

from autofit.core.errors import ClockError
from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.units import format_bytes, format_duration
from autofit.devices.base import Counters
from autofit.probing.timing import MOST_KEPT_BYTES, Lap, WindowResult, beyond
from autofit.workloads.batch_store import Typical

LIMITED = Memory(allocated_bytes=0, judged_bytes=0, judged_by="the limit on this process, which held")
NOT_READ = Memory(allocated_bytes=0, judged_bytes=0, judged_by="not read in a race")


def growth(live: Sequence[int | None], now: Callable[[], int | None]) -> int:
    """Returns the bytes that each step left behind; 0 if one of them left less than `MOST_KEPT_BYTES`.

    The first step is not judged, because it makes the optimizer's state. A cache that is filled once does not grow in
    each of the others. At least three steps are needed. The guard puts lists back, so `LeakWatch` sees nothing in them.
    `now` reads the live bytes again, once garbage is collected: reference cycles are not leaks.
    """
    known = [each for each in live if each is not None]
    least = min((after - before for before, after in pairwise(known)), default=0)
    if len(known) < 3 or least < MOST_KEPT_BYTES:
        return 0
    gc.collect()
    left = min(least, ((now() or 0) - known[0]) // (len(known) - 1))
    return left if left >= MOST_KEPT_BYTES else 0


@dataclass(slots=True, kw_only=True)
class WorstBatchResult(Lap):
    """Results of the steps on the worst batch. `steps_s` has those that updated the weights.

    Attributes:
        samples: samples per step.
        wanted: number of steps to run.
        tokens: useful tokens per step.
        memory: peak over all steps.
        growth_bytes: live memory that each step left behind, see `growth`.
        cut_off: whether the time ended before all of them ran.
        compile_s: duration of the steps before them that compiled, in seconds; None if the plan does not compile.
        before_s: warm-up cost of other steps that ran before, which is then the whole.
    """

    samples: int
    wanted: int
    tokens: float | None = None
    memory: Memory = NOT_READ
    growth_bytes: int = 0
    cut_off: bool = False
    compile_s: float | None = None
    before_s: float = 0.0

    def add(self, ran: WindowResult) -> None:
        """Adds one step."""
        self.note(ran)
        if ran.updated:
            self.steps_s.append(ran.seconds)

    @property
    def is_sound(self) -> bool:
        """Whether a full probe would find no fault: memory is not tight, and the loss is finite."""
        tight = self.memory.allocator_retries or self.memory.swallowed_ooms
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

    def measurement(self, *warnings: str) -> Measurement:
        """Returns these steps as a measurement. It is of the worst batch, and on a host the meter slows it down."""
        return Measurement(
            step_times_s=_positive(self.steps_s),
            samples_per_step=self.samples,
            tokens_per_step=self.tokens,
            memory=self.memory,
            startup_s=self.startup_s,
            compile_s=self.compile_s,
            worst_steps=len(self.steps_s),
            growth_bytes=self.growth_bytes,
            skipped_steps=self.skipped,
            warnings=warnings,
        )


def judged(plan: Plan, lap: Lap, worst: WorstBatchResult | None, typical: Typical, events: Counters) -> Outcome:
    """Returns the outcome of a plan whose steps all ran: those of `lap` on `typical` batches, with `events` in the run.

    `worst` are the steps on the worst batch before them; None in a race, which has none.

    Raises:
        ClockError: the clock stood still or returned a value that is not finite.
    """
    if not lap.steps_s:
        return overflows(lap.skipped)
    before_s = [] if worst is None else worst.steps_s
    if not all(map(math.isfinite, (*before_s, *lap.warmup_s, *lap.steps_s))) or median(lap.steps_s) <= 0:
        took = ", ".join(f"{seconds:g}" for seconds in (*before_s, *lap.warmup_s, *lap.steps_s))
        raise ClockError(
            f"the clock is broken: steps took {took} s; expected more than 0. "
            "time.perf_counter is faulty or was replaced (by a mock or freezegun): tune without the replacement."
        )
    worst = worst or WorstBatchResult(samples=0, wanted=0)
    if lap.loss is not None and not math.isfinite(lap.loss):
        first, where = worst.ruined or worst.wanted + (lap.ruined or 1), ", on the worst batch" if worst.ruined else ""
        return Outcome(status=Status.NUMERIC, reason=f"the loss is {lap.loss}, from step {first} on{where}")
    measurement = _measurement(plan, lap, worst, typical, events)
    if events.retries or events.ooms:
        return Outcome(
            status=Status.OVER_BUDGET,
            reason=f"it ran, with {events.retries} allocator retries and {events.ooms} "
            "out-of-memory events hidden by the model: memory is too tight for full speed",
            measurement=measurement,
        )
    return Outcome(status=Status.MEASURED, measurement=measurement)


def _positive(times_s: Sequence[float]) -> tuple[float, ...]:
    """Returns the times without those in which the clock went back."""
    return tuple(each for each in times_s if each > 0)


def _measurement(plan: Plan, lap: Lap, worst: WorstBatchResult, typical: Typical, events: Counters) -> Measurement:
    warnings = [] if lap.settled else ["step times had not settled after the warm-up"]
    if lap.skipped:
        warnings.append(f"the gradient scaler skipped {lap.skipped} steps")
    if lap.new_shape_s:
        warnings.append(f"preparing kernels for new shapes takes {format_duration(lap.new_shape_s)} of each step")
    return Measurement(
        step_times_s=_positive(lap.steps_s),
        samples_per_step=plan.global_batch_size,
        steps_per_window=lap.steps_per_window,
        tokens_per_step=typical.tokens_per_step(lap.timed_steps),
        cycle=lap.cycle,
        memory=worst.memory.model_copy(update={"allocator_retries": events.retries, "swallowed_ooms": events.ooms}),
        warmup_times_s=tuple(lap.warmup_s),
        startup_s=worst.startup_s + lap.startup_s if worst.steps_s else None,
        compile_s=worst.compile_s,
        worst_steps=len(worst.steps_s),
        loss=lap.loss,
        growth_bytes=worst.growth_bytes,
        skipped_steps=lap.skipped,
        new_shape_s=lap.new_shape_s,
        fetch_s=plan.accumulation_steps * typical.fetch_s,
        warnings=tuple(warnings),
    )


def objection(worst: WorstBatchResult, budget_bytes: int) -> Outcome | None:
    """Returns why a plan is not timed after its steps on the worst batch (no update, peak over the budget), or None."""
    if len(worst.steps_s) < worst.wanted and not worst.cut_off:
        return overflows(worst.skipped)
    if worst.memory.judged_bytes <= budget_bytes:
        return None
    reason = f"its peak {format_bytes(worst.memory.judged_bytes)} is above the budget {format_bytes(budget_bytes)}"
    return Outcome(status=Status.OVER_BUDGET, reason=reason, measurement=worst.measurement())


def untimed(worst: WorstBatchResult, why: str) -> Outcome:
    """Returns the outcome of a plan that fits and of which only the steps on the worst batch ran."""
    return Outcome(status=Status.MEASURED, measurement=worst.measurement(why))


def overflows(skipped: int) -> Outcome:
    """Returns the outcome of a plan whose gradient scaler found no scale with finite gradients."""
    return Outcome(
        status=Status.NUMERIC,
        reason=f"the gradient scaler skipped {skipped} steps and found no usable scale: gradients overflow in fp16",
    )
