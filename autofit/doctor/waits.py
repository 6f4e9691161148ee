"""Waits: operators for whose result the host waits until the device has done all its work."""

from typing import Any

import torch

from autofit.tracing.operation_count import tensors_in

aten = torch.ops.aten
OPERATORS = {
    aten._local_scalar_dense.default: "a value is read (.item(), float(), bool, if)",
    aten.nonzero.default: "a size depends on data (nonzero, boolean mask)",
    aten.masked_select.default: "a size depends on data (masked_select)",
    aten._unique2.default: "a size depends on data (unique)",
    aten.unique_consecutive.default: "a size depends on data (unique)",
    aten.equal.default: "whole tensors are compared (torch.equal)",
    aten.bincount.default: "a size depends on data (bincount)",
    aten.repeat_interleave.Tensor: "a size depends on data (repeat_interleave without output_size)",
}
"""Why the host waits, by the operator. Torch's own sync debug mode names the same ones, and copies inside operators."""
MASKED = frozenset((aten.index.Tensor, aten.index_put_.default))
MASK = "a size depends on data (boolean mask)"
TO_HOST = "a tensor is copied to the host (.cpu(), .numpy(), print)"
PAGEABLE = "a tensor that is not in page-locked memory is copied to the device"


def wait_of(func: Any, args: Any, kwargs: Any, device_type: str) -> str:
    """Returns why the host waits for an operator, or "" if it does not. `device_type` is that of the accelerator."""
    operands = list(tensors_in((*args, *kwargs.values())))
    if func in OPERATORS:
        return OPERATORS[func] if any(each.device.type == device_type for each in operands) else ""
    if func in MASKED:
        on_device = args[0].device.type == device_type
        return (
            MASK if on_device and any(each.dtype in (torch.bool, torch.uint8) for each in tensors_in(args[1])) else ""
        )
    if func is aten._to_copy.default and (wanted := kwargs.get("device")) is not None:
        return _copy(args[0], torch.device(wanted).type, bool(kwargs.get("non_blocking")), device_type)
    if func is aten.copy_.default:
        return _copy(args[1], args[0].device.type, len(args) > 2 and bool(args[2]), device_type)
    return ""


def _copy(source: torch.Tensor, target: str, later: bool, device_type: str) -> str:
    if source.device.type == device_type and target == "cpu" and not later:
        return TO_HOST
    return PAGEABLE if source.device.type == "cpu" and target == device_type and not source.is_pinned() else ""
