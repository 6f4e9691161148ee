"""Placement: moves the user's model to the device, or checks that it is there."""

from torch import nn

from autofit.core.errors import WorkloadError
from autofit.devices.base import Device
from autofit.workloads.workload import Workload


def place(workload: Workload, device: Device, may_move: bool) -> None:
    """Moves the model and a loss module to `device` if `may_move`; otherwise checks that the model is there.

    Raises:
        WorkloadError: the model is on another device, or on several.
    """
    model, wanted = workload.model, device.torch_device
    if may_move:
        model.to(wanted)
        if isinstance(workload.loss_fn, nn.Module):
            workload.loss_fn.to(wanted)
        return
    found = {t.device for t in (*model.parameters(), *model.buffers())}
    if any(t.type != wanted.type or (wanted.index is not None and t.index != wanted.index) for t in found):
        names = ", ".join(sorted(map(str, found)))
        raise WorkloadError(
            f"the model is on {names}, but it is to be tuned on {wanted}. Move it first with model.to({str(wanted)!r}) "
            f"and create the optimizer afterwards; or pass device={names.split(',')[0]!r}."
        )
