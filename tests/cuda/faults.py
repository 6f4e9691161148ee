"""What goes wrong in the middle of a search; also a target that meets it, `tests/cuda/faults.py:make_workload`."""

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import autofit
from tests.cuda.scaled import tabular
from tests.phantom.phantom import Phantom

MIB = 2**20
CUBLAS_NOT_INITIALIZED, CUBLAS_ALLOC_FAILED, CUBLAS_EXECUTION_FAILED = 1, 3, 13


def free_bytes(phantom: Phantom) -> int:
    """Returns the bytes that nobody holds, in whole pieces of the driver."""
    return phantom.free_bytes // (2 * MIB) * 2 * MIB


FAULTS: dict[str, Callable[[Phantom], None]] = {
    "allocation": lambda phantom: phantom.fail_allocation(1),
    "crowded": lambda phantom: phantom.take(free_bytes(phantom) // 2),
    "full": lambda phantom: phantom.take(free_bytes(phantom)),
    "less free": lambda phantom: phantom.misreport_free(free_bytes(phantom) // 4),
    "more free": lambda phantom: phantom.misreport_free(phantom.total_bytes),
    "slow": lambda phantom: phantom.slow(100),
    "cublas allocation": lambda phantom: phantom.fail_gemm(CUBLAS_ALLOC_FAILED),
    "cublas handle": lambda phantom: phantom.fail_gemm(CUBLAS_NOT_INITIALIZED),
    "cublas execution": lambda phantom: phantom.fail_gemm(CUBLAS_EXECUTION_FAILED),
    "poison": lambda phantom: phantom.fail_after(0),
    "abort": lambda phantom: os.abort(),
}
"""By name, what a phantom GPU is made to do from now on."""

LASTING = ("crowded", "full", "less free", "more free", "slow", "poison")
"""Faults that last until the phantom is reset; the others hit one call."""


def at_forward(model: nn.Module, number: int, happens: Callable[[], None]) -> None:
    """Has something happen once, before the `number`-th forward pass from now that runs, in the middle of a search.

    Forward passes that are only traced do not count.
    """
    numbers: Iterator[int] = count(1)

    def hook(running: nn.Module, *_: object) -> None:
        if not isinstance(next(running.parameters()), FakeTensor) and next(numbers) == number:
            happens()

    model.register_forward_pre_hook(hook)


def make_workload(fault: str, at: int, gib: float = 4, once: str | None = None) -> autofit.Workload:
    """Returns a workload in whose `at`-th forward pass `fault` strikes.

    Args:
        fault: a name of `FAULTS`.
        at: counted from when the workload is made.
        gib: size of the card that it fills.
        once: a file that is made when it strikes; where it is there already, nothing strikes any more.
    """
    workload, mark = tabular(gib), None if once is None else Path(once)

    def strike() -> None:
        if mark is not None:
            mark.touch()
        FAULTS[fault](Phantom())

    if mark is None or not mark.exists():
        at_forward(workload.model, at, strike)
    return workload
