"""Runs one batch-size finder on one benchmark model; `peers.py` starts it in its own process."""

import argparse
import importlib
import importlib.util
import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch

from autofit import devices
from autofit.core.budget import Clock
from autofit.core.errors import AutofitError
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import OPEN, Purpose, RunTerms
from autofit.core.units import parse_bytes
from autofit.probing.remote.bench import RemoteBench
from autofit.search.request import Request
from autofit.search.search import search
from scripts.bench import files, report
from scripts.bench.gpu import stage
from scripts.bench.gpu.lightning_finder import PACKAGES, lightning
from scripts.bench.gpu.models import MODELS
from scripts.bench.gpu.rig import Rig, is_oom


def doubling(rig: Rig) -> int:
    """Doubles the user's batch size until a trial fails, and returns the last size that ran."""
    size, most = int(rig.make().loader.batch_size), rig.most()
    while size <= most and _runs(rig, size):
        size *= 2
    return size // 2


def _runs(rig: Rig, size: int) -> bool:
    failed = False
    try:
        rig.trial(size)
    except RuntimeError as error:
        if not is_oom(error):
            raise
        failed = True
    rig.clean()  # only here, after the handler, are the frames released that held the tensors of the failed trial
    return not failed


def accelerate(rig: Rig) -> int:
    """Runs Accelerate's `find_executable_batch_size` from the size of the data set, at most 1024."""
    find = importlib.import_module("accelerate.utils").find_executable_batch_size

    def train(batch_size: int) -> int:
        rig.trial(batch_size)
        return batch_size

    return int(find(train, starting_batch_size=min(1024, rig.most()))())


@dataclass(frozen=True)
class Finder:
    """A finder and the alternative packages that provide it; none for the doubling loop."""

    find: Callable[[Rig], int]
    packages: tuple[str, ...] = ()

    @property
    def installed(self) -> bool:
        """Whether one of the packages is installed."""
        return not self.packages or any(importlib.util.find_spec(name) is not None for name in self.packages)


FINDERS = {
    "doubling": Finder(doubling),
    "accelerate": Finder(accelerate, ("accelerate",)),
    "lightning-power": Finder(lightning("power"), PACKAGES),
    "lightning-binsearch": Finder(lightning("binsearch"), PACKAGES),
}
OURS = {"autofit": None, "autofit-batch-only": ("batching",)}
"""autofit with all strategies, and with only the knobs that the other finders have."""


def run_peer(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Returns the result of a peer and its cost."""
    model, device = MODELS[given.model], devices.choose(given.device)
    limit = parse_bytes(model.memory[given.scale])
    rig = Rig(lambda: model.make(scale=given.scale, free=True), device, limit)
    baseline_size = rig.make().loader.batch_size
    # Context and libraries are loaded first, because they count towards the limit that the device sets.
    torch.ones(64, 64, device=device.torch_device).mm(torch.ones(64, 64, device=device.torch_device))
    began = perf_counter()
    with nullcontext() if device.is_host else device.limit(limit, lambda: 0):
        size = FINDERS[name].find(rig)
    return {
        "returned": size, "returned_ran": size in rig.ran, "plan": {"micro_batch_size": size, "accumulation_steps": 1},
        "baseline_size": baseline_size, "steps": rig.steps, "ooms": rig.ooms, "seconds": perf_counter() - began,
    }  # fmt: skip


class Counting(RemoteBench):
    """A bench that counts the steps and the out-of-memory errors of a search."""

    steps = ooms = 0

    def evaluate(self, plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Outcome:
        """Runs a plan and counts."""
        outcome = super().evaluate(plan, purpose, terms)
        if (measurement := outcome.measurement) is not None:
            self.steps += len(measurement.warmup_times_s) + measurement.timed_steps + measurement.worst_steps
        self.ooms += outcome.status is Status.OUT_OF_MEMORY
        return outcome


def run_ours(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """Returns the result of autofit and its cost, including race and proof."""
    target = stage.target(MODELS[given.model], given, free=True, strategies=OURS[name])
    clock = Clock()
    with Counting(target) as bench:
        request = Request(time_s=given.limit_s, study=":memory:", isolated=True)
        found = search(bench, request, (), clock)
        counted = {"steps": bench.steps, "ooms": bench.ooms}
    plan = dict(found.plan.values)
    return {"returned": found.plan.micro_batch_size, "returned_ran": True, "plan": plan, **counted,
            "seconds": clock.elapsed_s, "trials": found.counts}  # fmt: skip


def main() -> None:
    parser = stage.parser(__doc__ or "")
    stage.model_argument(parser)
    parser.add_argument("finder", choices=[*FINDERS, *OURS])
    given = stage.parse(parser)
    try:
        found = run_ours(given.finder, given) if given.finder in OURS else run_peer(given.finder, given)
    except AutofitError as error:
        report.fail(f"finders {given.finder}: {error}", error.exit_code)
    files.write(given.json, json.dumps(found))
    print(f"{given.finder}: {found['plan']}, {found['steps']} steps, {found['ooms']} out of memory", flush=True)


if __name__ == "__main__":
    main()
