"""Memory that stays allocated between two training steps, and what that leaves of the budget for an evaluation."""

from collections.abc import Iterable

import torch

from autofit.core.briefing import Options
from autofit.core.budget import Budget
from autofit.core.errors import NothingFits
from autofit.core.units import format_bytes
from autofit.devices.base import Device
from autofit.workloads.step import TrainStep
from autofit.workloads.tree import pieces
from autofit.workloads.workload import Workload, state_tensors


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


def budget_of(workload: Workload, device: Device, options: Options, *, varies: bool) -> Budget:
    """Returns the memory budget of a search, with its arithmetic in words.

    If the workload is the evaluation of a training, what the training keeps beside the model is taken off: above all
    the state of the optimizer, which stays on the device while the model is evaluated.

    Raises:
        UsageError: as `Device.budget`.
        NothingFits: the training keeps as much as the budget allows.
    """
    budget = device.budget(options.memory_budget, varies)
    if not options.resident_bytes:
        return budget
    kept = max(options.resident_bytes - _held_bytes(workload, device), 0)
    text = f"{format_bytes(budget.memory_bytes)} of the training - {format_bytes(kept)} that it keeps beside the model"
    if kept >= budget.memory_bytes:
        raise NothingFits(f"nothing is left of the budget for evaluation: {text}. Give a larger memory budget.")
    left = budget.memory_bytes - kept
    return budget.model_copy(update={"memory_bytes": left, "memory_note": f"{text} = {format_bytes(left)}"})


def _held_bytes(workload: Workload, device: Device) -> int:
    """Returns the resident bytes that the readings of a probe of `workload` contain.

    These are the model, and on a device that counts all live tensors also the state that the user's optimizer has now.
    """
    found: list[torch.Tensor] = [*workload.model.parameters(), *workload.model.buffers()]
    if device.live_bytes() is not None and isinstance(workload.optimizer, torch.optim.Optimizer):
        found += state_tensors(workload.optimizer)
    return storage_bytes(found, device.torch_device)
