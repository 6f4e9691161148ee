"""The memory budget of an evaluation between epochs: that of the training, less what the training keeps in memory."""

import torch

from autofit.core.briefing import Options
from autofit.core.budget import Budget
from autofit.core.errors import NothingFits
from autofit.core.units import format_bytes
from autofit.devices.base import Device
from autofit.probing.static_bytes import storage_bytes
from autofit.workloads.optimizer_set import state_tensors
from autofit.workloads.workload import Workload


def budget_of(workload: Workload, device: Device, options: Options, *, varies: bool) -> Budget:
    """Returns the memory budget of a search, with its arithmetic in words.

    If the workload is the evaluation of a training, what the training keeps beside the model is taken off: above all
    the state of the optimizer, which stays on the device while the model is evaluated.

    Args:
        workload: what is searched.
        device: where it runs.
        options: options of the search.
        varies: whether batches have varying shapes.

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
