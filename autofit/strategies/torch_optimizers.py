"""What strategies ask about optimizers of torch.optim: whose step it is, who watches it, where its counters are."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from autofit.torch_internals import has_step_hooks, is_traceable_wrapper_subclass

TORCH = "torch.optim."
MARKS = ("_step_supports_amp_scaling", "_need_device_dtype_check_for_fused")
"""Attributes by which `GradScaler` and the first fused step recognise the implementation."""


def has_own_step(optimizer: Optimizer) -> bool:
    """Returns whether the class of `optimizer` has a step that is not one of torch.optim."""
    return not inspect.unwrap(type(optimizer).step).__module__.startswith(TORCH)


def is_scheduled(optimizer: Optimizer) -> bool:
    """Returns whether a learning rate scheduler counts the steps of `optimizer`."""
    return hasattr(vars(optimizer).get("step"), "_wrapped_by_lr_sched")


def watched_step(optimizer: Optimizer) -> str | None:
    """Returns who expects the usual step of `optimizer`, other than a scheduler, or None."""
    if "step" in vars(optimizer) and not is_scheduled(optimizer):
        return f"the step of this {type(optimizer).__name__} was replaced by another function"
    if has_step_hooks(optimizer):
        return "the optimizer has step hooks, which expect one step with all gradients"
    return None


def grouped_parameters(optimizer: Optimizer) -> Iterator[tuple[dict[str, Any], torch.Tensor]]:
    """Yields every parameter with its group."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            yield group, parameter


def wrapped_parameters(optimizer: Optimizer) -> str | None:
    """Returns that `optimizer` holds parameters that are not plain tensors, or None."""
    wrapped = any(is_traceable_wrapper_subclass(parameter) for _, parameter in grouped_parameters(optimizer))
    return "it holds sharded or quantized parameters" if wrapped else None


def placed_counter(step: torch.Tensor, group: dict[str, Any], parameter: torch.Tensor, *, fused: bool) -> torch.Tensor:
    """Returns a step counter on the device and in the dtype in which torch.optim creates it."""
    device = parameter.device if fused or group.get("capturable") else torch.device("cpu")
    wide = not fused and torch.get_default_dtype() == torch.float64
    return step.to(device, torch.float64 if wide else torch.float32)


def lacks_parts(optimizer: Optimizer) -> bool:
    """Returns whether torch's update of an optimizer takes whole parameters only: its operators refuse sharded ones."""
    return isinstance(optimizer, torch.optim.Adafactor | torch.optim.Rprop)


def lacks_fused_parts(optimizer: Optimizer) -> bool:
    """Returns whether torch has a fused update for whole parameters of an optimizer, but none for sharded ones."""
    return isinstance(optimizer, torch.optim.SGD | torch.optim.Adagrad)
