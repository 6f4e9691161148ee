"""The environment of a workload on a device. Measurements are compared only within the same environment."""

import platform
from collections.abc import Sequence

import torch

from autofit.core.environment import Environment
from autofit.devices.base import Device
from autofit.identity.identity import Reached, autofit_version, settings, signature
from autofit.workloads.batches import BatchSource
from autofit.workloads.loss import LossRule
from autofit.workloads.workload import Workload


def environment_of(
    workload: Workload,
    device: Device,
    source: BatchSource,
    loss: LossRule,
    optimizer: torch.optim.Optimizer | None,
    looks: Sequence[Reached] = (),
    *,
    present: bool = True,
) -> Environment:
    """Returns the environment, which decides whether measurements may be compared.

    Args:
        workload: the workload. Its model structure, code and options are included; its weights are not.
        device: the device on which it runs.
        source: its batches.
        loss: the rule that computes its loss.
        optimizer: the optimizer of a step.
        looks: the facts reached from the workload before any step and after some steps.
        present: whether the device is on this machine. Threads and driver versions are then included.
    """
    found = {"python": platform.python_version(), "torch": torch.__version__, "autofit": autofit_version()}
    return Environment(
        workload=signature(workload.model, source.structure(), loss.name),
        device_type=device.type,
        device_name=device.name(),
        capacity_bytes=device.capacity_bytes(),
        threads=torch.get_num_threads() if present else None,
        versions=found | device.versions() if present else found,
        settings=settings(workload, optimizer, device.type, source, looks),
    )
