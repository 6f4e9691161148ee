"""Time of whole optimizer steps: warm up until it settles, then measure."""

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter

import torch

from autofit.core.measurement import steady
from autofit.devices.base import Device
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


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to warm up and to measure. Steps whose update the scaler skipped do not count.

    Attributes:
        warmup_least: steps before measuring, at least.
        warmup_most: steps before measuring, at most; reaching it unsettled is a warning.
        steps_least: measured steps, at least.
        steps_most: measured steps, at most; a cycle that began is completed.
        seconds: measuring stops after this time once `steps_least` are done.
        patience_s: once warming up or measuring took this long, what was run has to do; one step, or one cycle, is
            always measured.
    """

    warmup_least: int
    warmup_most: int
    steps_least: int
    steps_most: int
    seconds: float
    patience_s: float = math.inf


@dataclass(frozen=True, slots=True)
class Ran:
    """What one step did.

    Attributes:
        seconds: its wall time, the device synchronised at both edges.
        updated: False when the gradient scaler skipped the update.
        loss: its mean loss; None in inference.
    """

    seconds: float
    updated: bool
    loss: float | None

    @property
    def ruined(self) -> bool:
        """Whether the loss is not finite."""
        return self.loss is not None and not math.isfinite(self.loss)


@dataclass(slots=True)
class Lap:
    """What timing gave.

    Attributes:
        warmup_s: times of the steps before the measured ones.
        steps_s: times of the measured steps.
        cycle: steps after which the same batches came again; 1 where all are alike.
        settled: whether the last warm-up steps were close to each other; where batches differ, whether each ran once.
        skipped: steps whose update the scaler skipped; they are in neither list of times.
        skipped_s: seconds that these took.
        loss: loss of the last step.
        ruined: number of the first step whose loss was not finite, from 1 on; None when there was none.
        phases_s: seconds by phase, from steps of their own.
    """

    warmup_s: list[float] = field(default_factory=list)
    steps_s: list[float] = field(default_factory=list)
    cycle: int = 1
    settled: bool = True
    skipped: int = 0
    skipped_s: float = 0.0
    loss: float | None = None
    ruined: int | None = None
    phases_s: dict[str, float] = field(default_factory=dict)

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


def run_step(step: TrainStep, batch: StepBatch, device: Device) -> Ran:
    """Runs one step and times it.

    A scaler that finds an infinity skips the update and lowers its scale: such a step is faster and smaller than a
    real one.
    """
    scaler = step.draft.scaler
    scale = None if scaler is None else scaler.get_scale()
    loss, seconds = device.timed(lambda: step(batch))
    updated = scaler is None or scale is None or scaler.get_scale() >= scale
    return Ran(seconds, updated, None if step.draft.optimizer is None else float(loss))


def time_steps(
    step: TrainStep, batch_of: Callable[[int], StepBatch], device: Device, pace: Pace, cycle: int = 1
) -> Lap:
    """Runs steps and times each; gives up when the scaler has skipped `MOST_SKIPPED` of them.

    Args:
        step: the step to run.
        batch_of: gives the micro batches of the step of a number, from 0 on for the warm-up and for what is measured; a
            skipped step is run again on its own. Not timed.
        device: is synchronised at the edges of each step.
        pace: how long; whole cycles are measured, so the last may go beyond.
        cycle: steps after which the same batches come again, where they differ in shape; 1 where all are alike.
    """
    lap, began = Lap(cycle=cycle), perf_counter()

    def run_into(times: list[float]) -> bool:
        ran = run_step(step, batch_of(len(times)), device)
        lap.loss = ran.loss
        if ran.ruined and lap.ruined is None:
            lap.ruined = len(lap.warmup_s) + len(lap.steps_s) + lap.skipped + 1
        if ran.updated:
            times.append(ran.seconds)
        else:
            lap.skipped += 1
            lap.skipped_s += ran.seconds
        return lap.skipped < MOST_SKIPPED

    def warm() -> bool:
        return len(lap.warmup_s) >= cycle if cycle > 1 else _settled(lap.warmup_s)

    while len(lap.warmup_s) < pace.warmup_most and run_into(lap.warmup_s):
        patient = perf_counter() - began < pace.patience_s
        if not patient or (len(lap.warmup_s) >= max(pace.warmup_least, 2) and warm()):
            break
    lap.settled = pace.warmup_most < 2 or warm()
    began, steps = perf_counter(), lap.steps_s

    def enough() -> bool:
        timed = len(steps) >= pace.steps_least and perf_counter() - began >= pace.seconds
        return len(steps) % cycle == 0 and (timed or len(steps) >= pace.steps_most)

    while not enough():
        impatient = steps and len(steps) % cycle == 0 and perf_counter() - began > pace.patience_s
        if impatient or lap.skipped >= MOST_SKIPPED or not run_into(steps):
            break
    return lap


def beyond(times_s: Sequence[float], steady_s: float) -> float:
    """Returns the seconds that steps took beyond as many that take `steady_s` each, at least 0."""
    return max(0.0, sum(times_s) - len(times_s) * steady_s)


def phase_steps(cycle: int) -> int:
    """Returns by how many steps of their own phases are timed: those of a cycle, or a few."""
    return cycle if cycle > 1 else _PHASE_STEPS


def time_phases(
    step: TrainStep, batch_of: Callable[[int], StepBatch], device: Device, cycle: int = 1
) -> dict[str, float]:
    """Returns the seconds of each phase over a few steps of their own, see `autofit.core.measurement.steady`.

    Synchronising between phases disturbs the whole step's time, so these steps are not part of the timing.
    """
    samples: dict[str, list[float]] = {}
    try:
        for number in range(phase_steps(cycle)):
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
