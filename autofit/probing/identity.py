"""Identity: what makes two measurements comparable. Digests of a workload's structure, code, options and flags."""

import hashlib
from collections.abc import Iterable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from types import CodeType
from typing import Any

import torch
from torch import nn

from autofit.workloads.workload import Workload


def signature(model: nn.Module, structure: str, loss: str) -> str:
    """Returns "model-data": short digests of the model's structure, and of the batch's structure with the loss.

    Values do not count: a model keeps its signature while it trains.
    """
    return f"{model_signature(model)}-{digest([structure, loss])}"


def model_signature(model: nn.Module) -> str:
    """Returns a short digest of the names, classes, shapes and types of a model's modules and parameters."""
    modules = [f"{name}:{type(module).__qualname__}" for name, module in model.named_modules()]
    return digest(modules + [f"{n}:{tuple(p.shape)}:{p.dtype}:{p.requires_grad}" for n, p in model.named_parameters()])


def settings(
    workload: Workload, optimizer: torch.optim.Optimizer | None, device_type: str, worst: str
) -> dict[str, str]:
    """Returns what else changes what is measured, as names and short digests.

    Args:
        workload: its code and its options count, its weights do not.
        optimizer: the optimizer of a step; its options count but for the learning rate.
        device_type: whose autocast state counts.
        worst: the shapes of the worst batch.
    """
    found = {
        "mode": workload.mode,
        "max_grad_norm": str(workload.max_grad_norm),
        "code": digest(_code_of(workload)),
        "worst_sample": digest([worst]),
        "flags": digest(_flags(device_type)),
    }
    if optimizer is not None:
        found["optimizer"] = type(optimizer).__name__
        found["optimizer_options"] = digest(_options(optimizer))
    return found


def own_version() -> str:
    """Returns the version of the installed distribution, or "source"."""
    try:
        return version("torch-autofit")
    except PackageNotFoundError:
        return "source"


def digest(lines: Sequence[str]) -> str:
    """Returns 8 hexadecimal digits that change with any of `lines`."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]


def _code_of(workload: Workload) -> list[str]:
    """Returns the code of the user's functions and of each module class's methods, as far as it can be had."""
    classes = {type(module) for module in workload.model.modules()}
    own = sorted((cls for cls in classes if not cls.__module__.startswith("torch.")), key=lambda cls: cls.__qualname__)
    lines = [f"{cls.__qualname__}.{name}:{_code(item)}" for cls in own for name, item in sorted(vars(cls).items())]
    return [*lines, _code(workload.loss_fn), _code(workload.step_fn)]


def _code(item: Any) -> str:
    """Returns a text of a callable's code that is the same in each process; "" for what is no callable of Python."""
    if isinstance(item, partial):
        return f"{_code(item.func)}{sorted(item.keywords)}"
    if isinstance(item, nn.Module):
        return f"{type(item).__qualname__}{_code(type(item).forward)}"
    code = getattr(item, "__code__", None)
    return _text(code) if isinstance(code, CodeType) else ""


def _text(code: CodeType) -> str:
    return f"{code.co_code.hex()}{code.co_names}{[_constant(value) for value in code.co_consts]}"


def _constant(value: object) -> str:
    if isinstance(value, CodeType):
        return _text(value)
    # A set has no order of its own: it would differ from process to process.
    return str(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _options(optimizer: torch.optim.Optimizer) -> list[str]:
    """Returns the options of each group, less those that a schedule changes and that no measurement depends on."""
    varying = ("params", "lr", "initial_lr")
    groups: Iterable[dict[str, Any]] = optimizer.param_groups
    return [
        f"{len(group['params'])}:" + ",".join(f"{k}={v}" for k, v in sorted(group.items()) if k not in varying)
        for group in groups
    ]


def _flags(device_type: str) -> list[str]:
    return [
        f"matmul={torch.backends.cuda.matmul.fp32_precision}",
        f"conv={torch.backends.cudnn.conv.fp32_precision}",  # type: ignore[attr-defined]  # torch has no type for it
        f"benchmark={torch.backends.cudnn.benchmark}",
        f"deterministic={torch.backends.cudnn.deterministic},{torch.are_deterministic_algorithms_enabled()}",
        f"autocast={torch.is_autocast_enabled(device_type)},{torch.get_autocast_dtype(device_type)}",
        f"dtype={torch.get_default_dtype()}",
    ]
