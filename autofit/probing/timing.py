"""Timing: times whole optimizer steps in windows, after a warm-up: steps that run one by one until their times settle.

Window: optimizer steps that are timed together, without reading from the device in between. A step that is timed alone
begins on an idle device, so its time includes launch latency that training, which queues one step after the other,
hides behind the previous step. Therefore, on a device that queues its work (`Device.queues_work`), several short steps
are timed together, and values that require waiting (the loss, the scale of the gradient scaler) are read at the edges.

New shapes: how much longer a micro batch takes whose shape the process has not seen before. Libraries prepare kernels
for each shape. A probe repeats a few batches, which hides that cost; a training whose batches nearly all differ in
shape pays it at each of them. On a graph network, bf16 ran at 1.25x the speed of float32 over repeated batches on a
CPU, and at 0.86x in training.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice, pairwise
from statistics import median
from time import perf_counter

import torch

from autofit.core.measurement import steady
from autofit.core.trial import Purpose
from autofit.devices.base import Device, nothing
from autofit.workloads.step import StepBatch, TrainStep
from autofit.workloads.tree import Batch

WINDOW_S = 0.1
"""Minimum duration of a window; a longer step is a window by itself. The device is idle at the edges of a window until
the first kernels are queued. This is assumed to take less than 1 ms, which is 1 % of a window, half of the tie margin.
pyperf repeats what it times until it takes this long too (reference/reliability.md 9.4)."""
MOST_STEPS = 100
"""Maximum number of steps in a window. The edges cost at most the launch time of one step, which is no longer than the
step itself: 1 % of a window with this many steps."""
LEAST_WINDOWS = 3
"""Minimum number of timed windows if they have several steps. The median then ignores a disturbed one, and the spread
shows the noise."""

MOST_KEPT_BYTES = 2**16
"""Memory that a step may leave on the device in a window of several steps. Steps that leave more are timed one by one,
because a hundred of them might not fit."""


@dataclass(frozen=True, slots=True)
class WindowResult:
    """Result of a window.

    Attributes:
        steps: number of steps.
        seconds: wall time of all steps, with the device synchronised at both edges.
        skipped: number of updates that the gradient scaler skipped. In a window of several steps it is derived from the
            fall of the scale. A skip right after the scale grew (every 2000 steps by torch's default) is not noticed.
        loss: mean loss of the last step; None in inference.
    """

    steps: int
    seconds: float
    skipped: int
    loss: float | None

    @property
    def updated(self) -> bool:
        """Whether each step updated the weights."""
        return not self.skipped

    @property
    def ruined(self) -> bool:
        """Whether the loss is not finite."""
        return self.loss is not None and not math.isfinite(self.loss)


def steps_per_window(device: Device, step_s: float, cycle: int = 1) -> int:
    """Returns how many steps of `step_s` seconds are timed together: one step, or whole cycles of batches."""
    if not device.queues_work or not 0 < step_s < WINDOW_S:
        return 1
    return cycle * math.ceil(min(WINDOW_S / (cycle * step_s), MOST_STEPS // cycle))


def watch_allocator(device: Device) -> Callable[[], bool]:
    """Returns a function that says whether the steps since this call may be repeated many times in a window.

    They may not if they leave memory behind (more than `MOST_KEPT_BYTES`), or if the allocator flushed its cache or hid
    an out-of-memory error: each further step would be as slow. Reading the allocator does not wait for the device.
    """
    live, counters = device.live_bytes() or 0, device.counters()
    return lambda: (device.live_bytes() or 0) - live <= MOST_KEPT_BYTES and device.counters() == counters


def run_window(step: TrainStep, batch_of: Callable[[int], StepBatch], steps: int, device: Device) -> WindowResult:
    """Runs `steps` steps, one after the other, and times all of them together, synchronised at both edges only.

    `batch_of` returns the micro batches of a step by its number in the window, from 0. The first is made before the
    clock starts, the others while the device works. A step whose update the scaler skips, since it finds an infinity,
    is faster and needs less memory than a real one.
    """
    scaler = step.draft.scaler
    scale = None if scaler is None else scaler.get_scale()
    trains = step.draft.optimizer is not None
    first = [batch_of(0)]

    def loss_of(batch: StepBatch) -> torch.Tensor | None:
        result = step(batch)
        return result if trains else None  # an output may be large: free it before the next step begins

    def run() -> torch.Tensor | None:
        # A plain loop, since `map` would take a StopIteration of the user's code for the end of the window.
        last = None
        for number in range(steps):
            last = loss_of(batch_of(number) if number else first.pop())  # nothing else holds an output or a batch
        return last

    loss, seconds = device.timed(run)
    skipped = 0 if scaler is None or scale is None else _skipped(scaler, scale, steps)
    return WindowResult(steps, seconds, skipped, None if loss is None else float(loss))


def run_step(step: TrainStep, batch: StepBatch, device: Device) -> WindowResult:
    """Runs one step and times it."""
    return run_window(step, lambda number: batch, 1, device)


def _skipped(scaler: torch.amp.GradScaler, before: float, steps: int) -> int:
    """Returns how many of `steps` updates were skipped, derived from the scale before and after them."""
    now = scaler.get_scale()
    if now >= before:
        return 0
    fallen = math.log(now / before, scaler.get_backoff_factor()) if now > 0 else steps
    return min(max(round(fallen), 1), steps)


LEAST_PAIRS, MOST_PAIRS = 3, 8
"""Minimum and maximum number of fresh micro batches that run."""
SECONDS = 1.0
"""No further micro batch runs after this time, once the minimum has run."""
LEAST_RATIO = 0.05
"""Smallest extra time that counts, as a share of the second run. The median of 8 differences of runs that vary by 3 %
each has a standard error of 2 %, which would otherwise be charged to plans without any extra time."""


def new_shape_s(run: Callable[[Batch], WindowResult], fresh: Iterator[Batch]) -> float:
    """Returns how many seconds longer a micro batch takes the first time than the second time; 0 if that is noise.

    Each micro batch of a new shape runs twice in a row, so that neither its size nor the drift of the machine counts.
    """
    extra_s, again_s, began = list[float](), list[float](), perf_counter()
    for batch in islice(fresh, MOST_PAIRS):
        first, second = run(batch), run(batch)
        if first.updated and second.updated:
            extra_s.append(first.seconds - second.seconds)
            again_s.append(second.seconds)
        if len(extra_s) >= LEAST_PAIRS and perf_counter() - began > SECONDS:
            break
    if len(extra_s) < LEAST_PAIRS or median(extra_s) < LEAST_RATIO * median(again_s):
        return 0.0
    return median(extra_s)


_PHASE_STEPS = 3
SETTLED_RATIO = 0.10
"""Relative difference of two steps in a row at which warm-up ends (reference/reliability.md 9.5). If batches differ in
shape, steps cannot be compared, and warm-up ends when each batch has run once."""
MOST_SKIPPED = 20
"""Number of skipped steps after which a plan is given up. A gradient scaler that starts at 2**16 and halves its scale
at each overflow is below 1 after 17 steps. If it still skips, the scale is not the problem."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Duration of warm-up and measurement. Steps whose update the scaler skipped do not count.

    Attributes:
        warmup_most: maximum number of warm-up steps. A warning is given if times have not settled by then.
        steps_least: minimum number of measured steps.
        steps_most: maximum number of measured steps. A cycle or a window that has begun is completed.
        seconds: measuring stops after this time, once `steps_least` steps are done.
        patience_s: limit for the warm-up and for the measurement, even if `steps_least` is not reached. At least one
            step, one cycle or one window is always measured.
    """

    warmup_most: int
    steps_least: int
    steps_most: int
    seconds: float
    patience_s: float = math.inf


PACES = {
    Purpose.PROBE: Pace(warmup_most=4, steps_least=3, steps_most=8, seconds=0.5, patience_s=3.0),
    Purpose.BLOCK: Pace(warmup_most=1, steps_least=4, steps_most=4, seconds=0.0, patience_s=10.0),
    Purpose.PROOF: Pace(warmup_most=4, steps_least=3, steps_most=5, seconds=0.1),
}
"""A proof times few steps: the speed of its plan is measured by a race, or by the blocks of a night. The speed of the
proof is only checked against that, within a factor (`autofit.search.common_scale.SPEED_RATIO`)."""
PATIENCE_SHARE = 0.25
"""Maximum share of the remaining time for the warm-up of a proof, and for its timing; at least one step each."""
SLOW_PACE = Pace(warmup_most=1, steps_least=1, steps_most=2, seconds=0.0, patience_s=3.0)
"""Pace of a probe with slow steps (`SLOW_S`), for which those on the worst batch are a warm-up too: one step of
warm-up, and two that are timed unless they take longer than 3 s."""


@dataclass(slots=True)
class Lap:
    """Results of timing.

    Attributes:
        warmup_s: durations of the warm-up steps.
        steps_s: durations of the measured steps. If windows have several steps, the mean of each window.
        steps_per_window: number of steps that were timed together.
        cycle: number of values in `steps_s` after which the batches repeat; 1 if all batches are alike, or if each
            window has all of them.
        settled: whether the last warm-up steps were close to each other; if batches differ, whether each ran once.
        skipped: number of steps whose update the scaler skipped. Neither list of times has their windows.
        skipped_s: duration of the skipped steps.
        loss: loss of the last step.
        ruined: number of the first step whose loss was found not to be finite, counted from 1; None if there was none.
            Only the last loss of a window is checked.
        new_shape_s: seconds per step that preparing kernels for new shapes takes, measured in separate steps.
        ran: number of steps so far.
    """

    warmup_s: list[float] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)
    steps_per_window: int = 1
    cycle: int = 1
    settled: bool = True
    skipped: int = 0
    skipped_s: float = 0.0
    loss: float | None = None
    ruined: int | None = None
    new_shape_s: float = 0.0
    ran: int = 0

    def note(self, ran: WindowResult) -> None:
        """Notes the loss of a window of steps, and those that the scaler skipped; its times are the caller's."""
        self.loss = ran.loss
        self.ran += ran.steps
        if ran.ruined and self.ruined is None:
            self.ruined = self.ran
        self.skipped += ran.skipped
        self.skipped_s += ran.seconds * ran.skipped / ran.steps

    @property
    def timed_steps(self) -> int:
        """Number of measured steps."""
        return len(self.steps_s) * self.steps_per_window

    @property
    def startup_s(self) -> float:
        """Seconds that the warm-up took beyond the same number of measured steps, plus the skipped steps."""
        return beyond(self.warmup_s, steady(self.steps_s, self.cycle)) + self.skipped_s


def time_steps(
    step: TrainStep,
    batch_of: Callable[[int], StepBatch],
    device: Device,
    pace: Pace,
    cycle: int = 1,
    beat: Callable[[], None] = nothing,
) -> Lap:
    """Runs steps and times them. Gives up once the scaler has skipped `MOST_SKIPPED` of them.

    Warm-up steps are timed one by one. Measured steps are timed window by window; a window has several steps only if
    the device queues its work and the steps are short. Whole cycles of `cycle` steps, after which batches that differ
    in shape repeat, are measured, so the last one may exceed the limits of `pace`.

    `batch_of` returns the micro batches of a step by its number, counted from 0 in the warm-up and again in the
    measurement. A skipped step is run again on its own batches, with its window. For the first step of a window, the
    call is not timed. `beat` is called before each window, as a sign of life.
    """
    lap = Lap(cycle=cycle)

    def run(first: int, steps: int) -> WindowResult:
        """Runs a window that begins with step number `first`, and notes its result."""
        beat()
        ran = run_window(step, lambda number: batch_of(first + number), steps, device)
        lap.note(ran)
        return ran

    lap.settled = warm_up(lap.warmup_s, lambda number: run(number, 1), pace, cycle)
    began = perf_counter()
    while lap.skipped < MOST_SKIPPED and not _is_enough(lap, pace, perf_counter() - began):
        repeatable = None if lap.steps_s else watch_allocator(device)
        ran = run(lap.timed_steps, lap.steps_per_window)
        step_s = ran.seconds / ran.steps
        if not ran.updated:
            continue
        wanted = steps_per_window(device, min([step_s, *lap.warmup_s[-1:]]), cycle)
        # The first window is one step, which shows how wide windows can be. Windows at the beginning that are less than
        # half as wide, including that step, count as warm-up.
        if repeatable is not None and repeatable() and wanted >= 2 * lap.steps_per_window:
            lap.steps_per_window, lap.cycle = wanted, 1
            lap.warmup_s += [step_s] * ran.steps
        else:
            lap.steps_s.append(step_s)
    return lap


def _is_enough(lap: Lap, pace: Pace, elapsed_s: float) -> bool:
    if not lap.steps_s or len(lap.steps_s) % lap.cycle:
        return False
    if elapsed_s > pace.patience_s:
        return True
    if lap.steps_per_window > 1 and len(lap.steps_s) < LEAST_WINDOWS:
        return False
    timed = lap.timed_steps >= pace.steps_least and elapsed_s >= pace.seconds
    return timed or lap.timed_steps >= pace.steps_most


def warm_up(times_s: list[float], run_step: Callable[[int], WindowResult], pace: Pace, cycle: int) -> bool:
    """Runs steps one by one until they settle. Returns whether they did, or whether they did not have to.

    `times_s` is an empty list, which receives the durations of the steps that updated the weights. `run_step` runs the
    step of a number, counted from 0. A step that the scaler skipped is run again.
    """
    skipped, began = 0, perf_counter()
    while len(times_s) < pace.warmup_most and skipped < MOST_SKIPPED:
        ran = run_step(len(times_s))
        skipped += ran.skipped
        if ran.updated:
            times_s.append(ran.seconds)
        in_time = perf_counter() - began < pace.patience_s
        if not in_time or has_settled(times_s, cycle):
            break
    return pace.warmup_most < 2 or has_settled(times_s, cycle)


def has_settled(times_s: Sequence[float], cycle: int) -> bool:
    """Returns whether the last two steps took equally long; if batches differ, whether each batch has run once."""
    if cycle > 1 or len(times_s) < 2:
        return len(times_s) >= max(cycle, 2)
    low, high = sorted(times_s[-2:])
    return high - low <= SETTLED_RATIO * high


@contextmanager
def observed(step: TrainStep, react: Callable[[], None]) -> Iterator[None]:
    """Calls `react` at the start of each phase of the steps inside."""
    step.observe = lambda phase: react()
    try:
        yield
    finally:
        step.observe = None


def beyond(times_s: Sequence[float], steady_s: float) -> float:
    """Returns the seconds that steps took beyond `steady_s` each, at least 0."""
    return max(0.0, sum(times_s) - len(times_s) * steady_s)


def phase_steps(cycle: int) -> int:
    """Returns the number of separate steps that time the phases: one cycle, or a few steps."""
    return cycle if cycle > 1 else _PHASE_STEPS


def time_phases(
    step: TrainStep,
    batch_of: Callable[[int], StepBatch],
    device: Device,
    cycle: int = 1,
    beat: Callable[[], None] = nothing,
) -> dict[str, float]:
    """Returns the seconds of each phase over a few steps of their own: synchronising between phases slows them down."""
    samples, edges = dict[str, list[float]](), list[tuple[str, float]]()

    def note() -> None:
        device.synchronize()
        edges.append((step.phase, perf_counter()))

    for number in range(phase_steps(cycle)):
        beat()
        edges.clear()
        with observed(step, note):
            step(batch_of(number))
            note()
        spent: dict[str, float] = {}  # a step with several micro batches enters some phases more than once
        for (phase, begun_s), (_, ended_s) in pairwise(edges):
            spent[phase] = spent.get(phase, 0.0) + ended_s - begun_s
        for phase, seconds in spent.items():
            samples.setdefault(phase, []).append(seconds)
    return {phase: steady(times, cycle) for phase, times in samples.items()}
