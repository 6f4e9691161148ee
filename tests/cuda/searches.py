"""A whole search on a device, and what has to hold after it, whatever became of it."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

import autofit
from autofit import devices
from autofit.core.answer import Answer
from autofit.core.errors import DevicePoisoned
from autofit.core.trial import Purpose
from autofit.probing import probe, timing
from autofit.probing.timing import Pace
from autofit.tracing import static_memory
from autofit.workloads.sources import source_of
from tests.digests import digest_of
from tests.phantom.phantom import Phantom, present

GIB, MIB = 2**30, 2**20
SEARCH = autofit.tune
"""Loaded here, where no workload is on the stack: an import inside that fails keeps the frames that led to it."""

QUICK = {
    Purpose.PROBE: Pace(warmup_most=2, steps_least=2, steps_most=2, seconds=0.0, patience_s=10.0),
    Purpose.BLOCK: Pace(warmup_most=1, steps_least=1, steps_most=1, seconds=0.0, patience_s=10.0),
    Purpose.PROOF: Pace(warmup_most=2, steps_least=3, steps_most=3, seconds=0.0),
}
"""For a phantom, whose clock is exact: more steps would tell no more. What is run on the worst batch stays."""


def tune(workload: autofit.Workload, **asked: Any) -> autofit.Fit:
    """Runs a whole search in this process, with its study in memory and no progress shown.

    Args:
        workload: what is trained.
        asked: further arguments of `autofit.tune`.
    """
    defaults: dict[str, Any] = {"device": "cuda", "study": ":memory:", "progress": False}
    return SEARCH(
        workload.model,
        workload.loader,
        loss_fn=workload.loss_fn,
        step_fn=workload.step_fn,
        optimizer=workload.optimizer,
        global_batch_size=workload.global_batch_size,
        max_grad_norm=workload.max_grad_norm,
        **defaults | asked,
    )


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the searches of a test quick: on a phantom by `QUICK`, and everywhere by few objects to collect.

    What earlier tests have imported joins the frozen heap.
    """
    if present():
        monkeypatch.setattr(probe, "PACES", QUICK)
        monkeypatch.setattr(timing, "WINDOW_S", 0.0)  # each step by itself
    # The hooks of these tests hold things, but leave fake tensors alone.
    monkeypatch.setattr(static_memory, "TRUSTED", (*static_memory.TRUSTED, "tests"))
    gc.freeze()


@contextmanager
def no_trace(workload: autofit.Workload, phantom: Phantom | None = None) -> Iterator[None]:
    """Fails unless the block, however it ends, leaves the workload bit-identical and the device's memory as it was.

    Args:
        workload: what the block is given.
        phantom: is reset after the block. What is on a device that was poisoned is lost, so only memory is compared.
    """
    optimizer = workload.optimizer if isinstance(workload.optimizer, torch.optim.Optimizer) else None

    def state() -> tuple[str, int, float]:
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        digest = digest_of(workload.model, optimizer, workload.loader)
        # Not what is allocated: a block that is not worth splitting is larger than the tensor in it.
        requested = torch.cuda.memory_stats()["requested_bytes.all.current"]
        # The allocator keeps its limit in bytes: the fraction that is read may differ in the last places.
        return digest, requested, round(torch.cuda.get_per_process_memory_fraction(), 6)

    before, poisoned = state(), False
    try:
        yield
    except DevicePoisoned:
        poisoned = True
        raise
    finally:
        if phantom is not None:
            phantom.reset()
        after = state()
        # Not after the block: a search that ends with an error has to leave no trace either.
        assert poisoned or after[0] == before[0], "what was passed in has changed"
        assert after[1] == before[1], f"{after[1] - before[1]} bytes more are allocated than before"
        assert after[2] == before[2], f"the memory fraction was {before[2]} and is {after[2]}"


def check(found: Answer) -> None:
    """Fails unless the plan was proven as promised: whole steps, no allocator retry, everything inside the budget."""
    memory, budget = found.proof.memory, found.budget.memory_bytes
    assert found.proof.worst_steps >= 3
    assert memory.reserved_bytes is not None
    assert memory.footprint_bytes is not None
    assert 0 < memory.allocated_bytes <= memory.reserved_bytes <= memory.footprint_bytes <= budget
    assert (memory.allocator_retries, memory.swallowed_ooms) == (0, 0)


def written(workload: autofit.Workload) -> autofit.Workload:
    """Has each forward pass write true bytes into a weight, as training does: a phantom's kernels write nothing."""
    if present():
        weight = next(p for p in workload.model.parameters() if p.ndim == 1)
        numbers = count()

        def write(running: torch.nn.Module, *_: object) -> None:
            if isinstance(next(running.parameters()), FakeTensor):  # a trace, which writes nothing
                return
            weight.data[:1].copy_(torch.tensor([(1 + next(numbers) % 96) / 97]))

        workload.model.register_forward_pre_hook(write)
    return workload


def train(fit: autofit.Fit, workload: autofit.Workload, steps: int = 3) -> int:
    """Trains with the plan, as the user would, and returns how often the allocator refused, or retried without need.

    Where lengths vary it may have to retry while it meets them, but not when it meets the same ones again. Their order
    decides how memory is cut up, so it is the same each time.
    """
    device, varies = devices.choose("cuda"), source_of(workload.loader).varies
    torch.manual_seed(0)
    with fit.prepare(workload.model, workload.loader, workload.optimizer) as step:
        batches, counts = list(islice(step.loader, steps)), [device.counters()]
        for _ in range(2):
            for batch in batches:
                step(batch)
            counts.append(device.counters())
    start, met, end = counts
    return end.ooms - start.ooms + end.retries - (met if varies else start).retries
