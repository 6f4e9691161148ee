"""FakeWorkload: a copy of the user's objects with fake tensors, which have shapes, types and strides, but no data.

The user's own objects are only read. A single `copy.deepcopy` makes the copy, so all references are preserved: tied
weights, an optimizer's parameters, a loss module that shares layers with the model.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from autofit.core.errors import WorkloadError
from autofit.torch_internals import (
    FakeTensor,
    FakeTensorMode,
    is_traceable_wrapper_subclass,
    storage_id,
    without_tensor_subclasses,
)
from autofit.workloads.counted_batches import Counted, counted
from autofit.workloads.loss import LossRule, resolve_loss
from autofit.workloads.tree import Batch, map_tensors
from autofit.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class FakeWorkload:
    """A workload whose tensors are fake.

    Attributes:
        workload: the workload with the copied model, and a copied optimizer if the user gave an instance.
        loss: the loss rule for the copied model.
    """

    workload: Workload
    loss: LossRule

    def initial_tensors(self) -> Iterator[tuple[torch.Tensor, bool]]:
        """Yields each tensor that is on the device before the first step, and whether it is a parameter.

        The order is that in which `Module.to` moves them to a device.
        """
        yield from _in_order(self.workload.model)
        if isinstance(self.workload.loss_fn, nn.Module):
            yield from _in_order(self.workload.loss_fn)


def fake_workload(workload: Workload, loss: LossRule, batch: Batch, device: torch.device) -> FakeWorkload:
    """Returns a copy of a workload with fake tensors on `device`; call it under `FakeTensorMode`.

    Tensors on the host beside a model on an accelerator stay on the host. The batch is a fake one, for resolving the
    loss of a copied loss module.

    Raises:
        WorkloadError: a parameter is not a plain strided tensor, or the objects cannot be copied.
    """
    modules = (workload.model, workload.loss_fn if isinstance(workload.loss_fn, nn.Module) else None)
    given = workload.optimizer
    optimizer = given if isinstance(given, (torch.optim.Optimizer, Mapping)) else None
    first = next((tensor for tensor, _ in _in_order(workload.model)), None)
    copier = _Copier(home="cpu" if first is None else first.device.type, target=device)
    memo: dict[int, Any] = {}
    for module in modules:
        for tensor, _ in _in_order(module) if module is not None else ():
            memo[id(tensor)] = copier.fake_state(tensor)
    try:
        with copier:
            model, loss_fn, optimizer = copy.deepcopy((*modules, optimizer), memo)
    except Exception as error:
        raise WorkloadError(
            f"the model or its optimizer cannot be copied: {type(error).__name__}: {error}. Expected objects that "
            "copy.deepcopy accepts. Define __deepcopy__ in their class, or keep them outside the model."
        ) from error
    changed = replace(
        workload, model=model, loss_fn=loss_fn or workload.loss_fn, optimizer=optimizer or workload.optimizer
    )
    if loss_fn is not None:
        loss = resolve_loss(model, batch, loss_fn=loss_fn)
    return FakeWorkload(changed, loss)


def fake_batch(batch: Batch | Counted, size: int, device: torch.device) -> Batch:
    """Returns `batch` with fake tensors on `device` and `size` samples; call it under `FakeTensorMode`.

    Raises:
        WorkloadError: the batch must be resized, but a tensor in it does not have one entry per sample.
    """
    batch, samples = counted(batch)

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        shape = list(tensor.shape)
        if size != samples:
            if not shape or shape[0] != samples:
                raise WorkloadError(
                    f"found a tensor of shape {shape} in a batch of {samples}; expected one entry per sample, so that "
                    f"the batch can be resized to {size}. Give a batch of size {size}."
                )
            shape[0] = size
        channels_last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
        layout = torch.channels_last if channels_last and not tensor.is_contiguous() else torch.contiguous_format
        return torch.empty(shape, dtype=tensor.dtype, device=device, memory_format=layout)

    return map_tensors(batch, fake)


def _in_order(module: nn.Module) -> Iterator[tuple[torch.Tensor, bool]]:
    """Yields parameters and buffers in the order of `Module.to`, children first."""
    for child in module.children():
        yield from _in_order(child)
    yield from ((tensor, True) for tensor in module.parameters(recurse=False))
    yield from ((tensor, False) for tensor in module.buffers(recurse=False))


class _Copier(TorchFunctionMode):
    """Makes `copy.deepcopy` of a tensor return a fake tensor."""

    def __init__(self, home: str, target: torch.device) -> None:
        super().__init__()
        self._home, self._target = home, target
        self._shared: dict[int, torch.Tensor] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Replaces `Tensor.__deepcopy__`; everything else runs unchanged."""
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = self.fake(tensor)
            return memo[id(tensor)]
        with without_tensor_subclasses():
            return func(*args, **(kwargs or {}))

    def fake_state(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a fake parameter or buffer, with the attributes that the user gave the real one."""
        copied = self.fake(tensor, self._target)
        if isinstance(tensor, nn.Parameter):
            copied = nn.Parameter(copied, requires_grad=tensor.requires_grad)
        vars(copied).update({name: value for name, value in vars(tensor).items() if name not in vars(copied)})
        return copied

    def fake(self, tensor: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
        """Returns a fake tensor of the same size, strides and type. Tensors that share memory still share it."""
        if is_lazy(tensor) or tensor.layout is not torch.strided or is_traceable_wrapper_subclass(tensor):
            raise WorkloadError(
                f"found a tensor of type {type(tensor).__name__} and layout {tensor.layout}; expected plain tensors. "
                "No others can be traced: run autofit tune, which measures."
            )
        if isinstance(tensor, FakeTensor):
            return tensor
        storage = tensor.untyped_storage()
        key, whole = storage_id(storage), storage.nbytes() == tensor.numel() * tensor.element_size()
        # Scalars such as step counters stay on the host, where the optimizer keeps them.
        moved = tensor.device.type == self._home and (self._home == self._target.type or tensor.dim() > 0)
        device = device or (self._target if moved else tensor.device)
        known = self._shared.get(key)
        if known is None and whole:
            made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
            self._shared[key] = made
            return made
        if known is None:
            known = self._shared[key] = torch.empty(storage.nbytes(), dtype=torch.uint8, device=device)
        flat = torch.empty(0, dtype=tensor.dtype, device=device)
        return flat.set_(known.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())


def fake_mode() -> FakeTensorMode:
    """Returns the mode to trace in. It accepts real tensors that the user's code holds, and reads only their shape."""
    return FakeTensorMode(allow_non_fake_inputs=True)
