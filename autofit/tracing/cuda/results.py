"""Results of CUDA's operators, with the strides and in the order of their allocation in the CUDA code.

For fake tensors, separate code in torch computes the results. Its sizes are right, but its layouts are not always, and
on a stand-in device it chooses other kernels.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten


UNREDUCED = 0
"""Value of a loss's argument `reduction` that returns one loss per element."""


def laid_out(func: Any, args: tuple[Any, ...], out: Any) -> Any:
    """Returns an operator's results with the strides and the storage size that the CUDA code gives them."""
    if func is aten.convolution.default:
        return _channels_last(out) if any(map(is_channels_last, args[:2])) else out
    if func is aten.convolution_backward.default and any(map(is_channels_last, args[1:3])):
        return (*(None if each is None else _channels_last(each) for each in out[:2]), out[2])
    if func is aten.native_batch_norm_backward.default and is_channels_last(args[1]):
        return (None if out[0] is None else _channels_last(out[0]), *out[1:])
    if func in FIRST_CONTIGUOUS:
        return (None if out[0] is None else _contiguous(out[0]), *out[1:])
    if func in SHRUNK and (len(args) <= SHRUNK[func] or args[SHRUNK[func]] != UNREDUCED):
        return torch.empty(broadcast(*args[:2]), dtype=out.dtype, device=out.device).resize_(())
    # Its buffer is used on the host only (cuda/ActivationLogSigmoidKernel.cu).
    if func is aten.log_sigmoid_forward.default:
        return out[0], out[1].new_empty(0)
    if func in RESIZED and out.numel() < args[0].numel():
        return torch.empty(args[0].shape, dtype=out.dtype, device=out.device).resize_(out.shape)
    return _contiguous(out) if func in CONTIGUOUS else out


def _contiguous(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.is_contiguous() else torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def known(func: Any, args: tuple[Any, ...]) -> Any:
    """Returns the results of operators for which torch's code for fake tensors is slow or fails; None for any other.

    For each new shape, that code decomposes a batch norm into a dozen simpler operators: a fifth of a ResNet's trace.
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


def _channel_sums(count: int) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Returns the rule of an operator of `SyncBatchNorm` with several results per channel (cuda/Normalization.cu)."""

    def rule(*args: Any) -> tuple[torch.Tensor, ...]:
        images: torch.Tensor = args[0]
        dtype = torch.float64 if images.dtype is torch.float64 else torch.float32
        return tuple(images.new_empty(images.shape[1], dtype=dtype) for _ in range(count))

    return rule


def _grouped_product(left: torch.Tensor, right: torch.Tensor, offsets: Any = None, *others: Any) -> torch.Tensor | None:
    """CUDA supports other types than bfloat16 too, by one product per group. The code for fake tensors does not."""
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
    # The layout of `create_grouped_gemm_output_tensor` in GroupedMMUtils.h.
    padded = left.new_empty(*shape[:-1], -(-shape[-1] // lanes) * lanes)
    return padded[..., : shape[-1]]


def broadcast(one: torch.Tensor, other: torch.Tensor) -> torch.Size:
    """Returns the shape of an elementwise operator's result."""
    found: torch.Size = torch.broadcast_shapes(one.shape, other.shape)  # type: ignore[no-untyped-call]  # torch has none
    return found


def convolved_in(inputs: torch.Tensor, weight: torch.Tensor) -> torch.memory_format:
    """Returns the layout to which a convolution converts its arguments."""
    last = is_channels_last(inputs) or is_channels_last(weight)
    return CHANNELS_LAST.get(inputs.dim(), torch.contiguous_format) if last else torch.contiguous_format


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dim() not in CHANNELS_LAST or is_channels_last(tensor):
        return tensor
    return torch.empty_like(tensor, memory_format=CHANNELS_LAST[tensor.dim()])


def results(func: Any, args: tuple[Any, ...], out: Sequence[Any]) -> Sequence[Any]:
    """Returns the results that an operator allocates on a CUDA device, in the order of allocation."""
    if func is aten.native_batch_norm_backward.default and sums_channels(args[1], args[2]):
        return out[1], out[2], out[0]
    order = ORDERS.get(func)
    return out if order is None else [out[place] for place in order]


def first(out: list[torch.Tensor]) -> torch.Tensor:
    """Returns the first of several results. The others are removed, and so released, in order, as in C++.

    Takes a list, because a tuple would release the last result first, and the caller may hold the arguments.
    """
    while len(out) > 1:
        del out[1]
    return out[0]


def channels_innermost(tensor: torch.Tensor) -> bool:
    """Returns whether the channels of images or vectors are adjacent in memory."""
    if tensor.dim() == 2:
        return tensor.is_contiguous()
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last) and tensor.stride(1) == 1


def sums_channels(images: torch.Tensor, weight: torch.Tensor | None) -> bool:
    """Returns whether torch's own batch norm uses its kernel for channels that are adjacent in memory.

    On a stand-in, batch norm always appears as torch's own. On CUDA, cuDNN's is used if possible; it is another
    operator and needs no rule (`_select_batch_norm_backend` in Normalization.cpp).
    """
    return channels_innermost(images) and (images.device.type == "cuda" or not normed_by_cudnn(images, weight))


def normed_by_cudnn(images: torch.Tensor, weight: torch.Tensor | None) -> bool:
    """Returns whether cuDNN has a batch norm for these images."""
    if weight is None or images.dim() < 3 or torch.bfloat16 in (images.dtype, weight.dtype):
        return False
    return images.dtype is not torch.float16 or weight.dtype is torch.float32


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Returns whether torch treats a layout as channels last.

    Source: `is_channels_last_strides_2d`, `_3d` (c10 MemoryFormat.h). Only the strides count, so a 1x1 kernel, whose
    layout is ambiguous, is classified as it was created.
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
"""The channels-last layout of images and of volumes, by number of dimensions."""
DIRECT: dict[Any, Callable[..., Any]] = {
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten._grouped_mm.default: _grouped_product,
    aten.batch_norm_stats.default: _channel_sums(2),
    aten.batch_norm_gather_stats_with_counts.default: _channel_sums(2),
    aten.batch_norm_backward_reduce.default: _channel_sums(4),
    aten.batch_norm_elemt.default: lambda images, *others: torch.empty_like(images),
    aten.batch_norm_backward_elemt.default: lambda gradient, images, *others: torch.empty_like(images),
}
SHRUNK = {
    aten.mse_loss.default: 2,
    aten.smooth_l1_loss.default: 2,
    aten.soft_margin_loss.default: 2,
    aten.binary_cross_entropy.default: 3,
}
"""Losses whose result is allocated for every element and then shrunk to one number without freeing memory (Loss.cpp),
with the position of their argument `reduction`."""
RESIZED = (aten.im2col.default, aten.col2im.default)
"""Operators whose result first has the argument's size, and keeps that memory if it is then resized to a smaller one
(cuda/Im2Col.cu, Col2Im.cu)."""
CONTIGUOUS = (
    aten.roll.default,
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.huber_loss_backward.default,
)
"""Operators whose result is contiguous for any layout of the arguments (Loss.cpp: LEGACY_CONTIGUOUS_MEMORY_FORMAT)."""
FIRST_CONTIGUOUS = (aten.native_layer_norm.default, aten.native_layer_norm_backward.default)
"""Operators whose first result is contiguous for any layout of the arguments (cuda/layer_norm_kernel.cu)."""
ORDERS: dict[Any, tuple[int, ...]] = {
    aten.native_dropout.default: (1, 0),
    aten._embedding_bag.default: (2, 1, 0, 3),
    aten._embedding_bag_forward_only.default: (2, 1, 0, 3),
    aten.nll_loss2d_forward.default: (1, 0),
    aten._scaled_dot_product_efficient_attention.default: (0, 1),  # the state of the random numbers is on the host
}
"""Order in which results are allocated, for operators that do not allocate all of them in turn."""
