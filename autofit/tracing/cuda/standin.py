"""Stand-in: a device that torch treats like CUDA, in a build or on a machine without CUDA.

Fake "cuda" tensors need a CUDA build and a device (reference/memory_prediction.md section 3). This module registers a
separate device type instead, with the behaviour of CUDA that affects memory: which operators autocast converts, which
attention kernel runs, and which operators are a single kernel.

It cannot be undone, and the stand-in becomes the accelerator of the process: call `install` in a fresh child process
only.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch.nn import functional
from torch.nn.functional import pad
from torch.utils import backend_registration

from autofit.strategies.undo import Undo
from autofit.tracing.cuda.allocator_steps import Chip
from autofit.tracing.cuda.autocast import HALF, register
from autofit.tracing.cuda.results import first, is_channels_last

NAME = "standin"
WHOLE = ("silu_backward", "mish_backward", "_fused_rms_norm", "_fused_rms_norm_backward")
"""Operators with kernels for CPU and CUDA that are decomposed into simpler ones on any other device."""

ROW = 8
"""Number of elements of which the strides of a mask must be a multiple (`mem_eff_alignment`)."""
aten = torch.ops.aten


class _Idle:
    """A stream on which nothing runs, or an event that has passed. The first stream has the number 0."""

    _numbers = count()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes the arguments of `torch.cuda.Stream` and `torch.cuda.Event`."""
        self.stream_id = next(self._numbers)

    def wait(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing, as all that waits for or on a device does here."""

    wait_stream = wait_event = record = synchronize = wait

    def record_event(self, event: Any = None) -> Any:
        """Returns an event that has passed."""
        return event or _Idle()

    def query(self) -> bool:
        """Returns True: the work is done."""
        return True


_current = [_Idle()]


@contextmanager
def _running_on(stream: _Idle | None) -> Iterator[None]:
    before, _current[0] = _current[0], stream or _current[0]
    try:
        yield
    finally:
        _current[0] = before


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
    set_device = staticmethod(lambda device: None)
    synchronize = staticmethod(lambda device=None: None)
    Stream = Event = _Idle
    stream = staticmethod(_running_on)
    current_stream = staticmethod(lambda device=None: _current[0])


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
        return _attention(chip, original, *args, **kwargs)

    with Undo() as undo:
        undo.set(functional, "scaled_dot_product_attention", attend)
        yield


def _cast(value: Any) -> Any:
    """Returns a floating-point tensor in the type of autocast; anything else unchanged."""
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(torch.get_autocast_dtype(NAME)) if floating else value


def _attention(  # noqa: PLR0913, PLR0917  # the arguments of the function that it stands for
    chip: Chip,
    original: Callable[..., torch.Tensor],
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Returns the attention of (batch, heads, time, width) by the operator that runs on `chip`.

    It follows `sdp::select_sdp_backend` and `scaled_dot_product_attention` (aten/src/ATen/native/transformers), in the
    order of torch 2.11 and 2.13: cuDNN (compute capability 9.0 and up), flash, memory-efficient, math (plain products).
    """
    wanted = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    kernel = _chosen(chip, query, key, value, attn_mask, enable_gqa)
    if kernel is None:
        return original(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if kernel == "flash":
        width = query.shape[-1]
        padded = [x if width % 8 == 0 else pad(x, [0, 8 - width % 8]) for x in (query, key, value)]
        run = aten._scaled_dot_product_flash_attention
        return first(list(run(*padded, dropout_p, is_causal, False, scale=scale)))[..., :width]
    bias = None if attn_mask is None else _bias(attn_mask, query, key, align=kernel == "efficient")
    if kernel == "cudnn":
        run = aten._scaled_dot_product_cudnn_attention
        return first(list(run(query, key, value, bias, wanted, dropout_p, is_causal, False, scale=scale)))
    run = aten._scaled_dot_product_efficient_attention
    return first(list(run(query, key, value, bias, wanted, dropout_p, is_causal, scale=scale)))


def _chosen(
    chip: Chip,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    grouped: bool,
) -> str | None:
    """Returns the kernel's name; None for plain products. Kernels that the user has disabled are not chosen."""
    dtype, width = query.dtype, query.shape[-1]
    flags: Any = torch.backends.cuda  # torch has no types here
    alike = len({x.shape[-1] for x in (query, key, value)}) == 1
    shaped = all(x.dim() == 4 and x.stride(-1) == 1 and x.dtype is dtype for x in (query, key, value))
    if not shaped or (mask is not None and mask.requires_grad and chip.capability < (8, 0)):
        return None
    half = dtype in HALF and chip.capability >= (8, 0)
    if flags.cudnn_sdp_enabled() and half and chip.capability >= (9, 0) and width % 8 == 0 and width <= 128 and alike:
        return "cudnn"
    if flags.flash_sdp_enabled() and half and mask is None and alike and width <= 256:
        return "flash"
    aligned = all(x.shape[-1] % (4 if dtype is torch.float32 else 8) == 0 for x in (query, key, value))
    known = dtype in (torch.float32, torch.float16) or (dtype is torch.bfloat16 and half)
    efficient = flags.mem_efficient_sdp_enabled() and known and aligned and not grouped
    return "efficient" if efficient else None


def _bias(mask: torch.Tensor, query: torch.Tensor, key: torch.Tensor, align: bool) -> torch.Tensor:
    """Returns the mask as an additive bias for every head, padded if the efficient kernel cannot read its rows.

    Sources: `aligned_tensor` and `pad_bias` in native/transformers/attention.cpp. A row whose length is already a
    multiple gets a whole pad.
    """
    if mask.dtype is torch.bool:
        zeros = torch.zeros_like(mask, dtype=query.dtype)
        mask = zeros.masked_fill_(mask.logical_not(), float("-inf"))
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if align and (mask.stride(-1) != 1 or any(stride % ROW for stride in mask.stride()[:-1])):
        mask = pad(mask, [0, ROW - mask.shape[-1] % ROW])[..., : mask.shape[-1]]
    return mask.expand(shape)


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
    run = aten.native_group_norm
    return first(list(run(images.contiguous(), weight, bias, size, channels, pixels, groups, eps)))


def _rms_norm(
    x: torch.Tensor, shape: list[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    """Returns the norm, by CUDA's kernel where CUDA would use it: `rms_norm_symint` in native/layer_norm.cpp."""
    run = aten._fused_rms_norm
    if x.is_complex() or is_channels_last(x) or (weight is not None and weight.dtype is not x.dtype):
        composite = torch._C.DispatchKey.CompositeImplicitAutograd
        return first(list(run.default._op_dk(composite, x, shape, weight, eps)))
    return first(list(run(x, shape, weight, eps)))


def _without_data(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("the stand-in device has no data: run this under FakeTensorMode")
