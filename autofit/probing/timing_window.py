"""Window: optimizer steps that are timed together, without reading from the device in between.

Training queues one step after the other and does not wait for the accelerator. A step that is timed alone begins on an
idle device, so its time includes launch latency that training hides behind the previous step. Therefore, on a device
that queues its work (`Device.queues_work`), several short steps are timed together. Values that require waiting for the
device (the loss and the scale of the gradient scaler) are read at the edges of a window. On other devices, and for long
steps, a window is one step.

autofit has not yet been run on a physical GPU: the constants here are based on reasoning and on simulated devices.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from autofit.devices.base import Device
from autofit.workloads.step import StepBatch, TrainStep

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

    They may not if they leave memory behind (more than `MOST_KEPT_BYTES`), if the allocator had to flush its cache, or
    if an out-of-memory error was hidden. In the latter cases the plan is over the budget and each further step would be
    as slow. Reading the allocator does not wait for the device.
    """
    live, counters = device.live_bytes() or 0, device.counters()
    return lambda: (device.live_bytes() or 0) - live <= MOST_KEPT_BYTES and device.counters() == counters


def run_window(step: TrainStep, batch_of: Callable[[int], StepBatch], steps: int, device: Device) -> WindowResult:
    """Runs `steps` steps, one after the other, and times all of them together.

    If a scaler finds an infinity, it skips the update and lowers its scale. Such a step is faster and needs less memory
    than a real one.

    The device is synchronised at both edges, and not in between. `batch_of` returns the micro batches of a step by its
    number in the window, from 0. The first is made before the clock starts, the others while the device works.
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
