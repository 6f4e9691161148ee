"""Compares the memory of the same steps on a phantom GPU and on a real one.

A fixed list of cases (model, batch, precision, checkpointing, layout, optimizer) runs through autofit's `prepare`, with
three whole steps each. On a phantom GPU, the figures are the record. On a real GPU, they are compared with the record
of the same torch version and compute capability, if there is one in `scripts/bench/results/phantom`. Memory outside the
allocator (context, cuBLAS, cuDNN) is read after the first work of each kind. fp16 is left out, because a phantom cannot
tell whether the scaler would skip a step.
"""

import gc
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from autofit import devices
from autofit.core.budget import Clock
from autofit.core.errors import SpaceError, UsageError
from autofit.core.measurement import Memory
from autofit.core.plan import KnobValue, Plan
from autofit.core.units import format_bytes
from autofit.devices.base import Device, Reading
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.workloads.loss import resolve_loss
from autofit.workloads.sources import source_of
from autofit.workloads.step import Draft, static_bytes
from autofit.workloads.tree import map_tensors
from autofit.workloads.workload import Workload
from scripts.bench import report
from scripts.bench.gpu import stage
from scripts.bench.gpu.models import MODELS

RECORDS = Path(__file__).resolve().parents[1] / "results" / "phantom"
STEPS = 3
PEAKS = ("allocated_bytes", "reserved_bytes")


@dataclass(frozen=True)
class Case:
    """A model at a micro batch size, with the knobs that differ from their defaults."""

    model: str
    size: int
    knobs: dict[str, KnobValue] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the case, by which records are matched."""
        return " ".join([self.model, str(self.size), *(f"{k}={v}" for k, v in self.knobs.items())])


def cases(scale: str) -> Iterator[Case]:
    """Yields the fixed list."""
    sizes = {"gpt": (2, 8, 32), "convnet": (4, 16, 64), "mlp": (64, 512, 4096)} if scale == "full" else {
        "gpt": (1, 4), "convnet": (1, 4), "mlp": (2, 8)
    }  # fmt: skip
    for name, batches in sizes.items():
        for size in batches:
            for precision in ("fp32", "tf32", "bf16"):
                yield Case(name, size, {"precision": precision})
        middle = batches[1]
        for value in ("for-loop", "foreach", "fused"):
            yield Case(name, middle, {"precision": "bf16", "optimizer_implementation": value})
    for size in sizes["gpt"]:
        yield Case("gpt", size, {"precision": "bf16", "checkpointed_blocks": 8 if scale == "full" else 2})
    for size in sizes["convnet"]:
        yield Case("convnet", size, {"precision": "bf16", "memory_format": "channels_last"})


class Runner:
    """Runs cases on a device, each from an empty cache.

    Raises:
        UsageError: the device does not exist on this machine.
    """

    def __init__(self, device: Device, scale: str) -> None:
        self.device, self._scale = device, scale

    def run(self, case: Case) -> dict[str, Any]:
        """Returns the memory of each step of a case, or the reason why it did not run."""
        steps: list[Memory] = []
        error = ""
        try:
            self._steps(case, steps)
        except (RuntimeError, SpaceError) as failure:  # out of memory, or unsupported by the chip
            error = f"{type(failure).__name__}: {failure}".splitlines()[0]
        gc.collect()
        self.device.synchronize()
        self.device.release()
        peaks = {key: [getattr(memory, key) or 0 for memory in steps] for key in (*PEAKS, "static_bytes")}
        return {"case": case.name, "model": case.model, "size": case.size, "error": error, **peaks}

    def _steps(self, case: Case, steps: list[Memory]) -> None:
        workload = self._workload(case.model)
        target, source = self.device.torch_device, source_of(workload.loader, scan=64)
        batch = map_tensors(source.worst(case.size), lambda t: t.to(target))
        draft = Draft(
            model=workload.model,
            loss=resolve_loss(workload.model, batch, loss_fn=workload.loss_fn),
            optimizer=workload.make_optimizer(),
            device=target,
            max_grad_norm=workload.max_grad_norm,
        )
        del batch  # left by resolving the loss, which ran the model once and is not part of a step's peak
        gc.collect()
        self.device.release()
        with prepare(Plan(values={"micro_batch_size": case.size, **case.knobs}), draft, members()) as step:
            for _ in range(STEPS):
                with self.device.meter(lambda: static_bytes(step)) as reading:
                    step(source.worst(case.size))
                steps.append(_read(reading))

    def _workload(self, name: str) -> Workload:
        made = MODELS[name].make(scale=self._scale, free=True)
        made.model.to(self.device.torch_device)
        return made

    def outside(self) -> dict[str, int]:
        """Returns the bytes outside the allocator after the first work of each kind, in order of execution."""
        target = self.device.torch_device
        works: dict[str, Callable[[], object]] = {
            "context": lambda: torch.ones(8, device=target).sum(),
            "matrix product": lambda: torch.ones(512, 512, device=target) @ torch.ones(512, 512, device=target),
            "convolution": lambda: torch.nn.functional.conv2d(
                torch.ones(2, 16, 32, 32, device=target), torch.ones(16, 16, 3, 3, device=target)
            ),
        }
        found = {}
        for name, work in works.items():
            with self.device.meter(lambda: 0) as reading:
                work()
            memory = _read(reading)
            found[name] = (memory.footprint_bytes or 0) - (memory.reserved_bytes or 0)
        return found


def _read(reading: Reading) -> Memory:
    assert reading.memory is not None, "the meter has filled its reading"
    return reading.memory


def capability(device: Device) -> str:
    """Returns the compute capability as "9.0", or "none": kernels and workspaces are chosen by it."""
    module = torch.get_device_module(device.torch_device)
    get = getattr(module, "get_device_capability", None)
    found = None if get is None else get()
    return f"{found[0]}.{found[1]}" if isinstance(found, tuple) else "none"


def record_path(device: Device, scale: str) -> Path:
    """Returns the path of the phantom's record for this torch version, chip and scale."""
    version = torch.__version__.partition("+")[0]
    return RECORDS / f"steps-torch-{version}-sm-{capability(device)}-{scale}.json"


def compare(real: list[dict[str, Any]], phantom: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns, for each case that ran on both, the peaks of the steps and the difference in bytes."""
    theirs = {case["case"]: case for case in phantom}
    found = []
    for case in real:
        other = theirs.get(case["case"])
        if other is None or case["error"] or other["error"]:
            continue
        row: dict[str, Any] = {"case": case["case"], "model": case["model"], "size": case["size"]}
        for key in PEAKS:
            ours, phantoms = max(case[key]), max(other[key])
            row[key] = {"real": ours, "phantom": phantoms, "missed": ours - phantoms}
        found.append(row)
    return found


def summarize(compared: list[dict[str, Any]], path: Path) -> str:
    """Returns the differences as text."""
    if not compared:
        return f"no phantom record to compare with ({path.name})"
    words = []
    for key in PEAKS:
        missed = [row[key]["missed"] for row in compared]
        ratios = sorted(row[key]["missed"] / max(row[key]["real"], 1) for row in compared)
        words.append(
            f"{key.removesuffix('_bytes')}: the phantom misses {format_bytes(min(missed))} to "
            f"{format_bytes(max(missed))} ({ratios[0]:.1%} to {ratios[-1]:.1%}, median {median(ratios):.1%})"
        )
    return "; ".join(words)


def _rows(results: list[dict[str, Any]], compared: list[dict[str, Any]]) -> dict[str, Any]:
    if compared:
        keys = [(key, kind) for key in PEAKS for kind in ("real", "phantom", "missed")]
        columns = ["case", *(f"{key.removesuffix('_bytes')} {kind}" for key, kind in keys)]
        return stage.table(columns, [[row["case"], *(format_bytes(row[k][w]) for k, w in keys)] for row in compared])
    ran = [
        [case["case"], *(format_bytes(max(case[key])) for key in PEAKS), ""] for case in results if not case["error"]
    ]
    rest = [[case["case"], "", "", case["error"]] for case in results if case["error"]]
    return stage.table(["case", "allocated", "reserved", "did not run"], ran + rest)


def keep(path: Path, figures: dict[str, Any], device: str) -> None:
    """Writes the record of the phantom, one line for each case."""
    lines = ",\n".join(json.dumps(case) for case in figures["cases"])
    head = json.dumps({"where": report.where(device), "capability": figures["capability"]})
    path.write_text(f'{head[:-1]}, "cases": [\n{lines}\n]}}\n', encoding="utf-8")


def main() -> None:
    parser = stage.parser(__doc__ or "")
    parser.add_argument("--record", action="store_true", help="keep the figures of a phantom GPU as the record")
    given, clock = stage.parse(parser), Clock()
    try:
        device = devices.choose(given.device)
    except UsageError as error:
        report.fail(f"steps: {error}", 2)
    runner = Runner(device, given.scale)
    parts = stage.Parts(given.out / "steps.part.json")
    outside = parts.get("outside", runner.outside)
    wanted, results = list(cases(given.scale)), []
    for number, case in enumerate(wanted):
        if case.name not in parts and clock.elapsed_s > given.limit_s:
            stage.unfinished(f"steps: {number} of {len(wanted)} cases", clock)
        results.append(parts.get(case.name, partial(runner.run, case)))
    path, phantom = record_path(device, given.scale), report.where(given.device)["phantom"]
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() and not phantom else {"cases": []}
    compared = compare(results, known["cases"])
    refused = [case["case"] for case in results if case["error"].startswith(SpaceError.__name__)]
    failed = [case["case"] for case in results if case["error"] and case["case"] not in refused]
    figures = {"capability": capability(device), "scale": given.scale, "outside_bytes": outside, "cases": results,
               "compared": compared, "table": _rows(results, compared)}  # fmt: skip
    if given.record:
        if not phantom:
            report.fail("steps: --record is for a phantom GPU, and none is preloaded. Leave it out.", 2)
        keep(path, figures, given.device)
    kinds = ", ".join(f"{format_bytes(size)} after the first {name}" for name, size in outside.items())
    compared_text = "on a phantom, nothing to compare with" if phantom else summarize(compared, path)
    summary = (
        f"steps: {len(wanted)} cases, {len(failed)} failed, {len(refused)} not possible here; {compared_text}; "
        f"outside the allocator {kinds}"
    )
    parts.clear()
    report.finish(summary, figures, given.json, not failed, given.device)


if __name__ == "__main__":
    main()
