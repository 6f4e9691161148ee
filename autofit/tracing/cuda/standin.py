"""Stand-in: a device that torch treats like CUDA, in a build or on a machine without CUDA.

Fake "cuda" tensors need a CUDA build and a device (reference/memory_prediction.md section 3). This module registers a
separate device type instead, with the behaviour of CUDA that affects memory: which operators autocast converts, which
attention kernel runs, and which operators are a single kernel.

It cannot be undone, and the stand-in becomes the accelerator of the process: call `install` in a fresh child process
only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional
from torch.utils import backend_registration

from autofit.strategies.undo import Undo
from autofit.tracing.cuda.attention import attention
from autofit.tracing.cuda.autocast import HALF, register
from autofit.tracing.cuda.reduce_config import Chip
from autofit.tracing.cuda.results import first, is_channels_last

NAME = "standin"

WHOLE = ("silu_backward", "mish_backward", "_fused_rms_norm", "_fused_rms_norm_backward")
"""Operators with kernels for CPU and CUDA that are decomposed into simpler ones on any other device."""


class _Backend:
    """The module through which torch queries the device. Its one device is unavailable, so torch puts nothing on it."""

    is_available = staticmethod(lambda: False)
    is_initialized = staticmethod(lambda: True)
    _lazy_init = staticmethod(lambda: None)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)
    get_amp_supported_dtype = staticmethod(lambda: list(HALF))


_LIBRARIES: list[Any] = []


def install() -> torch.device:
    """Makes the stand-in a device of this process and returns it. Later calls only return it."""
    if not _LIBRARIES:
        backend_registration._setup_privateuseone_for_python_backend(NAME, _Backend)
        _register()
    return torch.device(NAME, 0)


@contextmanager
def attending(chip: Chip) -> Iterator[None]:
    """Dispatches `scaled_dot_product_attention` on the stand-in to the kernel that runs on `chip`."""
    original = functional.scaled_dot_product_attention

    def attend(*args: Any, **kwargs: Any) -> torch.Tensor:
        query = args[0] if args else kwargs["query"]
        if query.device.type != NAME:
            return original(*args, **kwargs)
        if torch.is_autocast_enabled(NAME):  # also converts a mask of numbers; in reverse order, as in `autocast`
            kwargs = {name: _cast(value) for name, value in reversed(kwargs.items())}
            args = tuple(reversed([_cast(value) for value in reversed(args)]))
        return attention(chip, original, *args, **kwargs)

    with Undo() as undo:
        undo.set(functional, "scaled_dot_product_attention", attend)
        yield


def _cast(value: Any) -> Any:
    """Returns a floating-point tensor in the type of autocast; anything else unchanged."""
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(torch.get_autocast_dtype(NAME)) if floating else value


def _register() -> None:
    make: Any = torch.library.Library  # torch has no types here
    fallback = make("_", "IMPL")
    fallback.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    library = make("aten", "IMPL")
    _LIBRARIES.extend((fallback, library))  # kernels are unregistered when their library is deleted
    register(library, NAME)
    for name in WHOLE:
        library.impl(name, _without_data, "PrivateUse1")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        library.impl("group_norm", _group_norm, key)
        library.impl("rms_norm", _rms_norm, key)


def _group_norm(  # torch's own arguments
    images: torch.Tensor,
    groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> torch.Tensor:
    """Returns the norm of contiguous images. CUDA copies channels-last images beforehand; this device key would not."""
    size, channels = images.shape[:2]
    pixels = images.numel() // max(size * channels, 1)
    run = torch.ops.aten.native_group_norm
    return first(list(run(images.contiguous(), weight, bias, size, channels, pixels, groups, eps)))


def _rms_norm(
    x: torch.Tensor, shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """Returns the norm, by CUDA's kernel where CUDA would use it: `rms_norm_symint` in native/layer_norm.cpp."""
    run = torch.ops.aten._fused_rms_norm
    if x.is_complex() or is_channels_last(x) or (weight is not None and weight.dtype is not x.dtype):
        composite = torch._C.DispatchKey.CompositeImplicitAutograd
        return first(list(run.default._op_dk(composite, x, shape, weight, eps)))
    return first(list(run(x, shape, weight, eps)))


def _without_data(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("the stand-in device has no data: run this under FakeTensorMode")
