"""Identity: digests of a workload's structure, code, options and flags. Equal ones make measurements comparable."""

import hashlib
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self

import torch
from torch import nn
from torch.utils.data import DataLoader

from autofit.core.environment import UPDATE, UPDATE_FN, Environment
from autofit.devices.base import Device
from autofit.identity.reach import ReachedFacts, plain, reach
from autofit.workloads.batch_algebra import describe
from autofit.workloads.batches import BatchSource
from autofit.workloads.loss import LossRule
from autofit.workloads.micro_batch_weights import COLLATED, SAMPLES
from autofit.workloads.workload import Workload, names_of


def signature(model: nn.Module, structure: str, loss: str) -> str:
    """Returns "model-data": short digests of the model's structure, and of the batch structure with the loss.

    Values are not included, so a model keeps its signature while it trains.
    """
    return f"{model_signature(model)}-{digest([structure, loss])}"


def model_signature(model: nn.Module) -> str:
    """Returns a short digest of the names, classes, shapes and dtypes of a model's modules and parameters."""
    modules = [f"{name}:{type(module).__qualname__}" for name, module in model.named_modules()]
    return digest(modules + [f"{n}:{tuple(p.shape)}:{p.dtype}:{p.requires_grad}" for n, p in model.named_parameters()])


@dataclass(frozen=True, slots=True)
class Reached:
    """The code and the plain attributes that a workload reaches (see `autofit.identity.reach`).

    Attributes:
        step: facts reached from the model, loss or step function, and optimizer recipe.
        data: facts reached from the data set, samplers, collate function and worst case.
    """

    step: ReachedFacts
    data: ReachedFacts

    @classmethod
    def of(cls, workload: Workload) -> Self:
        """Returns what a workload reaches now. Takes milliseconds and changes nothing."""
        names = ("model", "loss_fn", "step_fn", "update_fn", "optimizer")
        step = reach(**{name: getattr(workload, name) for name in names})
        parts = ("dataset", "collate_fn", "sampler", "batch_sampler") if isinstance(workload.loader, DataLoader) else ()
        data = {name: getattr(workload.loader, name) for name in parts} or {"dataset": workload.loader}
        return cls(step, reach(**data, length=_length(data["dataset"]), worst_case=workload.worst_case))

    def digests(self, others: Sequence[Self]) -> dict[str, str]:
        """Returns digests of the facts that are equal in all `others`. State that steps change is left out."""
        step, data = self.step, self.data
        for other in others:
            step, data = step.stable(other.step), data.stable(other.data)
        return {
            "code": digest(step.lines("code")),
            "attributes": digest(step.lines("attributes")),
            "data": digest([*data.lines("code"), *data.lines("attributes")]),
        }


def settings(
    workload: Workload,
    optimizer: torch.optim.Optimizer | None,
    device_type: str,
    source: BatchSource,
    others: Sequence[Reached] = (),
) -> dict[str, str]:
    """Returns other settings that affect measurements, as names and short digests.

    `others` are the facts reached before any step, and after some steps.
    """
    found = {
        "mode": workload.mode,
        "max_grad_norm": str(workload.max_grad_norm),
        **Reached.of(workload).digests(others),
        "worst_sample": digest([describe([source.worst(source.small_size)])]),
        "flags": digest(_flags(device_type)),
    }
    if workload.update_fn is not None:
        found[UPDATE] = UPDATE_FN
    if not source.has_rows:
        found[SAMPLES] = COLLATED
    if optimizer is not None:
        found["optimizer"] = names_of(optimizer)
        found["optimizer_options"] = digest(list(_options(optimizer)))
    return found


def autofit_version() -> str:
    """Returns the version of the installed distribution, or "source"."""
    try:
        return version("torch-autofit")
    except PackageNotFoundError:
        return "source"


def digest(lines: Sequence[str]) -> str:
    """Returns 8 hexadecimal digits of a hash of `lines`."""
    return hashlib.sha256("\n".join(lines).encode(errors="backslashreplace")).hexdigest()[:8]


def _length(data: Any) -> int | None:
    try:
        return len(data)
    except Exception:  # noqa: BLE001  # the user's method may raise any exception
        return None


def _options(optimizer: torch.optim.Optimizer) -> Iterator[str]:
    """Yields the options of each group, except those that a schedule changes and measurements do not depend on."""
    for group in optimizer.param_groups:
        cyclic = {"momentum", "betas"} if {"base_momentum", "max_momentum"} & group.keys() else set()
        for name in sorted(group.keys() - cyclic - {"params", "lr", "initial_lr"}):
            yield f"{name}={plain(group[name]) or type(group[name]).__qualname__}"
        yield f"of {len(group['params'])} parameters"


def _flags(device_type: str) -> list[str]:
    return [
        f"matmul={torch.backends.cuda.matmul.fp32_precision}",
        f"conv={torch.backends.cudnn.conv.fp32_precision}",  # type: ignore[attr-defined]  # torch has no type for it
        f"benchmark={torch.backends.cudnn.benchmark}",
        f"deterministic={torch.backends.cudnn.deterministic},{torch.are_deterministic_algorithms_enabled()}",
        f"autocast={torch.is_autocast_enabled(device_type)},{torch.get_autocast_dtype(device_type)}",
        f"dtype={torch.get_default_dtype()}",
    ]


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

    Structure and code of the model, the options of the optimizer except its learning rate, the worst batch and torch's
    flags are included; weights are not. Threads and driver versions are included
    if the device is `present`. `looks` are the facts reached from the workload before any step and after some steps.
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
