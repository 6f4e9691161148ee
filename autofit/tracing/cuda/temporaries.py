"""Temporary memory of CUDA operators: allocated inside one call, besides the results, and released before it returns.

A trace does not show it, because it is allocated below the dispatcher. Each rule follows the host code of torch 2.11
and 2.13, which allocates the same with and without a GPU (reference/memory_prediction.md section 4). Its file in
aten/src/ATen/native is named where the operator's name does not say it.
"""

import math
from functools import partial
from typing import Any

import torch

from autofit.tracing.cuda import ordering, reductions
from autofit.tracing.cuda.allocator_steps import (
    KIB,
    AllocatorSteps,
    Chip,
    Rule,
    after_results,
    around_results,
    copies,
    power_of_two,
    round_up,
)
from autofit.tracing.cuda.reductions import Axes, staging_bytes
from autofit.tracing.cuda.results import (
    UNREDUCED,
    broadcast,
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


def _flash_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """Row sums, and the query's gradient in float32. Sizes are rounded up, since blocks of threads write them."""
    batch, heads, queries, width = args[1].shape
    rows = batch * heads * round_up(queries, 128)
    copied = _copied_by_heads(args[0], args[4])
    keys = args[2]
    # If several query heads share a key head, the gradients of keys and values are made per query head, then summed.
    grouped = (keys.nbytes // keys.shape[1] * heads,) * 2 if keys.shape[1] != heads else ()
    return around_results(*copied, inside=(4 * rows, 4 * rows * round_up(width, 32 if width <= 128 else 64), *grouped))


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
    copied = _copied_by_heads(args[0])
    if half:
        return around_results(*copied, inside=(rows, accumulators))
    first = len(copied)
    steps = (rows * value_width, rows, rows, ~(first + 1), ~first, accumulators, ~(first + 2), ~(first + 3))
    return (*copied, None, *steps, *(~place for place in range(first)))


def _layer_norm_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """Copies of a non-contiguous input (beforehand) and gradient, and sums by blocks of rows.

    The sums occur for many short rows: `LaunchGammaBetaBackwardCUDAKernel` in layer_norm_kernel.cu.
    """
    gradient, inputs = (0 if each.is_contiguous() else each.nbytes for each in args[:2])
    width = math.prod(args[2])
    rows, columns = args[1].numel() // max(width, 1), -(-width // 32)
    parts, sums = 0, (0, 0)
    if rows > 64 * KIB and width // 32 < chip.multiprocessors // 2:
        blocks = min(32 * KIB // columns, -(-rows // 32))
        parts = 4 * width * blocks
        axes = Axes.of((blocks, width), (width, 1), [0])
        sums = staging_bytes(axes, 4, chip)
    return (inputs, None, gradient, parts, parts, *sums, ~5, ~4, *sums, ~7, ~6, ~3, ~2, ~1, ~0)


def _copied_to_layout(like: torch.Tensor, *copied: torch.Tensor) -> AllocatorSteps:
    """Copies of tensors whose layout differs from that of the input `like`."""
    layout = torch.channels_last if is_channels_last(like) else torch.contiguous_format
    return after_results(*(x.nbytes for x in copied if not x.is_contiguous(memory_format=layout)))


def _group_norm_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    channels, groups = 4 * args[1].shape[0] * args[1].shape[1], 4 * args[2].numel()
    return (channels, channels, groups, groups, channels, ~3, ~2, ~4, ~1, ~0)


def _convolution(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """Copies of an input and a weight whose layout differs from that of the convolution."""
    layout = convolved_in(args[0], args[1])
    inputs, weight = (x.nbytes if not x.is_contiguous(memory_format=layout) else 0 for x in args[:2])
    return (inputs, None, weight, ~1, ~0)


def _convolution_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The sum for the bias's gradient, and copies of arguments whose layout differs from that of the convolution."""
    gradient, inputs, weight, wanted = args[0], args[1], args[2], args[10]
    layout = convolved_in(inputs, weight)
    inputs_copy, gradient_copy, weight_copy = (
        x.nbytes if needed and not x.is_contiguous(memory_format=layout) else 0
        for x, needed in ((inputs, wanted[1]), (gradient, True), (weight, wanted[0]))
    )
    axes = Axes.of(gradient.shape, gradient.stride(), [0, *range(2, gradient.dim())])
    sums = staging_bytes(axes, 4, chip) if wanted[2] else (0, 0)
    return (inputs_copy, gradient_copy, None, weight_copy, ~2, None, ~1, ~0, None, *sums, ~4, ~3)


def _copied_by_heads(*tensors: torch.Tensor) -> tuple[int, ...]:
    """Returns the copies that an attention kernel makes of (batch, heads, time, width) tensors not laid out by time."""
    return tuple(tensor.nbytes for tensor in tensors if not tensor.transpose(1, 2).is_contiguous())


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


def _summed(chip: Chip, count: int) -> tuple[int, int]:
    """Returns the buffers of the sum of `count` elements."""
    return staging_bytes(Axes(reduced=((count, 1),), kept=()), 4, chip)


def _errors(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The loss of each element, and the buffers of their sum. The result itself is allocated for all elements too."""
    if len(args) > 2 and args[2] == UNREDUCED:
        return ()
    errors = math.prod(broadcast(*args[:2]))
    return after_results(errors * out.element_size(), *_summed(chip, errors))


def _shrunk(chip: Chip, args: tuple[Any, ...], out: Any, place: int) -> AllocatorSteps:
    """The mean, besides a result that is allocated for all elements. `place` is the position of `reduction`."""
    if len(args) > place and args[place] == UNREDUCED:
        return ()
    return after_results(out.element_size(), *_summed(chip, math.prod(broadcast(*args[:2]))))


def _huber(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The loss of each element, allocated before the result."""
    if len(args) > 2 and args[2] == UNREDUCED:
        return ()
    errors = math.prod(broadcast(*args[:2]))
    return (errors * out.element_size(), None, *_summed(chip, errors), ~2, ~1, ~0)


def _logits(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The logarithm, its weights, and the loss of each element, which may be the result."""
    shape = broadcast(*args[:2])
    each = math.prod(shape) * args[0].element_size()
    weights = args[3] if len(args) > 3 else None
    before: AllocatorSteps = (each,) if weights is None else (each, weights.nbytes, each, ~1, ~2)
    if len(args) > 4 and args[4] == UNREDUCED:
        return (*before, None, ~0)
    loss = sum(step is not None and step >= 0 for step in before)
    return (*before, each, None, *_summed(chip, math.prod(shape)), ~(loss + 2), ~(loss + 1), ~loss, ~0)


def _trilinear(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The product of two operands, and its product with the third, for one index of a dimension at a time."""
    operands, absent, summed = args[:3], args[3:6], args[6]
    unrolled = args[7] if len(args) > 7 else 1
    shapes = [_expanded(one.shape, dims) for one, dims in zip(operands, absent, strict=True)]
    first, second = list[int](), list[int]()
    for dim, sizes in enumerate(zip(*shapes, strict=True)):
        early = dim in summed and (dim in absent[2] or dim == unrolled)
        first.append(1 if early or dim == unrolled else max(sizes[:2]))
        second.append(1 if dim in summed or dim == unrolled else max(sizes))
    size = operands[0].element_size()
    return after_results(math.prod(first) * size, math.prod(second) * size)


def _expanded(shape: tuple[int, ...], absent: list[int]) -> list[int]:
    """Returns a shape with size 1 in the dimensions that an operand lacks."""
    sizes = iter(shape)
    return [1 if dim in absent else next(sizes) for dim in range(len(shape) + len(absent))]


RULES: dict[Any, Rule] = {
    **reductions.RULES,
    **ordering.RULES,
    # A copy from the host goes to a contiguous buffer first, and from there to a strided result (Copy.cu).
    aten._to_copy.default: lambda chip, args, out: after_results(
        *(() if args[0].device.type == out.device.type else copies(out))
    ),
    aten._softmax.default: lambda chip, args, out: after_results(*copies(args[0])),
    aten._log_softmax.default: lambda chip, args, out: after_results(*copies(args[0])),
    # A mask of the hidden elements, and one of the rows that are all hidden (SoftMax.cpp).
    aten._safe_softmax.default: lambda chip, args, out: after_results(
        args[0].numel(), args[0].numel() // max(args[0].shape[args[1]], 1)
    ),
    # The product of the gradient and the result, as a separate tensor. A log-softmax has none.
    aten._softmax_backward_data.default: lambda chip, args, out: after_results(
        args[0].numel() * torch.promote_types(args[0].dtype, args[1].dtype).itemsize, *copies(args[1])
    ),
    aten._log_softmax_backward_data.default: lambda chip, args, out: after_results(*copies(*args[:2])),
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    # The result in float32, if it does not fit into registers: `kNeedsOutputAccumulatorBuffer` (kernel_forward.h).
    aten._scaled_dot_product_efficient_attention.default: lambda chip, args, out: after_results(
        *(() if args[2].shape[-1] <= 128 or args[0].element_size() > 2 else (4 * out[0].numel(),))
    ),
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    # A copy made beforehand, since the kernel only works on contiguous tensors.
    aten.native_layer_norm.default: lambda chip, args, out: around_results(*copies(args[0])),
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    # The scale and shift of each channel of each sample.
    aten.native_group_norm.default: lambda chip, args, out: after_results(*(4 * math.prod(args[0].shape[:2]),) * 2),
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten.native_batch_norm.default: lambda chip, args, out: after_results(
        *(_norm_staging(args[0], values=4) if sums_channels(args[0], args[1]) else ())
    ),
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.upsample_bilinear2d_backward.default: lambda chip, args, out: after_results(*copies(args[0])),
    aten.max_pool2d_with_indices.default: lambda chip, args, out: _copied_to_layout(args[0], args[0]),
    aten.avg_pool2d.default: lambda chip, args, out: _copied_to_layout(args[0], args[0]),
    # Copies of the gradient, and of the indices of the maxima.
    aten.max_pool2d_with_indices_backward.default: lambda chip, args, out: _copied_to_layout(args[1], args[0], args[7]),
    aten.avg_pool2d_backward.default: lambda chip, args, out: _copied_to_layout(args[1], args[0]),
    # The summands, converted to the type of the sums.
    aten.cumsum.default: lambda chip, args, out: after_results(*(() if args[0].dtype is out.dtype else (out.nbytes,))),
    aten.mse_loss.default: _errors,
    aten.smooth_l1_loss.default: _errors,
    aten.binary_cross_entropy.default: partial(_shrunk, place=3),
    aten.soft_margin_loss.default: partial(_shrunk, place=2),
    # Exponential, product and quotient. The gradient is allocated before the last release.
    aten.soft_margin_loss_backward.default: lambda chip, args, out: (*(out.nbytes,) * 3, ~1, ~0, None, ~2),
    aten.huber_loss.default: _huber,
    aten.binary_cross_entropy_with_logits.default: _logits,
    aten._trilinear.default: _trilinear,
    # The contribution of each pair of rows to the gradient (cuda/DistanceKernel.cu).
    aten._cdist_backward.default: lambda chip, args, out: after_results(args[1].nbytes * args[2].shape[-2]),
    aten._pdist_backward.default: lambda chip, args, out: after_results((args[1].shape[0] - 1) * args[1].nbytes),
    # A result with the shape of the images, which is then resized to a larger shape (cuda/Im2Col.cu).
    aten.im2col.default: lambda chip, args, out: around_results(args[0].nbytes) if out.nbytes > args[0].nbytes else (),
    # The grid before the transformation, with a one appended to each position.
    aten.affine_grid_generator.default: lambda chip, args, out: around_results(
        out.nbytes // out.shape[-1] * (out.shape[-1] + 1)
    ),
    # The probabilities in float32, if they are in half precision (cuda/Distributions.cpp).
    aten.bernoulli.default: lambda chip, args, out: after_results(
        *(() if args[0].element_size() > 2 else (4 * args[0].numel(),))
    ),
}
