"""Measurement: what a probe saw. Raw step times, memory, phases, warnings."""

import math
from collections.abc import Sequence
from statistics import fmean, median

from pydantic import BaseModel, ConfigDict, Field


class Memory(BaseModel):
    """The peak of a probe in three numbers (DESIGN.md section 6).

    Attributes:
        allocated_bytes: live tensors at the peak, the model and the optimizer state included.
        reserved_bytes: what the caching allocator held in segments; None where there is no such allocator.
        footprint_bytes: what the device or the host lost to this process; None where it cannot be read.
        judged_bytes: the number that is held against the budget.
        judged_by: which reading `judged_bytes` is, in words.
        static_bytes: live tensors between two steps: parameters, buffers, optimizer state.
        allocator_retries: allocations that succeeded only after the cache was flushed.
        swallowed_ooms: out-of-memory events that the user's code caught and hid.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    allocated_bytes: int
    judged_bytes: int
    judged_by: str
    reserved_bytes: int | None = None
    footprint_bytes: int | None = None
    static_bytes: int | None = None
    allocator_retries: int = 0
    swallowed_ooms: int = 0


class Measurement(BaseModel):
    """What a probe saw.

    Attributes:
        step_times_s: raw wall times of whole optimizer steps, device synchronised, in order. Where several steps were
            timed together, in a window, the mean of each window.
        steps_per_window: steps of which each value of `step_times_s` is the mean; 1 where each was timed by itself.
        samples_per_step: samples of one optimizer step.
        tokens_per_step: useful tokens of one optimizer step, padding not counted; None when not known. The mean over
            the steps that were timed, where batches differ in shape.
        cycle: values of `step_times_s` after which the same batches come again, where batches differ in shape; 1 where
            all are alike, or each window has all of them.
        memory: the peak over all steps, the worst batch included.
        warmup_times_s: times of the steps before the measured ones.
        startup_s: seconds that the first steps, on the worst batch and before the measured ones, took beyond as many
            steady ones: compilation, the tuning of kernels, updates that the GradScaler skipped. A process does some of
            this once, for the plan that comes first. None when not known, as in a block of a race.
        worst_steps: how many of the steps ran on the worst batch known.
        loss: loss of the last step.
        skipped_steps: steps whose update the GradScaler skipped; they are not in `step_times_s`.
        phases_s: seconds per step by phase (forward, backward, optimizer).
        fetch_s: median seconds that the user's own loader takes per step; None when not measured.
        warnings: what a person should know about this measurement.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    step_times_s: tuple[float, ...] = Field(min_length=1)
    samples_per_step: int = Field(gt=0)
    memory: Memory
    tokens_per_step: float | None = None
    steps_per_window: int = Field(default=1, ge=1)
    cycle: int = Field(default=1, ge=1)
    warmup_times_s: tuple[float, ...] = ()
    startup_s: float | None = Field(default=None, ge=0)
    worst_steps: int = 0
    loss: float | None = None
    skipped_steps: int = 0
    phases_s: dict[str, float] = {}
    fetch_s: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def step_time_s(self) -> float:
        """Seconds of one optimizer step, see `steady`."""
        return steady(self.step_times_s, self.cycle)

    @property
    def timed_steps(self) -> int:
        """How many steps `step_times_s` is of."""
        return len(self.step_times_s) * self.steps_per_window

    @property
    def of_worst_batch(self) -> bool:
        """Whether the times are those of the steps on the worst batch, because none were timed after them."""
        return not self.warmup_times_s

    @property
    def samples_per_s(self) -> float:
        """Samples per second of steady steps."""
        return self.samples_per_step / self.step_time_s

    @property
    def tokens_per_s(self) -> float | None:
        """Useful tokens per second of steady steps, or None when tokens are not known."""
        return None if self.tokens_per_step is None else self.tokens_per_step / self.step_time_s

    @property
    def spread_ratio(self) -> float:
        """Standard error of the step time over that time: 1.253 s / sqrt(n) (normal samples).

        `s` is 1.4826 times the median absolute deviation, so that one slow step does not count: from the median of all
        steps, or of those on the same batches, which costs a degree of freedom each. 0 where no batches came twice.
        Where windows have several steps, `s` is of their means and `n` is how many windows there are.
        """
        if self.cycle == 1:
            return _standard_error(_from_median(self.step_times_s), len(self.step_times_s))
        again = [times for at in range(self.cycle) if len(times := self.step_times_s[at :: self.cycle]) > 1]
        # Of an odd number one is the median itself, which says nothing of how far steps are from it.
        off = [each for times in again for each in sorted(_from_median(times))[len(times) % 2 :]]
        return _standard_error(off, sum(len(times) - 1 for times in again)) if off else 0.0


def _from_median(times_s: Sequence[float]) -> list[float]:
    """Returns how far each time is from the median, as a share of it."""
    middle = median(times_s)
    return [abs(time_s / middle - 1) for time_s in times_s]


def _standard_error(deviations: Sequence[float], free: int) -> float:
    return 1.253 * 1.4826 * median(deviations) / math.sqrt(free)


def steady(times_s: Sequence[float], cycle: int) -> float:
    """Returns the seconds of a step: the median, so that one slow step does not count.

    Where batches differ, and so the steps do, the median of them is no measure of how long all take: it is that of the
    steps on each batch of the cycle, and then their mean.

    Args:
        times_s: seconds of each step in order, the first on the first batch of the cycle; one at least.
        cycle: steps after which the same batches come again; 1 where all are alike.
    """
    return fmean(median(times_s[at::cycle]) for at in range(min(cycle, len(times_s))))
