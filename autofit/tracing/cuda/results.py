"""Results: those of CUDA's operators, with the strides and in the order in which the CUDA code allocates them.

Fake tensors get theirs from code of its own, which is right about sizes, but not always about layout, and on a stand-in
device chooses other kernels.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


UNREDUCED = 0
"""The value of a loss's argument `reduction` that leaves one loss for each element."""


def laid_out(func: Any, args: tuple[Any, ...], out: Any) -> Any:
    """Returns an operator's results with the strides and room that CUDA code gives them, where fake ones differ."""
    if func is aten.convolution.default:
        return _last(out) if any(map(is_channels_last, args[:2])) else out
    if func is aten.convolution_backward.default and any(map(is_channels_last, args[1:3])):
        return (*(None if each is None else _last(each) for each in out[:2]), out[2])
    if func is aten.native_batch_norm_backward.default and is_channels_last(args[1]):
        return (None if out[0] is None else _last(out[0]), *out[1:])
    if func in ROWS_FIRST:
        return (None if out[0] is None else _in_rows(out[0]), *out[1:])
    if func in SHRUNK and (len(args) <= SHRUNK[func] or args[SHRUNK[func]] != UNREDUCED):
        return torch.empty(broadcast(*args[:2]), dtype=out.dtype, device=out.device).resize_(())
    if (
        func is aten.log_sigmoid_forward.default
    ):  # its buffer is for the host alone (cuda/ActivationLogSigmoidKernel.cu)
        return out[0], out[1].new_empty(0)
    if func in RESIZED and out.numel() < args[0].numel():
        return torch.empty(args[0].shape, dtype=out.dtype, device=out.device).resize_(out.shape)
    return _in_rows(out) if func in IN_ROWS else out


def _in_rows(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_contiguous() else torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def known(func: Any, args: tuple[Any, ...]) -> Any:
    """Returns the results of an operator on fake tensors that their own code takes long to find; None for any other.

    That code takes a batch norm apart into a dozen simpler operators for each new shape: a fifth of a ResNet's trace.
    """
    rule = DIRECT.get(func)
    return None if rule is None or args[0].device.type == "cpu" else rule(*args)


def _batch_norm(
    images: torch.Tensor, weight: Any, bias: Any, mean: Any, variance: Any, training: bool, *others: Any
) -> tuple[torch.Tensor, ...] | None:
    if not training or images.dtype is torch.float64:
        return None
    return torch.empty_like(images), *(images.new_empty(images.shape[1], dtype=torch.float32) for _ in range(2))


def _batch_norm_backward(  # torch's own arguments
    gradient: torch.Tensor, images: torch.Tensor, weight: torch.Tensor | None, *others: Any
) -> tuple[torch.Tensor, ...] | None:
    training, _, wanted = others[-3:]
    alike = gradient.stride() == images.stride() and gradient.dtype is images.dtype
    if not (training and all(wanted) and alike and weight is not None):
        return None
    return torch.empty_like(images), torch.empty_like(weight), torch.empty_like(weight)


def _grouped_product(left: torch.Tensor, right: torch.Tensor, offsets: Any = None, *others: Any) -> torch.Tensor | None:
    """CUDA's takes other types than bfloat16 too, by a product for each group; the code for fake tensors does not."""
    if left.dtype is torch.bfloat16 or offsets is None:
        return None
    shape: tuple[int, ...]
    if right.dim() == 3:
        shape = (left.shape[-2], right.shape[2])
    elif left.dim() == 3:
        shape = (left.shape[1], right.shape[1])
    else:
        shape = (offsets.shape[0], left.shape[0], right.shape[1])
    lanes = 16 // left.element_size()
    # As `create_grouped_gemm_output_tensor` in GroupedMMUtils.h lays it out.
    room = left.new_empty(*shape[:-1], -(-shape[-1] // lanes) * lanes)
    return room[..., : shape[-1]]


def broadcast(one: torch.Tensor, other: torch.Tensor) -> torch.Size:
    """Returns the shape of what an operator makes of each pair of elements."""
    found: torch.Size = torch.broadcast_shapes(one.shape, other.shape)  # type: ignore[no-untyped-call]  # torch has none
    return found


def convolved_in(inputs: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Returns the layout that a convolution brings its arguments into."""
    last = is_channels_last(inputs) or is_channels_last(weight)
    return CHANNELS_LAST.get(inputs.dim(), torch.contiguous_format) if last else torch.contiguous_format


def _last(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() not in CHANNELS_LAST or is_channels_last(tensor):
        return tensor
    return torch.empty_like(tensor, memory_format=CHANNELS_LAST[tensor.dim()])


def results(func: Any, args: tuple[Any, ...], out: Sequence[Any]) -> Sequence[Any]:
    """Returns the results of an operator that are allocated on a CUDA device, in that order."""
    if func is aten.native_batch_norm_backward.default and sums_channels(args[1], args[2]):
        return out[1], out[2], out[0]
    order = ORDERS.get(func)
    return out if order is None else [out[place] for place in order]


def first(out: list[torch.Tensor]) -> torch.Tensor:
    """Returns the first of several results; the others are taken out and so released in order, as by C++.

    A list, because a tuple releases the last of them first, and whoever calls a function may hold its arguments.
    """
    while len(out) > 1:
        del out[1]
    return out[0]


def channels_innermost(tensor: torch.Tensor) -> bool:
    """Says whether the channels of images, or of vectors, lie next to each other."""
    if tensor.dim() == 2:
        return tensor.is_contiguous()
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and tensor.stride(1) == 1


def sums_channels(images: torch.Tensor, weight: torch.Tensor | None) -> bool:
    """Says whether torch's own batch norm sums each channel with a kernel for channels that lie next to each other.

    On a stand-in batch norm always looks like torch's own; on CUDA it is cuDNN's where it can be, an operator that has
    another name there and needs none of this (`_select_batch_norm_backend` in Normalization.cpp).
    """
    return channels_innermost(images) and (images.device.type == "cuda" or not normed_by_cudnn(images, weight))


def normed_by_cudnn(images: torch.Tensor, weight: torch.Tensor | None) -> bool:
    """Says whether cuDNN has a batch norm for such images."""
    if weight is None or images.dim() < 3 or torch.bfloat16 in (images.dtype, weight.dtype):
        return False
    return images.dtype is not torch.float16 or weight.dtype is torch.float32


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Says whether torch takes a layout for channels last: `is_channels_last_strides_2d`, `_3d` (c10 MemoryFormat.h).

    It asks the strides alone, so that a 1x1 kernel, which can be read both ways, is what it was made as.
    """
    if tensor.dim() not in CHANNELS_LAST or tensor.stride(1) == 0:
        return False
    least = 0
    for dim in (1, *reversed(range(2, tensor.dim())), 0):
        stride, size = tensor.stride(dim), tensor.shape[dim]
        if size == 0 or stride < least or (dim == 0 and least == tensor.stride(1)):
            return False
        least = stride * size
    return True


CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
"""The layout of images and of volumes, by their dimensions."""
DIRECT: dict[Any, Callable[..., Any]] = {
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten._grouped_mm.default: _grouped_product,
}
SHRUNK = {
    aten.mse_loss.default: 2,
    aten.smooth_l1_loss.default: 2,
    aten.soft_margin_loss.default: 2,
    aten.binary_cross_entropy.default: 3,
}
"""Losses whose result is made with room for each element, then shrunk to one number, but not its memory (Loss.cpp).

With the place of their argument `reduction`."""
RESIZED = (aten.im2col.default, aten.col2im.default)
"""Operators whose result has room for the argument at first, and keeps it if smaller (cuda/Im2Col.cu, Col2Im.cu)."""
IN_ROWS = (
    aten.roll.default,
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.huber_loss_backward.default,
)
"""Operators whose result lies in rows whatever their arguments do (Loss.cpp: LEGACY_CONTIGUOUS_MEMORY_FORMAT)."""
ROWS_FIRST = (aten.native_layer_norm.default, aten.native_layer_norm_backward.default)
"""Operators whose first result does (cuda/layer_norm_kernel.cu)."""
ORDERS: dict[Any, tuple[int, ...]] = {
    aten.native_dropout.default: (1, 0),
    aten._embedding_bag.default: (2, 1, 0, 3),
    aten._embedding_bag_forward_only.default: (2, 1, 0, 3),
    aten.nll_loss2d_forward.default: (1, 0),
    aten._scaled_dot_product_efficient_attention.default: (0, 1),  # the state of the random numbers is on the host
}
"""The results that are allocated, in that order, where it is not simply all of them in turn."""
