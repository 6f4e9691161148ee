"""Temporary memory of CUDA operators: allocated inside one call, besides the results, and released before it returns.

A trace does not show it, because it is allocated below the dispatcher. Each rule follows the host code of torch 2.11
and 2.13, which allocates the same with and without a GPU (reference/memory_prediction.md section 4).
"""

import math
from typing import Any

import torch

from autofit.tracing.cuda import losses, ordering, pairwise, reductions
from autofit.tracing.cuda.reduce_config import (
    KIB,
    AllocatorSteps,
    Axes,
    Chip,
    Rule,
    after_results,
    around_results,
    nbytes,
    power_of_two,
    round_up,
    staging_bytes,
)
from autofit.tracing.cuda.results import (
    channels_innermost,
    convolved_in,
    is_channels_last,
    sums_channels,
)

aten = torch.ops.aten


def temporary_steps(chip: Chip, func: Any, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """Returns the allocator steps of an operator's temporary memory on a CUDA device; () for none."""
    rule = RULES.get(func)
    return () if rule is None else rule(chip, args, out)


def _softmax(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    return after_results(*(() if args[0].is_contiguous() else (nbytes(args[0]),)))


def _safe_softmax(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """A mask of the hidden elements, and one of the rows that are all hidden (aten/src/ATen/native/SoftMax.cpp)."""
    return after_results(args[0].numel(), args[0].numel() // max(args[0].shape[args[1]], 1))


def _softmax_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    return after_results(*(nbytes(tensor) for tensor in args[:2] if not tensor.is_contiguous()))


def _softmax_backward_product(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The product of the gradient and the result, as a separate tensor. A log-softmax has none."""
    gradient, result = args[0], args[1]
    product = gradient.numel() * torch.promote_types(gradient.dtype, result.dtype).itemsize
    return after_results(product, *(() if result.is_contiguous() else (nbytes(result),)))


def _flash_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """Row sums, and the query's gradient in float32. Sizes are rounded up, since blocks of threads write them."""
    batch, heads, queries, width = args[1].shape
    rows = batch * heads * round_up(queries, 128)
    copies = _copied_by_heads(args[0], args[4])
    keys = args[2]
    # If several query heads share a key head, the gradients of keys and values are made per query head, then summed.
    grouped = (nbytes(keys) // keys.shape[1] * heads,) * 2 if keys.shape[1] != heads else ()
    return around_results(*copies, inside=(4 * rows, 4 * rows * round_up(width, 32 if width <= 128 else 64), *grouped))


def _efficient(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The result in float32, if it does not fit into registers: `kNeedsOutputAccumulatorBuffer` (kernel_forward.h)."""
    width = args[2].shape[-1]
    return after_results(*() if width <= 128 or args[0].element_size() > 2 else (4 * out[0].numel(),))


def _efficient_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """Row sums, and the accumulators of `AttentionBackwardKernel::Params::workspace_size` (kernel_backward.h).

    In float32 the row sums are made by separate operators: product, sum, and a copy by heads.
    """
    (batch, heads, queries, width), keys, value_width = args[1].shape, args[2].shape[2], args[3].shape[-1]
    half = args[1].dtype is not torch.float32
    side, columns = (64, 64) if width <= 64 else (128, 128 if half and width <= 128 else 64)
    numbers = -(-queries // side) * -(-width // columns) * (side * columns + 4)
    if half and width > 128:  # the gradients of keys and values do not fit into registers either
        splits = min(-(-keys // 64), max(200 // (batch * heads), 1))
        numbers += 2 * splits * 64 * round_up(width, 128)
    rows, accumulators = 4 * batch * heads * queries, 4 * batch * heads * numbers
    copies = _copied_by_heads(args[0])
    if half:
        return around_results(*copies, inside=(rows, accumulators))
    first = len(copies)
    steps = (rows * value_width, rows, rows, ~(first + 1), ~first, accumulators, ~(first + 2), ~(first + 3))
    return (*copies, None, *steps, *(~place for place in range(first)))


def _copy(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """A copy from the host goes to a contiguous buffer first, and from there to a strided result (Copy.cu)."""
    return after_results(*(() if args[0].device.type == out.device.type or out.is_contiguous() else (nbytes(out),)))


def _copies(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """For operators that only work on contiguous tensors and copy others beforehand."""
    return around_results(*(nbytes(x) for x in args[:2] if isinstance(x, torch.Tensor) and not x.is_contiguous()))


def _layer_norm_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """Copies of a non-contiguous input (beforehand) and gradient, and sums by blocks of rows.

    The sums occur for many short rows: `LaunchGammaBetaBackwardCUDAKernel` in layer_norm_kernel.cu.
    """
    gradient, inputs = (0 if each.is_contiguous() else nbytes(each) for each in args[:2])
    width = math.prod(args[2])
    rows, columns = args[1].numel() // max(width, 1), -(-width // 32)
    parts, sums = 0, (0, 0)
    if rows > 64 * KIB and width // 32 < chip.multiprocessors // 2:
        blocks = min(32 * KIB // columns, -(-rows // 32))
        parts = 4 * width * blocks
        axes = Axes.of((blocks, width), (width, 1), [0])
        sums = staging_bytes(axes, 4, chip.multiprocessors, chip.threads)
    return (inputs, None, gradient, parts, parts, *sums, ~5, ~4, *sums, ~7, ~6, ~3, ~2, ~1, ~0)


def _copy_of_gradient(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    return after_results(*(() if args[0].is_contiguous() else (nbytes(args[0]),)))


def _pooled(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    return after_results(*_copied_to_layout(args[0], args[0]))


def _pool_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """Copies of the gradient, and of the indices of the maxima, if their layout differs from the input's."""
    indices = args[7:8]  # a tensor for max_pool2d_with_indices_backward; a number or missing for avg_pool2d_backward
    return after_results(*_copied_to_layout(args[1], args[0], *(x for x in indices if isinstance(x, torch.Tensor))))


def _copied_to_layout(like: torch.Tensor, *copied: torch.Tensor) -> tuple[int, ...]:
    layout = torch.channels_last if is_channels_last(like) else torch.contiguous_format
    return tuple(nbytes(x) for x in copied if not x.is_contiguous(memory_format=layout))


def _cumulated(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The summands, converted to the type of the sums."""
    return after_results(*(() if args[0].dtype is out.dtype else (nbytes(out),)))


def _group_norm(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The scale and shift of each channel of each sample."""
    return after_results(*(4 * args[0].shape[0] * args[0].shape[1],) * 2)


def _group_norm_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    channels, groups = 4 * args[1].shape[0] * args[1].shape[1], 4 * args[2].numel()
    return (channels, channels, groups, groups, channels, ~3, ~2, ~4, ~1, ~0)


def _convolution(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """Copies of an input and a weight whose layout differs from that of the convolution."""
    layout = convolved_in(args[0], args[1])
    inputs, weight = (nbytes(x) if not x.is_contiguous(memory_format=layout) else 0 for x in args[:2])
    return (inputs, None, weight, ~1, ~0)


def _convolution_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The sum for the bias's gradient, and copies of arguments whose layout differs from that of the convolution."""
    gradient, inputs, weight, wanted = args[0], args[1], args[2], args[10]
    layout = convolved_in(inputs, weight)
    inputs_copy, gradient_copy, weight_copy = (
        nbytes(x) if needed and not x.is_contiguous(memory_format=layout) else 0
        for x, needed in ((inputs, wanted[1]), (gradient, True), (weight, wanted[0]))
    )
    axes = Axes.of(gradient.shape, gradient.stride(), [0, *range(2, gradient.dim())])
    sums = staging_bytes(axes, 4, chip.multiprocessors, chip.threads) if wanted[2] else (0, 0)
    return (inputs_copy, gradient_copy, None, weight_copy, ~2, None, ~1, ~0, None, *sums, ~4, ~3)


def _copied_by_heads(*tensors: torch.Tensor) -> tuple[int, ...]:
    """Returns the copies that an attention kernel makes of (batch, heads, time, width) tensors not laid out by time."""
    return tuple(nbytes(tensor) for tensor in tensors if not tensor.transpose(1, 2).is_contiguous())


def _batch_norm(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    return after_results(*(_norm_staging(args[0], values=4) if sums_channels(args[0], args[1]) else ()))


def _batch_norm_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    if not sums_channels(args[1], args[2]):
        return ()
    channels = 4 * args[1].shape[1]
    staged = _norm_staging(args[1], values=2) if channels_innermost(args[0]) else ()
    passed = (*staged, *(~(2 + place) for place in reversed(range(len(staged)))))
    return (channels, channels, None, None, *passed, None, ~1, ~0)


def _norm_staging(tensor: torch.Tensor, values: int) -> tuple[int, ...]:
    """Returns the buffers of a sum over all but the channels (`flexible_launch_configs` in Normalization.cuh)."""
    channels = tensor.shape[1]
    rows = tensor.numel() // channels
    block_x = min(power_of_two(channels), 32)
    block_y = min(power_of_two(-(-rows // 16)), 512 // block_x)
    if block_x * block_y != 512:
        block_x = min(power_of_two(channels), 512 // block_y)
    grid = min(-(-rows // (block_y * 16)), 128)
    return (values * channels * grid * 4, 4 * -(-channels // block_x)) if grid >= 8 else (0, 0)


RULES: dict[Any, Rule] = {
    aten._to_copy.default: _copy,
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _softmax,
    aten._safe_softmax.default: _safe_softmax,
    aten._softmax_backward_data.default: _softmax_backward_product,
    aten._log_softmax_backward_data.default: _softmax_backward,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention.default: _efficient,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten.convolution_backward.default: _convolution_backward,
    aten.native_layer_norm.default: _copies,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten.upsample_bilinear2d_backward.default: _copy_of_gradient,
    aten.max_pool2d_with_indices.default: _pooled,
    aten.avg_pool2d.default: _pooled,
    aten.max_pool2d_with_indices_backward.default: _pool_backward,
    aten.avg_pool2d_backward.default: _pool_backward,
    aten.cumsum.default: _cumulated,
    aten.convolution.default: _convolution,
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    **reductions.RULES,
    **losses.RULES,
    **ordering.RULES,
    **pairwise.RULES,
}
