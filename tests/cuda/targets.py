"""Workloads whose device memory is known in advance; also targets for the worker: `tests/cuda/targets.py:make_sized`.

Weights are small, because the guard copies them. What is large holds no data that matters, so that it costs a phantom
GPU, which only reserves addresses, next to nothing.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from autofit import devices
from autofit.core.briefing import Options
from autofit.core.outcome import Outcome
from autofit.core.trial import Purpose
from autofit.devices.base import Device
from autofit.probing.local_bench import LocalBench
from autofit.workloads.workload import Workload
from tests.doctor.cases import WORDS, Language
from tests.phantom.phantom import present

MIB = 2**20
BATCHING = Options(memory_budget="4GiB", strategies=("batching",), enforce=True)
FREE = BATCHING.model_copy(update={"enforce": False})


class Hold(torch.autograd.Function):
    """Passes its input on; holds `held` bytes from forward to backward, and takes `taken` more while backward runs."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, held: int, taken: int) -> torch.Tensor:
        ctx.save_for_backward(torch.empty(held, dtype=torch.uint8, device=x.device))
        ctx.taken = taken
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (held,) = ctx.saved_tensors
        taken = torch.empty(ctx.taken, dtype=torch.uint8, device=held.device)
        assert taken.numel() == ctx.taken
        return gradient, None, None


class Sized(nn.Module):
    """A model of `weight` MiB that holds `held` MiB a sample until backward, and there takes `taken` more."""

    def __init__(self, weight: float = 1, held: float = 0, taken: float = 0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(int(weight * MIB) // 4, device="cuda"))
        self.held, self.taken = int(held * MIB), int(taken * MIB)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.square().mean() * self.weight.mean()
        output: torch.Tensor = Hold.apply(y, self.held * len(x), self.taken * len(x))  # type: ignore[no-untyped-call]  # torch has no types here
        return output


def varying(lengths: Iterable[int]) -> tuple[nn.Module, Callable[[], None]]:
    """Returns a language model, and a function that trains it on a text of the next of these lengths."""
    model, left = Language().to("cuda"), iter(lengths)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        ids = torch.randint(WORDS, (next(left),), device="cuda")
        F.cross_entropy(model(ids), ids).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        optimizer.zero_grad()

    return model, step


def rows(samples: int = 64, batch_size: int = 8) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    return DataLoader(TensorDataset(torch.randn(samples, 4, generator=generator)), batch_size=batch_size)


def own_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    loss: torch.Tensor = model(batch[0])
    return loss


def adam(parameters: Any) -> torch.optim.Optimizer:
    """Two numbers of state for each weight, updated one tensor at a time."""
    return torch.optim.Adam(parameters, lr=1e-3, foreach=False)


def sized(
    step_fn: Any = own_loss, *, optimizer: Any = adam, global_batch_size: int | None = None, **sizes: float
) -> Workload:
    """Returns a workload whose batches have 8 samples; `sizes` are those of `Sized`."""
    return Workload(Sized(**sizes), rows(), step_fn=step_fn, optimizer=optimizer, global_batch_size=global_batch_size)


def make_sized(**sizes: Any) -> Workload:
    return sized(**sizes)


def make_leaking(pids: str) -> Workload:
    """Each step keeps 20 MiB; each process that opens this leaves its number."""
    shelf: list[torch.Tensor] = []
    with Path(pids).open("a") as file:
        file.write(f"{os.getpid()}\n")

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        shelf.append(torch.empty(20 * MIB, dtype=torch.uint8, device="cuda"))
        loss: torch.Tensor = model(batch[0])
        return loss

    return sized(step)


def make_poisoning(orders: str, pids: str) -> Workload:
    """A workload whose steps poison the phantom GPU as a file says: "strike once", "strike always" or nothing."""
    from tests.phantom.phantom import Phantom  # noqa: PLC0415  # a worker of other tests may run on a real GPU

    with Path(pids).open("a") as file:
        file.write(f"{os.getpid()}\n")

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        order = Path(orders).read_text()
        if order == "strike once":
            Path(orders).write_text("")
        if order:
            Phantom().fail_after(0)
        loss: torch.Tensor = model(batch[0])
        return loss

    return sized(step)


def evaluate(
    workload: Workload,
    device: Device,
    options: Options = BATCHING,
    purpose: Purpose = Purpose.PROBE,
    **plan: Any,
) -> Outcome:
    """Opens a bench, runs its baseline with the values of `plan`, and leaves it."""
    with LocalBench(workload, device, options) as bench:
        return bench.evaluate(bench.briefing.space.baseline.replace(**plan), purpose)


def outside_bytes() -> int:
    """Returns what this process holds on the device outside the allocator: all that is used on a phantom of its own.

    On a card that others may use too it is what the device itself says, which other tests compare with the driver.
    """
    if not present():
        return int(getattr(devices.choose("cuda"), "outside_bytes")())  # noqa: B009  # of accelerators only
    free, total = torch.cuda.mem_get_info()
    return int(total - free - torch.cuda.memory_reserved())
