"""Time of whole optimizer steps: warm up until it settles, then measure."""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from time import perf_counter

import torch

from autofit.core.measurement import steady
from autofit.devices.base import Device, nothing
from autofit.probing.pace import Pace
from autofit.probing.window import LEAST_WINDOWS, Ran, run_window, steps_per_window, watch_allocator
from autofit.workloads.step import StepBatch, TrainStep

SETTLED_RATIO = 0.10
"""Warm-up ends when two steps in a row are this close (reference/reliability.md 9.5); where batches differ in shape, so
that steps are no measure of each other, when each has run once."""
_PHASE_STEPS = 3
MOST_COMPILED = 256
"""Of each plan torch.compile keeps what it made: more plans than this are not tried."""
MOST_SKIPPED = 20
"""A gradient scaler that starts at 2**16 and halves its scale at each overflow is below 1 after 17 steps: when it still
skips then, scaling is not what is wrong."""


@dataclass(slots=True)
class Lap:
    """What timing gave.

    Attributes:
        warmup_s: times of the steps before the measured ones.
        steps_s: times of the measured steps: of each window the mean, where windows have several.
        steps_per_window: steps that were timed together.
        cycle: values of `steps_s` after which the same batches came again; 1 where all are alike, or each window has
            all of them.
        settled: whether the last warm-up steps were close to each other; where batches differ, whether each ran once.
        skipped: steps whose update the scaler skipped; they are in neither list of times, nor is their window.
        skipped_s: seconds that these took.
        loss: loss of the last step.
        ruined: number of the first step whose loss was found not to be finite, from 1 on; None when there was none. The
            last loss of a window is looked at.
        phases_s: seconds by phase, from steps of their own.
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
    phases_s: dict[str, float] = field(default_factory=dict)

    @property
    def timed_steps(self) -> int:
        """How many steps were measured."""
        return len(self.steps_s) * self.steps_per_window

    @property
    def startup_s(self) -> float:
        """Seconds that the warm-up took beyond as many measured steps, and all those of skipped ones."""
        return beyond(self.warmup_s, steady(self.steps_s, self.cycle)) + self.skipped_s


def start_cold() -> None:
    """Forgets what torch.compile made in this process, so that the next steps compile what a training would.

    Otherwise the first plan pays for all, and the later ones run kernels that serve its batch size too. What else the
    user has compiled is compiled again when it is called again.
    """
    dynamo = sys.modules.get("torch._dynamo.utils")  # looked up, since both this import and a reset may take seconds
    if dynamo is not None and dynamo.counters.get("frames"):
        torch.compiler.reset()


def shapes_of_a_training(vary: bool) -> AbstractContextManager[object]:
    """Returns a context in which torch.compile treats each plan's batch as a training does, which has one size only.

    Otherwise the second size gets kernels for any size, and from the ninth on a model may run uncompiled without a
    word: plans that were run later would look slower. Where shapes vary within a training too, that is left as it is.
    """
    config = sys.modules.get("torch._dynamo.config")  # nobody has compiled anything where it is not loaded
    if vary or config is None:
        return nullcontext()
    settings = {"automatic_dynamic_shapes": False, "recompile_limit": MOST_COMPILED}
    patched: AbstractContextManager[object] = config.patch(settings)
    return patched


def time_steps(
    step: TrainStep,
    batch_of: Callable[[int], StepBatch],
    device: Device,
    pace: Pace,
    cycle: int = 1,
    beat: Callable[[], None] = nothing,
) -> Lap:
    """Runs steps and times them; gives up when the scaler has skipped `MOST_SKIPPED` of them.

    Steps of the warm-up are timed one by one, the measured ones window by window (window.py): one by one too, unless
    the device works off a queue and they are short.

    Args:
        step: the step to run.
        batch_of: gives the micro batches of the step of a number, from 0 on for the warm-up and for what is measured; a
            skipped step is run again on its own, with its window. Not timed for the first step of a window.
        device: is synchronised at the edges of each window.
        pace: how long; whole cycles are measured, so the last may go beyond.
        cycle: steps after which the same batches come again, where they differ in shape; 1 where all are alike.
        beat: called before each window, as a sign of life.
    """
    timing = _Timing(step, batch_of, device, pace, cycle, beat, Lap(cycle=cycle))
    timing.warm_up()
    timing.measure()
    return timing.lap


@dataclass(slots=True)
class _Timing:
    """The timing that `time_steps` does, as far as it is; `ran` is the number of steps so far."""

    step: TrainStep
    batch_of: Callable[[int], StepBatch]
    device: Device
    pace: Pace
    cycle: int
    beat: Callable[[], None]
    lap: Lap
    ran: int = 0

    def warm_up(self) -> None:
        """Runs steps one by one until they settle."""
        times, pace, began = self.lap.warmup_s, self.pace, perf_counter()
        while len(times) < pace.warmup_most and self.lap.skipped < MOST_SKIPPED:
            ran = self._run(len(times), 1)
            if ran.updated:
                times.append(ran.seconds)
            patient = perf_counter() - began < pace.patience_s
            if not patient or (len(times) >= max(pace.warmup_least, 2) and self._warm()):
                break
        self.lap.settled = pace.warmup_most < 2 or self._warm()

    def measure(self) -> None:
        """Runs windows until there are enough of them. The first one is a step, which tells how wide they can be.

        Windows that turn out too short at the beginning, that step among them, are part of the warm-up.
        """
        lap, began = self.lap, perf_counter()
        while lap.skipped < MOST_SKIPPED and not self._enough(perf_counter() - began):
            repeatable = None if lap.steps_s else watch_allocator(self.device)
            ran = self._run(lap.timed_steps, lap.steps_per_window)
            step_s = ran.seconds / ran.steps
            if not ran.updated:
                continue
            if repeatable is not None and repeatable() and self._widen(min([step_s, *lap.warmup_s[-1:]])):
                lap.warmup_s += [step_s] * ran.steps
            else:
                lap.steps_s.append(step_s)

    def _run(self, first: int, steps: int) -> Ran:
        """Runs a window from the step of a number on, and notes what became of it."""
        self.beat()
        # The first batch is there before the clock starts; the others are picked while the device works.
        batches = chain([self.batch_of(first)], map(self.batch_of, range(first + 1, first + steps)))
        ran, lap = run_window(self.step, batches, self.device), self.lap
        lap.loss = ran.loss
        self.ran += ran.steps
        if ran.ruined and lap.ruined is None:
            lap.ruined = self.ran
        lap.skipped += ran.skipped
        lap.skipped_s += ran.seconds * ran.skipped / ran.steps
        return ran

    def _widen(self, step_s: float) -> bool:
        """Says whether windows were less than half as wide as steps of `step_s` want them, and makes them that wide."""
        lap, wanted = self.lap, steps_per_window(self.device, step_s, self.cycle)
        if wanted < 2 * lap.steps_per_window:
            return False
        lap.steps_per_window, lap.cycle = wanted, 1
        return True

    def _warm(self) -> bool:
        times = self.lap.warmup_s
        return len(times) >= self.cycle if self.cycle > 1 else _settled(times)

    def _enough(self, elapsed_s: float) -> bool:
        lap, pace = self.lap, self.pace
        if not lap.steps_s or len(lap.steps_s) % lap.cycle:
            return False
        if elapsed_s > pace.patience_s:
            return True
        if lap.steps_per_window > 1 and len(lap.steps_s) < LEAST_WINDOWS:
            return False
        timed = lap.timed_steps >= pace.steps_least and elapsed_s >= pace.seconds
        return timed or lap.timed_steps >= pace.steps_most


def beyond(times_s: Sequence[float], steady_s: float) -> float:
    """Returns the seconds that steps took beyond as many that take `steady_s` each, at least 0."""
    return max(0.0, sum(times_s) - len(times_s) * steady_s)


def phase_steps(cycle: int) -> int:
    """Returns by how many steps of their own phases are timed: those of a cycle, or a few."""
    return cycle if cycle > 1 else _PHASE_STEPS


def time_phases(
    step: TrainStep,
    batch_of: Callable[[int], StepBatch],
    device: Device,
    cycle: int = 1,
    beat: Callable[[], None] = nothing,
) -> dict[str, float]:
    """Returns the seconds of each phase over a few steps of their own, see `autofit.core.measurement.steady`.

    Synchronising between phases disturbs the whole step's time, so these steps are not part of the timing.
    """
    samples: dict[str, list[float]] = {}
    try:
        for number in range(phase_steps(cycle)):
            beat()
            for phase, seconds in _phases_of_one(step, batch_of(number), device).items():
                samples.setdefault(phase, []).append(seconds)
    finally:
        step.observe = None
    return {phase: steady(times, cycle) for phase, times in samples.items()}


def _phases_of_one(step: TrainStep, batch: StepBatch, device: Device) -> dict[str, float]:
    spent: dict[str, float] = {}
    device.synchronize()
    last = perf_counter()
    current = "prepare"

    def observe(phase: str) -> None:
        nonlocal last, current
        device.synchronize()
        now = perf_counter()
        spent[current] = spent.get(current, 0.0) + now - last
        last, current = now, phase

    step.observe = observe
    step(batch)
    observe("done")
    spent.pop("prepare", None)
    return spent


def _settled(times: list[float]) -> bool:
    if len(times) < 2:
        return False
    low, high = sorted(times[-2:])
    return high - low <= SETTLED_RATIO * high
