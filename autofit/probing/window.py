"""Window: optimizer steps that are timed together, with nothing read from the device in between.

A training gives an accelerator one step after the other and does not wait for it. A step that is timed alone begins on
an idle device: the launches of its first kernels, which in a training are hidden behind the step before, are then part
of its time. So on a device that works off a queue (`Device.queues_work`) short steps are timed several at a time. What
has to wait for the device, the loss and the scale of the gradient scaler, is read at the edges of a window.
Everywhere else, and where steps are long, a window is one step.

autofit has not yet been run on a physical GPU: the constants here rest on reasoning and on simulated devices.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from autofit.devices.base import Device
from autofit.workloads.step import StepBatch, TrainStep

WINDOW_S = 0.1
"""A window takes this long at least; a longer step is a window of its own. What the edges of a window add, an idle
device until the first kernels are queued, is taken to be below 1 ms. That is then 1 %, half of the tie margin. pyperf
repeats what it times until it takes this long too (reference/reliability.md 9.4)."""
MOST_STEPS = 100
"""Most steps of a window. Its edges cost at most the time that the host needs to launch a step, which is no more than a
step takes: 1 % of this many."""
LEAST_WINDOWS = 3
"""Where windows have more than one step, this many are timed at least: the median then leaves out a disturbed one, and
their spread tells the noise."""

MOST_KEPT_BYTES = 2**16
"""Steps that leave more than this on the device each are timed one by one: a hundred of them might not fit."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What the steps of a window did.

    Attributes:
        steps: how many there were.
        seconds: wall time of all of them, the device synchronised at both edges.
        skipped: how many updates the gradient scaler skipped. In a window of several steps this is told by how far the
            scale fell; a skip right after the scale grew, one step in 2000 by torch's default, is not seen.
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
    """Returns how many steps of `step_s` seconds are timed together: whole cycles where that is more than one.

    Args:
        device: where they run.
        step_s: seconds of one step, as far as known.
        cycle: steps after which the same batches come again; 1 where all are alike.
    """
    if not device.queues_work or not 0 < step_s < WINDOW_S:
        return 1
    return cycle * math.ceil(min(WINDOW_S / (cycle * step_s), MOST_STEPS // cycle))


def watch_allocator(device: Device) -> Callable[[], bool]:
    """Returns a function that says whether what ran in between may run many times: it left no memory behind, or little.

    A step for which the allocator had to give its cache back, or that hid an out-of-memory, may not either: its plan is
    over the budget, and each further one would be as slow. Reading the allocator does not wait for the device.
    """
    live, counters = device.live_bytes() or 0, device.counters()
    return lambda: (device.live_bytes() or 0) - live <= MOST_KEPT_BYTES and device.counters() == counters


def run_window(step: TrainStep, batches: Iterable[StepBatch], device: Device) -> Ran:
    """Runs a step on each of `batches`, one after the other, and times all of them together.

    A scaler that finds an infinity skips the update and lowers its scale: such a step is faster and smaller than a
    real one.

    Args:
        step: the step to run.
        batches: the micro batches of each step, one at least. What is made as it is asked for, is made while the device
            works.
        device: is synchronised at both edges, and not in between.
    """
    scaler = step.draft.scaler
    scale = None if scaler is None else scaler.get_scale()
    trains = step.draft.optimizer is not None

    def loss_of(batch: StepBatch) -> torch.Tensor | None:
        result = step(batch)
        return result if trains else None  # an output may be large: it is gone when the next step begins

    def run() -> tuple[int, torch.Tensor | None]:
        steps, last = 0, None
        for loss in map(loss_of, batches):  # nothing else holds a loss, an output or a batch
            steps, last = steps + 1, loss
        return steps, last

    (steps, loss), seconds = device.timed(run)
    skipped = 0 if scaler is None or scale is None else _skipped(scaler, scale, steps)
    return Ran(steps, seconds, skipped, None if loss is None else float(loss))


def run_step(step: TrainStep, batch: StepBatch, device: Device) -> Ran:
    """Runs one step and times it."""
    return run_window(step, [batch], device)


def _skipped(scaler: torch.amp.GradScaler, before: float, steps: int) -> int:
    """Returns how many of `steps` updates were skipped, from the scale before them and now."""
    now = scaler.get_scale()
    if now >= before:
        return 0
    fallen = math.log(now / before, scaler.get_backoff_factor()) if now > 0 else steps
    return min(max(round(fallen), 1), steps)
