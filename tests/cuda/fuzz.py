"""Seeded whole searches on a phantom GPU: `python tests/cuda/fuzz.py --runs 200 --seed 0`, under tests/phantom/run.py.

Each seed draws a card, a model, batches, an optimizer, a budget and a fault. A search has to end in a proven plan
inside the budget or in the error that the fault calls for, with memory, limit and weights as before. Runs go through
child processes, so that a crash or a hang is one failed run. One JSON line a run, a summary line last; exit code 1 when
a run failed.
"""

import argparse
import gc
import json
import os
import random
import selectors
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

import autofit  # noqa: E402  # found through the line above when this is run as a script
from autofit.core.errors import AutofitError  # noqa: E402
from autofit.gates import check as gate_check  # noqa: E402
from autofit.probing import probe, timing  # noqa: E402
from tests.cuda.faults import FAULTS, at_forward  # noqa: E402
from tests.cuda.scaled import MAKERS  # noqa: E402
from tests.cuda.searches import GIB, QUICK, check, no_trace, tune, written  # noqa: E402
from tests.phantom.phantom import Phantom, present  # noqa: E402

GROUP = 8
"""Runs of one process: starting one takes as long as a run."""

ERRORS: dict[str, tuple[str, ...]] = {
    "poison": ("DevicePoisoned",),
    "slow": ("BudgetSpent",),
    "cublas handle": ("UserCodeError",),
    "cublas execution": ("UserCodeError",),
}
"""What a search may end with under a fault, beside NothingFits."""


@dataclass(frozen=True)
class Case:
    """What one seed draws.

    Attributes:
        seed: of the draw.
        card_gib: capacity.
        model: a name of `models`.
        fill: size of the model's samples, 1 where the user's own setting takes most of the card.
        batch: of the user's loader.
        total: samples per optimizer step; None leaves it free.
        optimizer: a name of `OPTIMIZERS`.
        budget: as `autofit.tune` takes it.
        strategies: those searched.
        time_s: for the search.
        fault: a name of `FAULTS`, or "".
        at: the forward pass in which the fault strikes.
    """

    seed: int
    card_gib: int
    model: str
    fill: float
    batch: int
    total: int | None
    optimizer: str
    budget: float | str | None
    strategies: tuple[str, ...] | None
    time_s: float | None
    fault: str
    at: int

    @classmethod
    def draw(cls, seed: int) -> "Case":
        """Returns the case of a seed."""
        rng = random.Random(seed)
        card = rng.choice((1, 2, 3, 4, 6, 8, 12, 16, 24, 40, 80))
        fault = rng.choice(("", *FAULTS)) if rng.random() < 0.7 else ""
        budgets = (
            None,
            rng.uniform(0.4, 1.0),
            f"{round(card * rng.uniform(0.4, 1) * 1024)}MiB",
            f"{card + 1}GiB",
        )
        few = ("batching",), ("batching", "checkpointing"), ("batching", "precision"), ("batching", "memory_format")
        return cls(
            seed=seed,
            card_gib=card,
            model=rng.choice(("mlp", *MAKERS)),
            fill=rng.choice((0.05, 0.3, 0.6, 1.0, 2.0)),
            batch=rng.choice((1, 2, 3, 4, 6)),
            total=rng.choice((None, 2, 3, 4, 6, 8)),
            optimizer=rng.choice(tuple(OPTIMIZERS)),
            budget=rng.choices(budgets, (12, 3, 3, 1))[0],
            strategies=rng.choices((*few, None), (4, 4, 2, 2, 1))[0],
            time_s=3.0 if fault == "slow" else None,
            fault="" if fault == "abort" else fault,
            at=rng.randint(1, 60),
        )


def mlp(gib: float, global_batch_size: int | None) -> autofit.Workload:
    """Linear layers over many rows a sample, with classes for targets."""
    rows = max(int(400 * gib), 1)
    with torch.device("cuda"):
        layers = [layer for _ in range(3) for layer in (nn.Linear(384, 384), nn.ReLU())]
        model = nn.Sequential(nn.Linear(2, 384), *layers, nn.Flatten(1), nn.LazyLinear(10))
    tables = torch.zeros(1, rows, 2).expand(256, -1, -1), torch.zeros(256, dtype=torch.long)
    model[-1] = nn.Linear(384 * rows, 10, device="cuda")
    loader = DataLoader(TensorDataset(*tables), batch_size=4)
    return autofit.Workload(model, loader, loss_fn=F.cross_entropy, global_batch_size=global_batch_size)


MODELS: dict[str, Callable[..., autofit.Workload]] = {"mlp": mlp, **MAKERS}
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "none": lambda parameters: None,
    "adamw": torch.optim.AdamW,
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam, one by one": lambda parameters: torch.optim.Adam(parameters, foreach=False),
    "adagrad, recipe": lambda parameters: partial(torch.optim.Adagrad, lr=0.1),
}


def made(case: Case) -> autofit.Workload:
    """Returns the workload of a case, which also writes true bytes into a weight."""
    workload = MODELS[case.model](case.card_gib * case.fill, case.total)
    loader = workload.loader
    return replace(
        written(workload),
        loader=DataLoader(loader.dataset, batch_size=case.batch, collate_fn=loader.collate_fn),
        optimizer=OPTIMIZERS[case.optimizer](workload.model.parameters()),
    )


def run(case: Case) -> dict[str, Any]:
    """Runs a case in this process and returns what came of it; `problem` is empty when that is as it should be."""
    phantom, began = Phantom(), perf_counter()
    phantom.set_total(case.card_gib * GIB)
    torch.cuda.set_per_process_memory_fraction(1.0)
    told: dict[str, Any] = {**asdict(case), "outcome": "", "problem": ""}
    try:
        told |= searched(case, phantom)
    except Exception:  # whatever it is, it is what this run found
        told["problem"] = traceback.format_exc()
    phantom.reset()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    if torch.cuda.memory_reserved():
        told["problem"] += f"{torch.cuda.memory_reserved()} bytes are reserved in the end"
    return {**told, "seconds": round(perf_counter() - began, 2)}


def searched(case: Case, phantom: Phantom) -> dict[str, Any]:
    """Runs the search of a case.

    Raises:
        AssertionError: a promise was broken.
        Exception: the search ended with an error that this case does not call for.
    """
    workload = made(case)
    if case.fault:
        at_forward(workload.model, case.at, lambda: FAULTS[case.fault](phantom))
    try:
        with no_trace(workload, phantom):
            found = tune(
                workload, memory_budget=case.budget, strategies=case.strategies, time_budget=case.time_s, seed=case.seed
            ).answer
    except AutofitError as error:
        name = type(error).__name__
        if name not in expected(case):
            raise
        return {"outcome": name, "text": str(error)[:160]}
    assert "UsageError" not in expected(case), "a budget above the card was taken"
    check(found)
    assert case.total in (None, found.plan.global_batch_size)
    return {"outcome": "plan", "plan": str(found.plan), "peak_bytes": found.proof.memory.footprint_bytes}


def expected(case: Case) -> tuple[str, ...]:
    """Returns the names of the errors that this case may end with."""
    if case.budget == f"{case.card_gib + 1}GiB":
        return ("UsageError", *ERRORS.get(case.fault, ()))
    return ("NothingFits", *ERRORS.get(case.fault, ()))


# The parent.


def outcomes(seeds: list[int], limit_s: float) -> Iterator[dict[str, Any]]:
    """Runs seeds in child processes and yields what came of each; one that ends or hangs costs the run it was at."""
    left = list(seeds)
    while left:
        child = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__, "--child", ",".join(map(str, left))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        with child, selectors.DefaultSelector() as selector:
            assert child.stdout is not None
            assert child.stderr is not None
            selector.register(child.stdout, selectors.EVENT_READ)
            while left:
                hung = not selector.select(limit_s)
                line = "" if hung else child.stdout.readline()
                if not line:
                    break
                yield json.loads(line)
                left.pop(0)
            if left:
                hung = hung or not ended(child)
            child.kill()
            if left:
                why = f"hung for {limit_s:.0f} s" if hung else f"ended with {child.wait()}"
                problem = f"its process {why}: {child.stderr.read()[-2000:]}"
                yield {**asdict(Case.draw(left.pop(0))), "outcome": "", "problem": problem, "seconds": limit_s}


def ended(child: subprocess.Popen[str]) -> bool:
    """Says whether a child that has closed its output ends by itself."""
    try:
        child.wait(10)
    except subprocess.TimeoutExpired:
        return False
    return True


def main() -> int:
    """Runs the seeds asked for; prints a line for each and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="the first; the others follow")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1), help="processes at once (%(default)s)")
    parser.add_argument("--limit", type=float, default=180.0, metavar="SECONDS", help="for one run (%(default)s)")
    parser.add_argument("--child", metavar="SEEDS", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not present():
        sys.exit("fuzz.py: there is no phantom GPU; start it with tests/phantom/run.py")
    if given.child:
        suit_phantom()
        for seed in given.child.split(","):
            say(run(Case.draw(int(seed))))
        return 0
    return parent(given)


def say(told: dict[str, Any]) -> None:
    """Writes one line; in one go, because several threads do."""
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


def suit_phantom() -> None:
    """Makes checks pass, which a phantom gives nothing to compare, and the pace a quick one."""
    vars(gate_check)["GradientCheck"].run = lambda _: None
    vars(probe)["PACES"] = QUICK
    timing.WINDOW_S = 0.0  # each step by itself


def parent(given: argparse.Namespace) -> int:
    """Shares the seeds out among children and prints what comes back."""
    began, seeds = perf_counter(), list(range(given.seed, given.seed + given.runs))
    groups = [seeds[at : at + GROUP] for at in range(0, len(seeds), GROUP)]
    failed, counts = [], Counter[str]()

    def work(group: list[int]) -> None:
        for told in outcomes(group, given.limit):
            say(told)
            counts[told["outcome"] or "failed"] += 1
            if told["problem"]:
                failed.append(told["seed"])

    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(work, groups))
    seconds = round(perf_counter() - began)
    say({"runs": len(seeds), "failed": sorted(failed), "outcomes": dict(counts), "seconds": seconds})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
