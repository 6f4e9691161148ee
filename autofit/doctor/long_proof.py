"""The long proof: a plan runs for minutes on batches as they come, while the memory of its steps is watched.

A short proof shows that the worst batch fits. What grows slowly, or breaks up the allocator's memory when shapes vary,
shows only later.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from time import monotonic
from typing import cast

from autofit.core.briefing import Examiner
from autofit.core.units import format_bytes, format_duration
from autofit.devices.base import Device
from autofit.doctor.findings import chosen
from autofit.doctor.in_tune import looked_at
from autofit.doctor.session import Scope
from autofit.failures.classify import classify
from autofit.failures.evidence import collect, scrub
from autofit.probing.ranks.outcomes import FAILED
from autofit.search.evidence import HELD
from autofit.workloads.step import StepBatch, TrainStep, storage_bytes
from autofit.workloads.tree import live_tensors
from autofit.workloads.workload import Workload

GROWTH = ("grows", "graph-kept", "graph-grows")
"""The kinds of findings that name what grows."""
SAMPLE_S = 0.5
"""Seconds between two looks at the memory, which take up to a tenth of a second on a host."""
LEAST_SAMPLES = 9
"""Fewest looks from which growth is judged."""
LEAST_BYTES, LEAST_RATIO = 2**20, 1e-3
"""Growth of live memory below this, or below this share of it, is within what caches and tables of a training take."""


@dataclass(slots=True)
class Watched:
    """The memory of a device after steps.

    Attributes:
        steps: number of steps before each look.
        live: bytes of live tensors, at each look.
        reserved: bytes that the device's allocator has reserved, at each look; empty if it is not known.
    """

    steps: list[int] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)

    def look(self, device: Device, steps: int) -> None:
        """Notes the memory now."""
        live = device.live_bytes()
        self.steps.append(steps)
        self.live.append(storage_bytes(live_tensors(), device.torch_device) if live is None else live)
        if (peaks := device.peaks()) is not None:
            self.reserved.append(peaks[1])


def growth(steps: Sequence[int], sizes: Sequence[int]) -> float:
    """Returns by how many bytes sizes grow per step, from the first third of the looks to the last; 0 if they do not.

    The least of each third counts, since a step may leave something for a while, and the first ones warm up.
    """
    third = len(sizes) // 3
    if len(sizes) < LEAST_SAMPLES:
        return 0.0
    looks = [*zip(sizes, steps, strict=True)]
    (early, first), (late, last) = min(looks[1 : third + 1]), min(looks[-third:])
    return (late - early) / (last - first) if late - early > max(LEAST_BYTES, LEAST_RATIO * early) else 0.0


def lasted(
    workload: Workload, device: Device, step: TrainStep, batch: Callable[[], StepBatch | None], examiner: Examiner
) -> str:
    """Runs steps for `examiner.seconds`, and returns what they show of the memory, in a sentence.

    It begins with `HELD` if nothing grows and no step fails.

    Args:
        workload: what is trained. The caller restores it.
        device: where it is trained.
        step: the train step of the plan.
        batch: makes the batch of a step, another one each time; None ends it.
        examiner: says how long. A rank that follows others has no end of its own, and runs no further steps to find out
            what grows.
    """
    watched, count, began = Watched(), 0, monotonic()
    due_s = began
    try:
        while (now := monotonic()) < began + examiner.seconds and (made := batch()) is not None:
            step(made)
            count += 1
            if now >= due_s:
                device.synchronize()
                watched.look(device, count)
                due_s = now + SAMPLE_S
        device.synchronize()
    except Exception as error:  # noqa: BLE001  # what a step raises is the result
        reason = classify(collect(error), device_is_host=device.is_host).reason
        scrub(error)
        return f"{FAILED} in step {count + 1:,}, after {format_duration(monotonic() - began)}: {reason}"
    took = f"{count:,} steps on batches as they come, in {format_duration(monotonic() - began)}"
    if slope := growth(watched.steps, watched.live):
        look = partial(looked_at, workload, device, step, scope=Scope(detectors=chosen(GROWTH), runs=False))
        found = look(batch=cast(Callable[[], StepBatch], batch)) if isfinite(examiner.seconds) else None
        cause = f": {found.findings[0].what}" if found is not None and found.findings else ""
        return f"live memory grows by {format_bytes(round(slope))} per step over {took}{cause}"
    if slope := growth(watched.steps, watched.reserved):
        return (
            f"the memory that the allocator reserves grows by {format_bytes(round(slope))} per step over {took}, while "
            "live memory does not: shapes vary. Try expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF"
        )
    return f"{HELD} for {took}; live memory between steps: {format_bytes(max(watched.live, default=0))}"
