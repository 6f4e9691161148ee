"""Activation offload: keeps what the backward pass needs in main memory instead of on the device."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.core.units import format_bytes
from autofit.strategies.base import Facts, Offer, Phase, Strategy, unknown_value
from autofit.strategies.layout import divides_parameters
from autofit.strategies.undo import Undo
from autofit.torch_internals import is_traceable_wrapper_subclass, storage_id
from autofit.workloads.step import Draft
from autofit.workloads.tree import Batch, tensors

KNOB = "activation_offload"
OWN_MEMORY = "own_memory"
"""Capability of a device whose memory is not the machine's main memory."""
SMALLEST_BYTES = 1024
"""Smaller tensors stay on the device: a copy would cost more than it frees."""
MOST_IN_FLIGHT = 5
"""Number of tensors whose copy to main memory may be unfinished. Their memory on the device is not free yet."""
HOST_SHARE = 0.8
"""Share of the available main memory that activations may take."""
SMALLEST_SHARE = 0.05
"""Minimum size of main memory for activations, as a share of the device's memory budget. Less cannot free much."""


class ActivationOffload(Strategy):
    """Copies the tensors that autograd saves in forward to main memory, and back when backward needs them.

    The values do not change. The copies to pinned main memory run on a second stream, beside the forward pass. The
    copies back run on the stream of the backward pass, which waits for them.
    """

    name = "activation_offload"
    about = "keeps activations in main memory until the backward pass needs them"
    cost = "copies between the device and main memory"
    effect = "exact"
    phase = Phase.ARITHMETIC
    owns = {KNOB: False}

    def offer(self, facts: Facts) -> Offer:
        """Returns the knob for a device with its own memory, if the machine has main memory to spare."""
        if not facts.training:
            return self.refuse("inference has no backward pass and keeps no activations")
        if OWN_MEMORY not in facts.capabilities:
            return self.refuse(
                f"this {facts.device_type} device computes in main memory, where activations are already", "device"
            )
        free, budget = facts.host_memory_bytes, facts.memory_budget_bytes
        if free is not None and budget is not None and HOST_SHARE * free < SMALLEST_SHARE * budget:
            return self.refuse(
                f"{format_bytes(int(HOST_SHARE * free))} of main memory can be used for activations, less than "
                f"{SMALLEST_SHARE:.0%} of the memory budget of {format_bytes(budget)}"
            )
        knob = Knob(
            name=KNOB,
            values=(False, True),
            default=False,
            about="whether activations wait in main memory for the backward pass",
            # A step that moves what it computes is often bound by the bus (reference/strategy_tuners.md 5: 10 to 50 %).
            expected=(1.0, 0.7),
            # What one layer computes with stays on the device, and so do its temporary tensors.
            growth=(1.0, 0.25),
        )
        return Offer((knob,))

    def conflict(self, plan: Plan) -> str | None:
        """Returns why it cannot be applied where parameters are divided among ranks, or None."""
        if not self.acts(plan) or (layout := divides_parameters(plan)) is None:
            return None
        reason = "weights gathered for one block, or divided, would be moved to the host with its activations"
        return f"not with {layout}: {reason}"

    @contextmanager
    def apply(self, plan: Plan, draft: Draft) -> Iterator[None]:
        """Makes each forward pass of the draft offload what it saves, until the context is left."""
        if draft.optimizer is None:
            raise unknown_value(KNOB, True, "False, since inference keeps no activations")
        compute, store = draft.loss.compute, HostStore(draft.device, draft.host_memory_bytes)

        def offloading(model: nn.Module, batch: Batch) -> torch.Tensor:
            with store.saving(model, batch):
                return compute(model, batch)

        with Undo() as undo:
            undo.set(draft, "loss", replace(draft.loss, compute=offloading))
            yield


class HostStore:
    """Moves saved tensors to main memory and counts their bytes.

    A tensor that several operators save is moved once. Parameters, buffers, the batch, views of these, small tensors
    and tensors that are not plain memory stay where they are. `limit_bytes` is the main memory that is available; None
    does not limit what is moved.
    """

    def __init__(self, device: torch.device, limit_bytes: int | None = None) -> None:
        self.held_bytes = 0
        self._device_type = device.type
        self._limit_bytes = None if limit_bytes is None else int(HOST_SHARE * limit_bytes)
        self._staying: set[int] = set()
        self._moved: dict[tuple[Any, ...], tuple[StorageWeakRef, _OnHost]] = {}
        self._in_flight: deque[tuple[torch.Tensor, torch.Event | None]] = deque()
        self._side_stream: torch.Stream | None = None

    @contextmanager
    def saving(self, model: nn.Module, batch: Batch) -> Iterator[None]:
        """Moves what autograd saves while the context is open: one forward pass of `model` on `batch`."""
        staying = chain(model.parameters(), model.buffers(), tensors(batch))
        self._staying = {_storage_key(tensor) for tensor in staying if tensor.layout is torch.strided}
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._save, lambda saved: saved()):
                yield
        finally:
            self._land(0)
            self._moved.clear()

    def _save(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """Returns what the graph holds in place of a saved tensor: a function that returns it, on its device."""
        if not self._moves(tensor):
            return _on_device(tensor)
        layout = (tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        key = (_storage_key(tensor), tensor._version, *layout)
        known = self._moved.get(key)
        if known is not None and not known[0].expired():  # type: ignore[no-untyped-call]  # torch has no types here
            return known[1]
        self._land(MOST_IN_FLIGHT - 1)
        saved, weak = self._move(tensor), StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._moved[key] = (weak, saved)
        return saved

    def _moves(self, tensor: torch.Tensor) -> bool:
        if tensor.device.type != self._device_type or tensor.layout is not torch.strided:
            return False
        if isinstance(tensor, nn.Parameter) or is_traceable_wrapper_subclass(tensor) or tensor.nbytes < SMALLEST_BYTES:
            return False
        # An expanded tensor has more elements than memory, and its copy would have memory for each of them.
        return tensor.nbytes <= tensor.untyped_storage().nbytes() and _storage_key(tensor) not in self._staying

    def _move(self, tensor: torch.Tensor) -> "_OnHost":
        """Starts the copy of a tensor to main memory.

        Raises:
            MemoryError: main memory does not hold it too.
        """
        real = type(tensor) is torch.Tensor  # a trace runs on fake tensors, without streams and pinned memory
        pinned = real and torch.accelerator.is_available()
        # Pinned memory is allocated in powers of two.
        size = 1 << (tensor.nbytes - 1).bit_length() if pinned else tensor.nbytes
        if real and self._limit_bytes is not None and self.held_bytes + size > self._limit_bytes:
            raise MemoryError(
                f"activations of {format_bytes(self.held_bytes + size)} do not fit in main memory, of which "
                f"{format_bytes(self._limit_bytes)} may be used for them"
            )
        host = torch.empty_like(tensor, device="cpu", pin_memory=pinned)
        if not tensor.is_cpu and host.stride() != tensor.stride():
            # A view with gaps, such as the queries in one product with keys and values. torch would copy it through
            # main memory that is not pinned, and wait for it.
            tensor = tensor.detach().clone()
        event = self._copy_beside(tensor, host) if pinned and not tensor.is_cpu else None
        if event is None:
            host.copy_(tensor)
        self._in_flight.append((tensor, event))
        return _OnHost(self, host, tensor.device, size)

    def _copy_beside(self, tensor: torch.Tensor, host: torch.Tensor) -> torch.Event:
        """Copies on a second stream, once the work that is queued so far is done; returns the end of the copy."""
        if self._side_stream is None:
            self._side_stream = torch.Stream(tensor.device)
        side = self._side_stream
        side.wait_stream(torch.accelerator.current_stream(tensor.device))
        with side:
            host.copy_(tensor, non_blocking=True)
        return side.record_event()

    def _land(self, most: int) -> None:
        """Lets all but the last `most` tensors go; the device waits for their copies before it uses their memory.

        The tensor is released after the wait is queued on its own stream, on which its memory is reused. Its content
        and that of the copy are therefore safe without `record_stream`, and what memory is reused does not depend on
        timing.
        """
        while len(self._in_flight) > most:
            tensor, event = self._in_flight.popleft()
            if event is not None:
                torch.accelerator.current_stream(tensor.device).wait_event(event)


class _OnHost:
    """A saved tensor in main memory. A call returns a copy on its device."""

    __slots__ = ("_device", "_host", "_size", "_store")

    def __init__(self, store: HostStore, host: torch.Tensor, device: torch.device, size: int) -> None:
        self._store, self._host, self._device, self._size = store, host, device, size
        store.held_bytes += size

    def __del__(self) -> None:
        self._store.held_bytes -= self._size

    def __call__(self) -> torch.Tensor:
        return self._host.to(self._device, non_blocking=True)


def _on_device(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Returns a function that returns a tensor that stays, and raises RuntimeError if it was changed in place.

    With hooks on saved tensors, autograd does not check this itself.
    """
    # An operator's own result refers to the operator, which would hold itself. Without the history it does not.
    kept, version = tensor.detach(), tensor._version

    def unchanged() -> torch.Tensor:
        if kept._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"{list(kept.shape)} is at version {kept._version}; expected version {version}"
            )
        return kept

    return unchanged


def _storage_key(tensor: torch.Tensor) -> int:
    """Returns a number that tensors with the same memory share."""
    return storage_id(tensor.untyped_storage())
