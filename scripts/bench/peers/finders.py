"""Runs one finder on one model in this process, for `compare.py`: its result, its cost, and the state that it changed.

    python -m scripts.bench.peers.finders FINDER MODEL OUT --seconds 60

Each finder is used as in its documentation, with all defaults: Lightning's `Tuner.scale_batch_size` (the same as its
callback `BatchSizeFinder`), accelerate's decorator around a training of three steps, the common doubling loop, and
Optuna's TPE over autofit's knobs, with each trial in its own forked process.

A trial runs under the limit (`Problem.trial`). For finders that do not measure time, `compare.py` switches off oneDNN's
primitive cache and sets small malloc thresholds. Without these settings the limit is not that of the tensors; with
them, steps are slow, so the search times of these finders are too long. TPE times its trials: its process has the
ordinary settings, and its timed steps run without the limit, after the steps that run under it.

Lightning and accelerate recognise an out-of-memory error on a CPU by a single text. Other forms of it ("could not
create a primitive", `MemoryError`) are translated into that text and counted as `translated`.
"""

import argparse
import gc
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

from autofit.core.plan import Plan
from autofit.workloads.batch_algebra import batch_size
from autofit.workloads.sources import source_of
from autofit.workloads.workload import Workload
from scripts.bench import report
from scripts.bench.peers import models
from scripts.bench.peers.models import Problem, key, plan_of
from scripts.bench.peers.state import autofit_state, state_of
from scripts.bench.peers.tpe import Finder, tpe


def lightning(mode: str) -> Finder:
    """Returns Lightning's finder in one of its modes."""
    import lightning.pytorch as pl  # noqa: PLC0415  # an extra of this benchmark, and slow to import
    from lightning.pytorch.tuner import Tuner, batch_size_scaling  # noqa: PLC0415
    from lightning.pytorch.utilities.memory import is_oom_error  # noqa: PLC0415

    class Module(pl.LightningModule):  # type: ignore[misc]  # its types are not read
        """The training as a user of Lightning writes it."""

        def __init__(self, problem: Problem) -> None:
            super().__init__()
            self.model, self.problem, self.batch_size = problem.workload.model, problem, problem.source.user_batch_size

        def training_step(self, batch: Any, _index: int) -> torch.Tensor:
            self.problem.now = key(batch_size(batch))
            return self.problem.loss.compute(self.model, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return self.problem.optimizer

        def train_dataloader(self) -> Any:
            return self.problem.source.rebuild(self.batch_size)

    def search(problem: Problem) -> Plan:
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        clip = problem.workload.max_grad_norm
        with tempfile.TemporaryDirectory() as folder:
            trainer = pl.Trainer(
                accelerator="cpu", max_epochs=-1, gradient_clip_val=clip, default_root_dir=folder,
                enable_checkpointing=False, **quiet,
            )  # fmt: skip
            size = Tuner(trainer).scale_batch_size(Module(problem), mode=mode)
        assert size is not None, "the search is not skipped"
        return plan_of(size)

    def find(problem: Problem, _seconds: float) -> Plan:
        run = batch_size_scaling._try_loop_run

        def watched_run(*args: Any) -> None:
            problem.trial(lambda: run(*args), is_oom_error)

        batch_size_scaling._try_loop_run = watched_run
        try:
            return search(problem)
        finally:
            batch_size_scaling._try_loop_run = run

    search(_toy())  # imports that Lightning makes on its first run do not count as part of the training
    return find


def accelerate() -> Finder:
    """Returns accelerate's decorator around a training, starting at its default of 128."""
    from accelerate.utils.memory import find_executable_batch_size, should_reduce_batch_size  # noqa: PLC0415

    def find(problem: Problem, _seconds: float) -> Plan:
        def train(batch_size: int) -> int:
            problem.trial(lambda: problem.train(batch_size), should_reduce_batch_size)
            return batch_size

        return plan_of(find_executable_batch_size(train)())

    return find


def doubling() -> Finder:
    """Returns the common loop: double the batch size until it fails, and take the last size that ran."""

    def find(problem: Problem, _seconds: float) -> Plan:
        size = 1
        while 2 * size <= problem.most:
            try:
                problem.trial(partial(problem.train, 2 * size))
            except (RuntimeError, MemoryError):
                break
            finally:
                gc.collect()
            size *= 2
        return plan_of(size)

    return find


FINDERS: dict[str, Callable[[], Finder]] = {
    "lightning power": lambda: lightning("power"),
    "lightning binsearch": lambda: lightning("binsearch"),
    "accelerate": accelerate,
    "doubling": doubling,
    "optuna tpe": tpe,
}
TIMING = ("optuna tpe",)
"""Finders that time their trials and therefore need a process with the ordinary settings."""


def _toy() -> Problem:
    """Returns a tiny problem, for a run that makes a library import what it needs."""
    model = nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.zeros(8, 2), torch.zeros(8, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    workload = Workload(model, loader, optimizer=torch.optim.AdamW(model.parameters()))
    return Problem(workload, source_of(loader), 0)


def run(finder: str, model: str, seconds: float) -> dict[str, Any]:
    """Returns the result of a finder, its cost and the state that it changed."""
    find = FINDERS[finder]()
    problem = Problem.of(model)
    before, began = state_of(problem.workload), perf_counter()
    failed, plan = "", None
    with models.on_step(problem.stepped):
        try:
            plan = find(problem, seconds)
        except Exception as error:  # noqa: BLE001  # a finder that fails is a result
            failed = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    spent, after = perf_counter() - began, state_of(problem.workload)
    return {
        "plan": None if plan is None else dict(plan.values),
        "failed": failed,
        "out_of_memory": problem.failures,
        "translated": problem.translated,
        "steps": problem.steps,
        "seconds": round(spent, 2),
        "ran": plan is not None and plan.key in problem.ran,
        "changed": [name for name in before if before[name] != after[name]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=report.program(), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("finder", choices=[*FINDERS, "autofit state"])
    parser.add_argument("model", choices=models.MODELS)
    parser.add_argument("out", type=Path, help="file for the result, in JSON")
    parser.add_argument("--seconds", type=float, default=60, help="for a finder that does not stop by itself")
    given = parser.parse_args()
    state = given.finder == "autofit state"
    found = autofit_state(given.model) if state else run(given.finder, given.model, given.seconds)
    given.out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
