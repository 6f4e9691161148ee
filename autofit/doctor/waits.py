"""Waits: operators for whose result the host waits until the device has done all its work."""

from collections import Counter
from time import perf_counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autofit.doctor.sites import Site, here
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
CAST = aten._to_copy.default
"""Copies a tensor to another type, device or memory format."""
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
    if func is CAST and (wanted := kwargs.get("device")) is not None:
        return _copy(args[0], torch.device(wanted).type, bool(kwargs.get("non_blocking")), device_type)
    if func is aten.copy_.default:
        return _copy(args[1], args[0].device.type, len(args) > 2 and bool(args[2]), device_type)
    return ""


class WaitTimer(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Times how long the host waits for an accelerator.

    The mode slows the host, which then finds less work left to wait for: without it, the host waits longer.

    Attributes:
        waits_s: seconds by reason and line.
    """

    def __init__(self, device_type: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device_type = device_type
        self.waits_s: Counter[tuple[str, Site]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operator, and times it if the host waits for its result."""
        kwargs = kwargs or {}
        why = wait_of(func, args, kwargs, self._device_type)
        if not why:
            return func(*args, **kwargs)
        began = perf_counter()
        out = func(*args, **kwargs)
        self.waits_s[why, here()] += perf_counter() - began  # type: ignore[assignment]  # seconds
        return out


def _copy(source: torch.Tensor, target: str, later: bool, device_type: str) -> str:
    if source.device.type == device_type and target == "cpu" and not later:
        return TO_HOST
    return PAGEABLE if source.device.type == "cpu" and target == device_type and not source.is_pinned() else ""
