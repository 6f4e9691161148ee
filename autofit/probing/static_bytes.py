"""Memory that stays allocated between two training steps."""

from collections.abc import Iterable

import torch

from autofit.workloads.optimizer_set import state_tensors
from autofit.workloads.step import TrainStep
from autofit.workloads.tree import pieces


def static_bytes(step: TrainStep) -> int:
    """Returns the bytes of the distinct storages that stay allocated between two steps, on the step's device."""
    model, optimizer = step.draft.model, step.draft.optimizer
    found: list[torch.Tensor] = [*model.parameters(), *model.buffers()]
    found += [p.grad for p in model.parameters() if p.grad is not None and p.grad.layout is torch.strided]
    if optimizer is not None:
        found += state_tensors(optimizer)
    return storage_bytes(found, step.draft.device)


def storage_bytes(found: Iterable[torch.Tensor], device: torch.device) -> int:
    """Returns the bytes of the distinct storages of tensors, of those that are on a device of this type."""
    here = [piece for t in found if t.device.type == device.type for piece in pieces(t)]
    storages = {storage.data_ptr(): storage.nbytes() for storage in (piece.untyped_storage() for piece in here)}
    return sum(storages.values())
