"""The device to tune for: the one that the user asks for, or the one that the model is on."""

import torch
from torch import nn

from autofit.core.errors import UsageError, WorkloadError
from autofit.devices import choose
from autofit.devices.base import Device


def device_for(model: nn.Module, asked: str | torch.device | None) -> Device:
    """Returns the device that the user asked for, or the model's.

    Raises:
        UsageError: no such device is available here.
        WorkloadError: this is no module, or it is on the CPU although there is an accelerator.
    """
    if asked is not None:
        return choose(str(asked))
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f"model is a {type(model).__name__}; expected a torch.nn.Module. Pass the model first, the loader second."
        )
    found, best = _home(model), choose()
    if found.type == "cpu" and not best.is_host:
        raise WorkloadError(
            f"the model is on the CPU, while {best.name()} ({best.type}) is available. Move it first: "
            f'model.to("{best.type}"), and make the optimizer afterwards; or pass device="cpu" to tune for the CPU.'
        )
    return choose(str(found))


def device_it_is_on(model: nn.Module, asked: str | torch.device | None) -> Device:
    """Returns the model's device, the only one that can be estimated for in the user's own process.

    Raises:
        UsageError: the user asked for another device.
        WorkloadError: this is no module.
    """
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f'found a {type(model).__name__}; expected a factory such as "train.py:make_workload", or a '
            "torch.nn.Module and its loader."
        )
    found = _home(model)
    if asked is not None and str(asked).partition(":")[0] != found.type:
        raise UsageError(
            f"found device={str(asked)!r} for a model on {found}. A device that is not here needs a stand-in, which "
            "would stay in this process; expected a factory, which runs in a process of its own: "
            f'autofit.estimate("train.py:make_workload", device={str(asked)!r}).'
        )
    return choose(str(found))


def _home(model: nn.Module) -> torch.device:
    return next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))
