"""Ranks without peers: one rank's share of a training in a process of its own, and what a recorder sees of it.

On a fake process group every collective returns at once, with nothing from other ranks. Memory is that of the real
step, since torch allocates the same tensors. Nothing of this needs a device.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import distributed

from autofit.core.errors import UsageError
from autofit.strategies.undo import Undo
from autofit.torch_internals import RESULT_PROPAGATION, fake_store, result_propagator, without_modes
from autofit.tracing.recorder import Recorder
from autofit.workloads.step import Ranks, rows_of

FAKE = "fake"
"""torch's name of the back end without peers."""
GATHERS = ("all_gather_into_tensor", "all_gather_single")
"""Names of the function that gathers into one tensor, of which the second is new in torch 2.13."""


@contextmanager
def fake_ranks(count: int, number: int = 0, device_type: str = "cpu") -> Iterator[Ranks]:
    """Makes this process one of several ranks that do not exist, until the context is left.

    Args:
        count: number of ranks.
        number: number of this rank, from 0.
        device_type: torch's name of the devices of the ranks.

    Raises:
        UsageError: this torch has no process groups, or this process already belongs to one.
    """
    check_without_group()
    store = fake_store()
    with Undo() as undo:
        undo.enter_context(fakes_allowed(device_type))
        with without_modes():
            distributed.init_process_group(FAKE, store=store, rank=number, world_size=count)
            undo.callback(distributed.destroy_process_group)
            group = distributed.group.WORLD
            assert group is not None, "it was just made"
            ranks = Ranks.of(group, device_type, is_fake=True)
            if rows_of(count) > 1:
                ranks = ranks.in_rows(lambda row: distributed.new_group(row, backend=FAKE))
        yield ranks


@contextmanager
def fakes_allowed(device_type: str) -> Iterator[None]:
    """Allows groups of ranks that do not exist, for devices of a type, until the context is left.

    Meanwhile tensors are gathered into flat memory, as `SyncBatchNorm` needs it: those groups divide a result by its
    first dimension only.
    """
    fake_store()
    known = distributed.Backend.backend_capability
    with Undo() as undo:
        undo.replace(known, FAKE, [*dict.fromkeys((*known[FAKE], device_type))])
        for name in GATHERS:
            if gather := getattr(distributed, name, None):
                undo.set(distributed, name, partial(_flat, gather))
        yield


def _flat(gather: Callable[..., Any], output: torch.Tensor, gathered: torch.Tensor, *given: Any, **named: Any) -> Any:
    """Gathers a tensor into flat memory."""
    return gather(output.view(-1), gathered.reshape(-1), *given, **named)


def check_without_group() -> None:
    """Checks that this process can be one of several ranks that do not exist.

    Raises:
        UsageError: this torch has no process groups, or this process already belongs to one.
    """
    if not distributed.is_available():
        raise UsageError("found a torch without torch.distributed; expected one with it, for several ranks.")
    if distributed.is_initialized():
        raise UsageError(
            "found a process group in this process; expected none, because several ranks are estimated without the "
            "others. Estimate before torch.distributed.init_process_group, or pass a factory, which runs in a process "
            "of its own and starts no group either."
        )


@contextmanager
def recording_shards(recorder: Recorder, device_type: str) -> Iterator[None]:
    """Makes `recorder` record the operators of sharded tensors by what they run on this rank.

    The operators that only find the shapes of global results do not count. Gathered weights are released and allocated
    by resizing their storages, which is not an operator. On an accelerator, some are gathered on streams of their own.
    The result of a collective that is waited for is the tensor itself, which is a copy only on fake tensors.
    """
    from torch.distributed.tensor import DTensor  # noqa: PLC0415  # takes half a second

    owner: Any = result_propagator()
    resize, propagate = torch.UntypedStorage.resize_, getattr(owner, RESULT_PROPAGATION)
    waiting, run = torch.ops._c10d_functional.wait_tensor.default, recorder.run

    def ran(func: Any, args: Any, kwargs: Any) -> Any:
        return args[0] if func is waiting else run(func, args, kwargs)

    def resized(storage: torch.UntypedStorage, size: int) -> Any:
        found = resize(storage, size)
        recorder.resized(storage)
        return found

    def propagated(*args: Any, **kwargs: Any) -> Any:
        before, recorder.paused = recorder.paused, True
        try:
            return propagate(*args, **kwargs)
        finally:
            recorder.paused = before

    with Undo() as undo:
        undo.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", module="torch.distributed")  # a training gives them too
        undo.set(recorder, "wrappers", (DTensor,))
        undo.set(recorder, "run", ran)
        if device_type != "cpu":
            undo.set(recorder, "stream", lambda: torch.get_device_module(device_type).current_stream().stream_id)
        undo.set(torch.UntypedStorage, "resize_", resized)
        undo.set(owner, RESULT_PROPAGATION, propagated)
        yield
