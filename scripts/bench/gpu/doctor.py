"""The doctor on a GPU: its sizes against the allocator's counts, its cost, and what it finds in full architectures.

Each architecture is diagnosed as `autofit.diagnose` does it, and trained in a plain loop. Required: the peak that the
doctor names is that of the loop within 5 %, a watched step takes at most 5 times as long, and logits that a language
model keeps through its backward pass are found with what the peak loses without them, within 5 %.
"""

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from autofit import devices
from autofit.core.budget import Clock
from autofit.core.units import format_bytes
from autofit.devices.base import Device
from autofit.doctor.diagnose import diagnose_workload
from autofit.doctor.session import Scope, collection_off
from autofit.doctor.watch import Watch
from autofit.workloads.step import lasting_tensors, storage_bytes
from autofit.workloads.workload import Workload
from scripts.bench.gpu import architectures, stage

NAMES = ("gpt2", "resnet50", "vit", "llama", "convnext")
FAULTY = "gpt2 keeping its logits"
STEPS = 4
"""Number of steps of which the last is measured, and the later half is timed."""
RUNS_S = 30.0
"""Seconds for further steps with changes, of each architecture."""
LIMIT_RATIO, TOLERANCE = 5.0, 0.05
KEPT: dict[str, Any] = {}
"""Where a bad training keeps its last outputs."""


def keeping(model: nn.Module, batch: list[Tensor]) -> Tensor:
    """Returns the loss, and keeps the logits through the backward pass."""
    KEPT["last"] = model(input_ids=batch[0], labels=batch[0])
    loss: Tensor = KEPT["last"].loss
    return loss


def workload_of(name: str, scale: str, keeps: bool = False) -> Workload:
    """Returns an architecture's training, with or without the fault."""
    found: Workload = getattr(architectures, name)(scale)
    return replace(found, step_fn=keeping) if keeps else found


def step_of(workload: Workload, device: Device, samples: int) -> Callable[[], None]:
    """Returns a plain step of a training on one batch, on a device."""
    model, batch = workload.model.to(device.torch_device).train(), next(iter(workload.loader))
    batch = [each.to(device.torch_device) for each in batch]
    count = max(samples // len(batch[0]), 1)
    optimizer: Any = workload.optimizer

    def step() -> None:
        for _ in range(count):
            assert workload.step_fn is not None, "all architectures have one"
            torch.autograd.backward(workload.step_fn(model, batch) / count)
        if workload.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), workload.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return step


def peak_by_hand(workload: Workload, device: Device, samples: int) -> int:
    """Returns the peak of live tensors of a plain step in bytes, as the device counts it."""
    step = step_of(workload, device, samples)

    def held() -> int:
        optimizer: Any = workload.optimizer
        return storage_bytes(lasting_tensors(workload.model, optimizer), device.torch_device)

    with collection_off():
        for _ in range(2):  # the first makes the optimizer's state
            step()
        with device.meter(held) as reading:
            step()
            reading.drain()
    return 0 if reading.memory is None else reading.memory.allocated_bytes


def step_s(workload: Workload, device: Device, samples: int, *, watched: bool) -> float:
    """Returns the seconds that a plain step takes."""
    step, times = step_of(workload, device, samples), list[float]()
    watch = Watch(device.torch_device, [workload.model]) if watched else None
    with collection_off(), nullcontext() if watch is None else watch.watching():
        for _ in range(STEPS):
            times.append(device.timed(step)[1])
            if watch is not None:
                watch.boundary()
    return median(times[STEPS // 2 :])


def part(name: str, given: Any, *, keeps: bool = False) -> dict[str, Any]:
    """Returns what the doctor says of an architecture, and what a plain loop needs."""
    device = devices.choose(given.device)
    began_s = perf_counter()
    found = diagnose_workload(workload_of(name, given.scale, keeps), device, name, Scope(time_s=RUNS_S), may_move=True)
    took_s = perf_counter() - began_s

    def again() -> tuple[Workload, Device, int]:
        KEPT.clear()
        gc.collect()
        device.release()
        return workload_of(name, given.scale, keeps), device, found.samples or 1

    return {
        "name": name,
        "took_s": took_s,
        "peak_bytes": found.peak_bytes,
        "by_hand_bytes": peak_by_hand(*again()),
        "step_s": step_s(*again(), watched=False),
        "watched_s": step_s(*again(), watched=True),
        "diagnosis": found.model_dump(mode="json", by_alias=True, exclude={"profile", "unread"}),
    }


def run(given: Any) -> tuple[str, dict[str, Any], bool]:
    """Returns the summary of the stage, its figures, and whether the requirements are met."""
    parts, clock = stage.Parts(given.out / "doctor.parts.json"), Clock(limit_s=given.limit_s)
    wanted = (FAULTY, *NAMES)
    for name in wanted:
        if name not in parts and clock.left_s < given.limit_s / 4:
            stage.unfinished(f"doctor: {name} was not begun", clock)
        parts.get(name, partial(part, name.partition(" ")[0], given, keeps=name == FAULTY))
    found = {name: parts.get(name, dict) for name in wanted}
    text, figures, passed = judged(found)
    parts.clear()
    return text, figures, passed


def judged(found: dict[str, dict[str, Any]]) -> tuple[str, dict[str, Any], bool]:
    """Returns the summary, the figures, and whether the requirements are met."""
    bad, good = found[FAULTY], found[FAULTY.partition(" ")[0]]
    dead = [each for each in bad["diagnosis"]["findings"] if each["id"] == "dead-at-peak" and not each["minor"]]
    said_bytes = dead[0]["size"]["peak_bytes"] if dead else 0
    real_bytes = bad["by_hand_bytes"] - good["by_hand_bytes"]
    rows, passed = [], bool(dead) and abs(said_bytes - real_bytes) <= TOLERANCE * max(real_bytes, 1)
    for name, each in found.items():
        slowdown, error = each["watched_s"] / each["step_s"], each["peak_bytes"] / max(each["by_hand_bytes"], 1) - 1
        passed &= slowdown <= LIMIT_RATIO and abs(error) <= TOLERANCE
        kinds = ", ".join(one["id"] for one in each["diagnosis"]["findings"] if not one["minor"])
        peak = f"{format_bytes(each['by_hand_bytes'])} ({error:+.1%})"
        rows.append((name, f"{each['took_s']:.1f} s", peak, f"{slowdown:.2f}x", kinds or "none"))
    columns = ("training", "diagnosis", "peak (error of the doctor's)", "time of a watched step", "findings")
    figures = {"parts": found, "said_bytes": said_bytes, "real_bytes": real_bytes}
    figures |= {"table": stage.table(columns, rows)}
    text = f"kept logits {format_bytes(said_bytes)}, really {format_bytes(max(real_bytes, 0))}"
    return f"doctor: {text}; {'all' if passed else 'NOT ALL'} figures within their limits", figures, passed


def main() -> None:
    given = stage.parse(stage.parser(__doc__ or ""))
    stage.conclude("doctor", given, lambda: run(given))


if __name__ == "__main__":
    main()
