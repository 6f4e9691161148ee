"""Trains an architecture by hand, in plain PyTorch loops, and beside it with a plan file; prints samples per second.

The recipes are what an expert writes at once: bf16 autocast; bf16 and `torch.compile`; the same at four times the
micro batch. All use a fused optimizer where the recipe compiles. Each runs whole optimizer steps at the workload's
global batch, after a warm-up. The plan runs as a user trains with it: `fit.prepare`, then a loop over `step.loader`.

This process imports its libraries at once and then waits for `--go`, so that it takes nothing from a search beside it.
"""

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils.data import DataLoader

import autofit
from autofit import devices
from scripts.bench.gpu import architectures

WARM_UP, TIMED, LARGER = 3, 8, 4
"""Steps before the clock starts, steps that are timed, and the micro batch of the third recipe in those of the user."""
RECIPES = {f"bf16, compiled, {LARGER}x micro batch": (True, LARGER), "bf16, compiled": (True, 1), "bf16": (False, 1)}


def recipe(name: str, scale: str, device: torch.device, *, compiled: bool, times: int) -> list[float]:
    """Returns the seconds of whole steps of a plain loop."""
    workload: Any = getattr(architectures, name)(scale)
    model, micro = workload.model.to(device), times * workload.loader.batch_size
    total = workload.global_batch_size
    micro = min(micro, total)
    loader = DataLoader(workload.loader.dataset, batch_size=micro, shuffle=True, drop_last=True)
    made = workload.optimizer
    fused = {"fused": True} if compiled and device.type == "cuda" else {}
    optimizer = type(made)(model.parameters(), lr=made.param_groups[0]["lr"], **fused)
    run = torch.compile(model) if compiled else model
    batches = _endless(loader)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(total // micro):
            batch = [part.to(device, non_blocking=True) for part in next(batches)]
            with torch.autocast(device.type, torch.bfloat16):
                loss = workload.step_fn(run, batch)
            (loss * micro / total).backward()
        if workload.max_grad_norm:
            torch.nn.utils.clip_grad_norm_(model.parameters(), workload.max_grad_norm)
        optimizer.step()

    return timed(step, device)


def planned(name: str, scale: str, device: torch.device, plan: Path) -> list[float]:
    """Returns the seconds of whole steps with the plan of a file."""
    workload: Any = getattr(architectures, name)(scale)
    model = workload.model.to(device)
    made = workload.optimizer
    optimizer = type(made)(model.parameters(), lr=made.param_groups[0]["lr"])
    step = autofit.load(plan).prepare(
        model, workload.loader, optimizer, step_fn=workload.step_fn, max_grad_norm=workload.max_grad_norm
    )
    batches = _endless(step.loader)
    return timed(lambda: step(next(batches)), device)


def timed(step: Callable[[], object], device: torch.device) -> list[float]:
    """Returns the seconds of each of `TIMED` steps, after a warm-up."""
    found = []
    for number in range(WARM_UP + TIMED):
        _synchronize(device)
        began = time.perf_counter()
        step()
        _synchronize(device)
        if number >= WARM_UP:
            found.append(time.perf_counter() - began)
    return found


def _synchronize(device: torch.device) -> None:
    devices.choose(str(device)).synchronize()


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("architecture")
    parser.add_argument("--scale", default="full")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--plan", type=Path, required=True, help="plan file to train with; it may be made later")
    parser.add_argument("--go", type=Path, required=True, help="wait until this file exists")
    parser.add_argument("--json", type=Path, required=True, help="write the figures here, after each recipe")
    given = parser.parse_args()
    while not given.go.exists():
        time.sleep(0.1)
    device, found = torch.device(given.device), dict[str, Any]()
    total = getattr(architectures, given.architecture)(given.scale).global_batch_size
    works: dict[str, Callable[[], list[float]]] = {
        "plan": lambda: planned(given.architecture, given.scale, device, given.plan)
    } | {
        text: (lambda c=c, t=t: recipe(given.architecture, given.scale, device, compiled=c, times=t))
        for text, (c, t) in RECIPES.items()
    }
    for text, work in works.items():
        began = time.perf_counter()
        try:
            steps_s = work()
            found[text] = {"samples_per_s": total / median(steps_s), "steps_s": steps_s}
        except Exception as error:  # noqa: BLE001  # a recipe that fails, such as for lack of memory, is a result
            found[text] = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        found[text]["whole_s"] = time.perf_counter() - began
        given.json.write_text(json.dumps(found))
        gc.collect()
        torch.compiler.reset()
        devices.choose(str(device)).release()


if __name__ == "__main__":
    main()
