"""The environment of a workload on a device: measurements are compared only where it is the same."""

import platform
from collections.abc import Sequence

import torch

from autofit.core.environment import Environment
from autofit.devices.base import Device
from autofit.identity.identity import Reached, own_version, settings, signature
from autofit.workloads.batches import BatchSource
from autofit.workloads.loss import LossRule
from autofit.workloads.weights import WEIGHING, Weighing
from autofit.workloads.workload import Workload


def environment_of(
    workload: Workload,
    device: Device,
    source: BatchSource,
    loss: LossRule,
    optimizer: torch.optim.Optimizer | None,
    looks: Sequence[Reached] = (),
    weighing: Weighing | None = None,
    *,
    present: bool = True,
) -> Environment:
    """Returns what decides whether measurements may be compared.

    Args:
        workload: its model, code and options count; its weights do not.
        device: where it runs.
        source: its batches.
        loss: how its loss is computed.
        optimizer: the optimizer of a step.
        looks: what the workload reached before any step of it ran, and when some had run.
        weighing: how micro batches are weighed; None where they all count alike.
        present: whether the device is here, so that threads and driver count too.
    """
    found = {"python": platform.python_version(), "torch": torch.__version__, "autofit": own_version()}
    weighed = {} if weighing is None else {WEIGHING: str(weighing)}
    return Environment(
        workload=signature(workload.model, source.structure(), loss.name),
        device_type=device.type,
        device_name=device.name(),
        capacity_bytes=device.capacity_bytes(),
        threads=torch.get_num_threads() if present else None,
        versions=found | device.versions() if present else found,
        settings=settings(workload, optimizer, device.type, source, looks) | weighed,
    )
