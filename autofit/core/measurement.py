"""Measurement: step times, memory, phases and warnings of a probe."""

import math
from collections.abc import Sequence
from statistics import fmean, median

from pydantic import Field

from autofit.core.loading import Loading
from autofit.core.strict import Positive, Strict


class Memory(Strict):
    """The memory peak of a probe.

    Attributes:
        allocated_bytes: live tensors at the peak, including the model and the optimizer state.
        reserved_bytes: segments held by the caching allocator at the peak; None without such an allocator.
        footprint_bytes: memory that the device or the host lost to this process; None if it cannot be read.
        judged_bytes: the reading that is compared with the budget.
        judged_by: name of the reading in `judged_bytes`.
        static_bytes: live tensors between two steps: parameters, buffers, optimizer state.
        allocator_retries: allocations that succeeded only after the cache was flushed.
        swallowed_ooms: out-of-memory errors that the user's code caught and hid.
    """

    allocated_bytes: int
    judged_bytes: int = Field(ge=0)
    judged_by: str
    reserved_bytes: int | None = None
    footprint_bytes: int | None = None
    static_bytes: int | None = None
    allocator_retries: int = 0
    swallowed_ooms: int = 0


class Measurement(Strict):
    """The speed and memory that a probe measured.

    Attributes:
        step_times_s: raw wall times of whole optimizer steps, with the device synchronised, in order. If several steps
            were timed together in a window, the mean of each window.
        steps_per_window: number of steps that each value of `step_times_s` is the mean of; 1 if each was timed alone.
        samples_per_step: samples in one optimizer step.
        tokens_per_step: useful tokens in one optimizer step, without padding, on average; None if unknown.
        cycle: number of values of `step_times_s` after which the batches repeat; 1 if all batches have one shape, or if
            each window has all of them.
        memory: the peak over all steps, including those on the worst batch.
        warmup_times_s: times of the steps before the measured ones.
        startup_s: warm-up cost in seconds: how much longer the first steps took than as many steady steps (compilation,
            kernel tuning, skipped updates). Some of it is once per process. None if unknown, as in a block of a race.
        compile_s: seconds of the first steps, which compile; None if the plan compiles nothing, and in a race.
        worst_steps: number of steps that ran on the worst known batch.
        proven: whether at least three of these were whole steps on the worst batch, inside the budget, without clearing
            the cache.
        loss: loss of the last step.
        growth_bytes: bytes of live memory that each whole step on the worst batch left behind; 0 if one left nothing.
        without_gradient: which trained parameters had no gradient in any step that was looked at; "" if all had one.
        straggler: which of several ranks takes longer than the others for the same work; "" if none does.
        exchange_s: seconds of a step beyond one of the slowest of several ranks alone: communication. None if unknown.
        skipped_steps: number of steps whose update the GradScaler skipped; they are not in `step_times_s`.
        phases_s: seconds per step by phase (forward, backward, optimizer).
        new_shape_s: seconds per step that kernels for new shapes take, in addition to `step_times_s`.
        fetch_s: median time per step of the user's loader, in seconds; None if not measured.
        loading: the loader's settings for this plan, of a proof; None if the loader keeps up as it is, or is unknown.
        warnings: notes about this measurement.
        last_batch: why the incomplete last batch of an epoch is not proven; "" if it ran, or if there is none.
        compiler_notes: what torch.compile reported of this plan's code: graph breaks and recompilations, with causes.
    """

    step_times_s: tuple[Positive, ...] = Field(min_length=1)
    samples_per_step: int = Field(gt=0)
    memory: Memory
    tokens_per_step: float | None = None
    steps_per_window: int = Field(default=1, ge=1)
    cycle: int = Field(default=1, ge=1)
    warmup_times_s: tuple[float, ...] = ()
    startup_s: float | None = Field(default=None, ge=0)
    compile_s: float | None = Field(default=None, ge=0)
    worst_steps: int = 0
    proven: bool = False
    loss: float | None = None
    growth_bytes: int = Field(default=0, ge=0)
    without_gradient: str = ""
    straggler: str = ""
    exchange_s: float | None = Field(default=None, ge=0)
    skipped_steps: int = 0
    phases_s: dict[str, float] = {}
    new_shape_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    fetch_s: float | None = None
    loading: Loading | None = None
    warnings: tuple[str, ...] = ()
    last_batch: str = ""
    compiler_notes: tuple[str, ...] = ()

    @property
    def step_time_s(self) -> float:
        """Duration of one steady optimizer step in seconds (`steady`), kernels for new shapes included."""
        return steady(self.step_times_s, self.cycle) + self.new_shape_s

    @property
    def timed_steps(self) -> int:
        """The number of steps behind `step_times_s`."""
        return len(self.step_times_s) * self.steps_per_window

    @property
    def all_steps(self) -> int:
        """The number of steps that ran: warm-up, timed, and on the worst batch."""
        apart = 0 if self.of_worst_batch else len(self.warmup_times_s) + self.timed_steps
        return max(self.worst_steps + apart, self.timed_steps)

    @property
    def of_worst_batch(self) -> bool:
        """Whether only steps on the worst batch were timed."""
        return not self.warmup_times_s

    @property
    def samples_per_s(self) -> float:
        """Samples per second of steady steps."""
        return self.samples_per_step / self.step_time_s

    @property
    def tokens_per_s(self) -> float | None:
        """Useful tokens per second of steady steps; None if the number of tokens is unknown."""
        return None if self.tokens_per_step is None else self.tokens_per_step / self.step_time_s

    @property
    def spread_ratio(self) -> float:
        """Relative standard error of the step time: 1.253 s / sqrt(n), as for normal samples.

        `s` is 1.4826 times the median absolute deviation, which is robust against a single slow step. Deviations are
        from the median of all steps, or, if batches differ, from the median of the steps on the same batch, at the cost
        of one degree of freedom each. 0 if no batch was repeated. If windows have several steps, `s` is that of their
        means and `n` the number of windows.
        """
        if self.cycle == 1:
            return _standard_error(_from_median(self.step_times_s), len(self.step_times_s))
        repeats = [times for at in range(self.cycle) if len(times := self.step_times_s[at :: self.cycle]) > 1]
        # For an odd number of times, one is the median itself, whose deviation of 0 carries no information.
        deviations = [each for times in repeats for each in sorted(_from_median(times))[len(times) % 2 :]]
        return _standard_error(deviations, sum(len(times) - 1 for times in repeats)) if deviations else 0.0


def _from_median(times_s: Sequence[float]) -> list[float]:
    """Returns the distance of each time from the median, as a share of the median."""
    middle = median(times_s)
    return [abs(time_s / middle - 1) for time_s in times_s]


def _standard_error(deviations: Sequence[float], degrees_of_freedom: int) -> float:
    return 1.253 * 1.4826 * median(deviations) / math.sqrt(degrees_of_freedom)


def steady(times_s: Sequence[float], cycle: int) -> float:
    """Returns the duration of a steady step in seconds: the median, which is robust against a single slow step.

    If batches differ, their steps take different times. The result is then the mean, over the batches of the cycle, of
    the median over the steps on that batch.

    Args:
        times_s: duration of each step in seconds, in order, starting with the first batch of the cycle; not empty.
        cycle: number of steps after which the batches repeat; 1 if all batches have one shape.
    """
    return fmean(median(times_s[at::cycle]) for at in range(min(cycle, len(times_s))))
