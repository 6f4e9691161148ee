"""Device spoofing: to the user's code, fake tensors on the stand-in appear to be on a CUDA device.

Code with custom kernels checks `x.is_cuda` or `x.device.type == "cuda"` and takes another path otherwise. Autocast is
switched on and off for "cuda" by name. So all code outside torch and autofit sees "cuda" as the device, and when that
code names "cuda", the stand-in is used, also when a checkpointed block is recomputed. Use it only in the process of a
stand-in.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from autofit.strategies.undo import Undo
from autofit.torch_internals import FakeTensor
from autofit.tracing.cuda.allocator_steps import Chip

CUDA = torch.device("cuda", 0)
LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[2]))
"""Folders of torch and of autofit. Their code sees the real device, and their lines tell a user nothing."""
AUTOCAST_FUNCTIONS = ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype")
"""Functions of torch whose first argument is a device type, and which no torch function mode intercepts."""


@contextmanager
def disguised(stand_in: torch.device, chip: Chip) -> Iterator[None]:
    """Makes tensors on `stand_in` appear to be on a CUDA device with this `chip` while the context is open."""
    with Undo() as undo:
        real: Any = FakeTensor.device
        undo.set(FakeTensor, "device", property(_device(real.fget, stand_in.type), real.fset))
        undo.callback(delattr, FakeTensor, "is_cuda")
        is_cuda = property(lambda tensor: tensor.fake_device.type in ("cuda", stand_in.type) and _outside())
        FakeTensor.is_cuda = is_cuda  # type: ignore[assignment]  # a plain attribute to mypy
        autocast = torch.amp.autocast_mode.autocast
        undo.set(autocast, "__init__", _renamed(autocast.__init__, stand_in.type, place=1))
        for name in AUTOCAST_FUNCTIONS:
            undo.set(torch, name, _renamed(getattr(torch, name), stand_in.type, place=0))
        undo.set(torch.get_device_module("cuda"), "get_device_capability", lambda device=None: chip.capability)
        autograd: Any = torch.autograd
        mode, run_backward = _CudaAsStandIn(stand_in), autograd._engine_run_backward

        def run_in_mode(*args: Any, **kwargs: Any) -> Any:
            with mode:  # the mode is off while it handles the call that starts a backward pass
                return run_backward(*args, **kwargs)

        undo.set(autograd, "_engine_run_backward", run_in_mode)
        undo.enter_context(mode)
        # Autograd makes a thread for each device before its first backward pass, and so has none for a later stand-in.
        undo.enter_context(torch.autograd.set_multithreading_enabled(mode=False))
        yield


def _outside() -> bool:
    """Returns whether the code that reads a tensor's property is outside torch and autofit."""
    return not sys._getframe(2).f_code.co_filename.startswith(LIBRARIES)


def _device(real: Callable[[FakeTensor], torch.device], stand_in: str) -> Callable[[FakeTensor], torch.device]:
    def device(tensor: FakeTensor) -> torch.device:
        found = real(tensor)
        return CUDA if found.type == stand_in and _outside() else found

    return device


def _renamed(function: Callable[..., Any], stand_in: str, place: int) -> Callable[..., Any]:
    """Returns a function that takes "cuda" as the stand-in in its argument at `place`, which is a device type."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        args = tuple(stand_in if at == place and each == "cuda" else each for at, each in enumerate(args))
        if kwargs.get("device_type") == "cuda":
            kwargs["device_type"] = stand_in
        return function(*args, **kwargs)

    return run


class _CudaAsStandIn(TorchFunctionMode):
    """Runs torch's functions with the stand-in wherever the user's code names a CUDA device."""

    def __init__(self, stand_in: torch.device) -> None:
        super().__init__()
        self._stand_in = stand_in

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0].to(self._stand_in, **kwargs)
        args = tuple(self._replaced(each) for each in args)
        return func(*args, **{name: self._replaced(each) for name, each in kwargs.items()})

    def _replaced(self, value: Any) -> Any:
        named = isinstance(value, str) and value.partition(":")[0] == "cuda"
        if named or (isinstance(value, torch.device) and value.type == "cuda"):
            return self._stand_in
        return value
