"""Five minutes of training under the proven plan, with texts of varying length, limited to its budget.

Required: no out-of-memory error, no allocator retry, and never more memory than the budget of the proof. The plan is
that of stage grid-gpt, finished or not. If that stage has no plan yet, the model is tuned first, and grid-gpt reuses
the result.
"""

import argparse
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter
from typing import Any

import torch

from autofit import devices
from autofit.core.answer import Answer
from autofit.core.budget import Clock
from autofit.core.measurement import Memory
from autofit.core.units import format_bytes, format_duration
from autofit.devices.base import Device
from autofit.fit import Fit
from autofit.probing.remote.bench import RemoteBench
from autofit.workloads.step import TrainStep, static_bytes
from autofit.workloads.tree import Batch
from scripts.bench import files
from scripts.bench.gpu import stage
from scripts.bench.gpu.grid import tune
from scripts.bench.gpu.models import MODELS

MODEL = "gpt"
SECONDS = 300.0
WINDOWS = 30
LEFT_RATIO = 0.8
"""Share of the remaining time that may be spent training: reading the memory of a host takes as long as a step."""


@dataclass
class Soak:
    """A training whose memory is recorded.

    Attributes:
        step: the train step.
        device: device that it trains on.
        windows: memory peak of each interval.
        steps: number of completed steps.
        error: reason for an early end, or "".
        shapes: shapes of the micro batches seen.
    """

    step: TrainStep
    device: Device
    windows: list[Memory] = field(default_factory=list)
    steps: int = 0
    error: str = ""
    shapes: set[tuple[int, ...]] = field(default_factory=set)

    def run(self, seconds: float) -> None:
        """Trains for `seconds`, in intervals that are measured one by one, so that growth becomes visible."""
        batches, began = self._batches(), perf_counter()
        for window in range(WINDOWS):
            until = began + seconds * (window + 1) / WINDOWS
            try:
                with self.device.meter(lambda: static_bytes(self.step)) as reading:
                    while perf_counter() < until:
                        self.step(next(batches))
                        self.steps += 1
            except RuntimeError as failure:
                self.error = f"{type(failure).__name__}: {failure}".splitlines()[0]
                return
            assert reading.memory is not None, "the meter has filled its reading"
            self.windows.append(reading.memory)

    def _batches(self) -> Iterator[Batch]:
        assert self.step.loader is not None, "fit.prepare gives a loader"
        for _ in count():
            for batch in self.step.loader:
                for part in getattr(batch, "parts", [batch]):
                    self.shapes.add(tuple(part["input_ids"].shape))
                yield batch


def proven(given: argparse.Namespace) -> Answer:
    """Returns the proven plan of stage grid-gpt, finished or not; without one, tunes the model and keeps the result."""
    tuned = files.read(given.out / f"grid-{MODEL}.json")
    if tuned is None:

        def make() -> dict[str, Any]:
            model = MODELS[MODEL]
            with RemoteBench(stage.target(model, given, strategies=model.strategies)) as bench:
                return tune(bench, 0.25 * given.limit_s)

        tuned = stage.Parts(given.out / f"grid-{MODEL}.part.json").get("tuned", make)
    return Answer.model_validate(tuned["answer"])


def run(given: argparse.Namespace, clock: Clock) -> tuple[str, dict[str, Any], bool]:
    """Returns the summary of the stage, its figures, and whether the training stayed inside the budget."""
    found = proven(given)
    device, workload = devices.choose(given.device), MODELS[MODEL].make(scale=given.scale)
    workload.model.to(device.torch_device)
    seconds = min(given.seconds, max(LEFT_RATIO * (given.limit_s - clock.elapsed_s), 1.0))
    budget = found.budget.memory_bytes
    before = device.counters()
    with Fit(found).prepare(workload.model, workload.loader, workload.make_optimizer()) as step:
        soak = Soak(step, device)
        torch.ones(64, 64, device=device.torch_device).mm(torch.ones(64, 64, device=device.torch_device))
        # The limit of a host is on the whole process, which holds more than tensors; there only the readings count.
        with nullcontext() if device.is_host else device.limit(budget, lambda: static_bytes(step)):
            soak.run(seconds)
    after = device.counters()
    peaks = [memory.judged_bytes for memory in soak.windows]
    retries, ooms = after.retries - before.retries, after.ooms - before.ooms
    peak = max(peaks, default=0)
    inside = bool(peaks) and peak <= budget and not (soak.error or retries or ooms)
    figures = {
        "plan": dict(found.plan.values), "seconds": seconds, "steps": soak.steps, "shapes": len(soak.shapes),
        "budget_bytes": budget, "proof_peak_bytes": found.proof.memory.judged_bytes, "peak_bytes": peak,
        "windows": [memory.model_dump(exclude={"judged_by"}) for memory in soak.windows],
        "retries": retries, "ooms": ooms, "error": soak.error,
        "table": stage.table(["window", "allocated", "reserved", "judged"], [
            [n, format_bytes(m.allocated_bytes), format_bytes(m.reserved_bytes), format_bytes(m.judged_bytes)]
            for n, m in enumerate(soak.windows) if n % 5 == 0 or n == len(soak.windows) - 1
        ]),
    }  # fmt: skip
    growth = f"peak {format_bytes(peaks[0])} at first, {format_bytes(peak)} at most" if peaks else "no peak"
    summary = (
        f"soak: {soak.steps} steps of {len(soak.shapes)} shapes in {format_duration(seconds)}; {growth}, budget "
        f"{format_bytes(budget)}, {retries} retries, {ooms} out of memory: "
        f"{soak.error or ('ok' if inside else 'MISSED')}"
    )
    return summary, figures, inside


def main() -> None:
    parser = stage.parser(__doc__ or "")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="duration of the training, in seconds")
    given = stage.parse(parser)
    stage.conclude("soak", given, lambda: run(given, Clock()))


if __name__ == "__main__":
    main()
