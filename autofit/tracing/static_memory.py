"""Memory that a training step keeps at any batch size, found without a step, for steps that cannot be traced."""

from collections.abc import Iterable, Iterator
from contextlib import suppress

import torch
from torch import nn

from autofit.memory.breakdown import Part
from autofit.memory.trace import Kind
from autofit.tracing.fake_copy import fake_mode, fake_workload
from autofit.workloads.loss import LossRule
from autofit.workloads.workload import Workload, each_of, state_tensors


def find_fixed_parts(workload: Workload) -> tuple[Part, ...]:
    """Returns parameters, buffers, gradients and optimizer state with their bytes.

    The optimizer state is that after one update of a fake copy. It is left out if the copy cannot be updated.
    """
    model = workload.model
    found = [(Kind.PARAMETER, _bytes(model.parameters())), (Kind.BUFFER, _bytes(model.buffers()))]
    if workload.training:
        found.append((Kind.GRADIENT, _bytes(p for p in model.parameters() if p.requires_grad)))
        with suppress(Exception):  # a custom optimizer may need more than gradients
            found.append((Kind.OPTIMIZER_STATE, _bytes(_updated(workload))))
    return tuple(Part(name=kind.value, size_bytes=size) for kind, size in found if size)


def _updated(workload: Workload) -> Iterator[torch.Tensor]:
    """Yields the optimizer's state tensors after an update of a fake copy of the model."""
    unknown = LossRule("", lambda model, batch: torch.empty(()), inferred=False, about="")
    with fake_mode():
        copied = fake_workload(workload, unknown, (), torch.device("cpu")).workload
        optimizer = copied.make_optimizer()
        for parameter in copied.model.parameters():
            parameter.grad = torch.empty_like(parameter) if parameter.requires_grad else None
        if optimizer is not None:
            for each in each_of(optimizer):
                each.step()
            yield from state_tensors(optimizer)


def _bytes(tensors: Iterable[torch.Tensor | nn.Parameter]) -> int:
    """Returns the total bytes of the distinct storages."""
    storages = {storage._cdata: storage.nbytes() for storage in (tensor.untyped_storage() for tensor in tensors)}
    return sum(storages.values())
