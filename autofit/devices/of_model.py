"""The device to tune for: the requested one, or the one that the model is on."""

import torch
from torch import nn

from autofit.core.errors import WorkloadError
from autofit.core.wording import a_type
from autofit.devices import choose
from autofit.devices.base import Device


def device_for(model: nn.Module, requested: str | torch.device | None) -> Device:
    """Returns the requested device, or the model's.

    Raises:
        UsageError: the device is not available on this machine.
        WorkloadError: `model` is not a module, or is on the CPU although an accelerator is available.
    """
    if requested is not None:
        return choose(str(requested))
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f"model is {a_type(model)}; expected a torch.nn.Module. Pass the model first, the loader second."
        )
    found, best = _home(model), choose()
    if found.type == "cpu" and not best.is_host:
        raise WorkloadError(
            f"the model is on the CPU, while {best.name()} ({best.type}) is available. Move it first: "
            f'model.to("{best.type}"), and make the optimizer afterwards; or pass device="cpu" to tune for the CPU.'
        )
    return choose(str(found))


def device_it_is_on(model: nn.Module, requested: str | torch.device | None) -> Device | None:
    """Returns the model's device; None if another device is requested, which needs a stand-in.

    Raises:
        WorkloadError: `model` is not a module.
    """
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f'found {a_type(model)}; expected a factory such as "train.py:make_workload", or a '
            "torch.nn.Module and its loader."
        )
    found = _home(model)
    if requested is not None and str(requested).partition(":")[0] != found.type:
        return None
    return choose(str(found))


def _home(model: nn.Module) -> torch.device:
    return next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))
