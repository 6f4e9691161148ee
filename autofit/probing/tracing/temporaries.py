"""What CUDA operators take from the allocator inside one call, beside their results, and give back before they return.

No trace shows it: it lies below the dispatcher. Each rule was read off the host code of torch 2.11 and 2.13, which
allocates the same with and without a GPU (reference/memory_prediction.md section 4).
"""

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.torch_version import TorchVersion

from autofit.probing.tracing.reductions import Axes, staging_bytes
from autofit.probing.tracing.results import (
    UNREDUCED,
    broadcast,
    channels_innermost,
    convolved_in,
    is_channels_last,
    sums_channels,
)

aten = torch.ops.aten
KIB, MIB = 2**10, 2**20


SHARED_SINCE = "2.13"
"""cuBLASLt uses cuBLAS's workspace from this torch on (measured: 2.11 does not)."""


@dataclass(frozen=True, slots=True)
class Chip:
    """What a trace needs to know of a CUDA device.

    Attributes:
        capability: compute capability; it decides which attention kernel runs.
        multiprocessors: their number.
        threads: that one multiprocessor holds at most.
    """

    capability: tuple[int, int] = (8, 0)
    multiprocessors: int = 108
    threads: int = 2048

    @classmethod
    def of(cls, device: torch.device) -> "Chip":
        """Returns that of a device that is present."""
        found = torch.get_device_module(device).get_device_properties(device)
        return cls(
            capability=(found.major, found.minor),
            multiprocessors=found.multi_processor_count,
            threads=found.max_threads_per_multi_processor,
        )

    @property
    def workspaces(self) -> tuple[int, int]:
        """Bytes that cuBLAS gets for each thread and stream, and cuBLASLt beside it (0: it shares cuBLAS's)."""
        return _blas_workspace(self.capability), 0 if TorchVersion(
            torch.__version__
        ) >= SHARED_SINCE else _lt_workspace()


def _blas_workspace(capability: tuple[int, int]) -> int:
    """Returns the sum of CUBLAS_WORKSPACE_CONFIG (":KiB:count" pairs), or torch's default."""
    pairs = [int(number) for number in re.findall(r"\d+", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))]
    if pairs and len(pairs) % 2 == 0:
        return sum(size * count for size, count in zip(pairs[::2], pairs[1::2], strict=True)) * KIB
    return 32 * MIB if capability >= (9, 0) else 8320 * KIB


def _lt_workspace() -> int:
    return int(os.environ.get("CUBLASLT_WORKSPACE_SIZE") or 1024) * KIB


Passing = tuple[int | None, ...]
"""What an operator does with the allocator, step by step: a size is taken, `~i` gives the i-th of them back, and None
stands for the results, which come first where it is missing; of several, each stands for one result and the last for
all that are left. What is not taken at this batch but may be at another has size 0, so that the steps do not depend on
the batch."""


def passing(chip: Chip, func: Any, args: tuple[Any, ...], out: Any) -> Passing:
    """Returns what an operator takes beside its results on a CUDA device, and gives back; () for nothing."""
    rule = RULES.get(func)
    return () if rule is None else rule(chip, args, out)


def _sum(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    """Of a sum or a mean, over some dimensions or over all."""
    summed, over = args[0], args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
    dims = [dim % summed.dim() for dim in over or range(summed.dim())]
    axes = Axes.of(summed.shape, summed.stride(), dims)
    return _within(*staging_bytes(axes, max(summed.element_size(), 4), chip.multiprocessors, chip.threads))


def _softmax(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    return _within(*(() if args[0].is_contiguous() else (_bytes(args[0]),)))


def _softmax_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    return _within(*(_bytes(tensor) for tensor in args[:2] if not tensor.is_contiguous()))


def _softmax_backward_product(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    """The gradient times the result, as a tensor of its own; a log-softmax has none."""
    gradient, result = args[0], args[1]
    product = gradient.numel() * torch.promote_types(gradient.dtype, result.dtype).itemsize
    return _within(product, *(() if result.is_contiguous() else (_bytes(result),)))


def _flash_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    """Row sums, and the query's gradient in float32: with rounded sizes, since blocks of threads write them."""
    batch, heads, queries, width = args[1].shape
    rows = batch * heads * _up(queries, 128)
    copies = _copied_by_heads(args[0], args[4])
    return _around(*copies, within=(4 * rows, 4 * rows * _up(width, 32 if width <= 128 else 64)))


def _efficient_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    """Row sums, and the accumulators of `AttentionBackwardKernel::Params::workspace_size` (kernel_backward.h).

    In float32 the row sums are made by operators of their own: product, sum, and a copy by heads.
    """
    (batch, heads, queries, width), keys, value_width = args[1].shape, args[2].shape[2], args[3].shape[-1]
    half = args[1].dtype is not torch.float32
    side, columns = (64, 64) if width <= 64 else (128, 128 if half and width <= 128 else 64)
    numbers = -(-queries // side) * -(-width // columns) * (side * columns + 4)
    if half and width > 128:  # the gradients of keys and values do not fit into registers either
        splits = min(-(-keys // 64), max(200 // (batch * heads), 1))
        numbers += 2 * splits * 64 * _up(width, 128)
    rows, accumulators = 4 * batch * heads * queries, 4 * batch * heads * numbers
    copies = _copied_by_heads(args[0])
    if half:
        return _around(*copies, within=(rows, accumulators))
    first = len(copies)
    steps = (rows * value_width, rows, rows, ~(first + 1), ~first, accumulators, ~(first + 2), ~(first + 3))
    return (*copies, None, *steps, *(~place for place in range(first)))


def _copy(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    """A copy from the host goes to one piece of memory first, and from there to where the strides say (Copy.cu)."""
    return _within(*(() if args[0].device.type == out.device.type or out.is_contiguous() else (_bytes(out),)))


def _copies(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    """Of an operator that works on tensors in one piece only, and copies others beforehand."""
    return _around(*(_bytes(x) for x in args[:2] if isinstance(x, torch.Tensor) and not x.is_contiguous()))


def _layer_norm_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    """Copies of an input, beforehand, and of a gradient, that do not lie in one piece; sums by blocks of rows.

    The latter for many short rows: `LaunchGammaBetaBackwardCUDAKernel` in layer_norm_kernel.cu.
    """
    gradient, inputs = (0 if each.is_contiguous() else _bytes(each) for each in args[:2])
    width = math.prod(args[2])
    rows, columns = args[1].numel() // max(width, 1), -(-width // 32)
    parts, sums = 0, (0, 0)
    if rows > 64 * KIB and width // 32 < chip.multiprocessors // 2:
        blocks = min(32 * KIB // columns, -(-rows // 32))
        parts = 4 * width * blocks
        axes = Axes.of((blocks, width), (width, 1), [0])
        sums = staging_bytes(axes, 4, chip.multiprocessors, chip.threads)
    return (inputs, None, gradient, parts, parts, *sums, ~5, ~4, *sums, ~7, ~6, ~3, ~2, ~1, ~0)


def _copy_of_gradient(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    return _within(*(() if args[0].is_contiguous() else (_bytes(args[0]),)))


def _pooled(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    return _within(*_copied_to_layout(args[0], args[0]))


def _pool_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    """Copies of the gradient, and of the places of the largest, that do not lie as the input does."""
    places = args[7:8]  # max_pool2d_with_indices_backward has them, avg_pool2d_backward a number or nothing
    return _within(*_copied_to_layout(args[1], args[0], *(x for x in places if isinstance(x, torch.Tensor))))


def _copied_to_layout(like: torch.Tensor, *copied: torch.Tensor) -> tuple[int, ...]:
    layout = torch.channels_last if is_channels_last(like) else torch.contiguous_format
    return tuple(_bytes(x) for x in copied if not x.is_contiguous(memory_format=layout))


def _cumulated(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    """What is summed up, in the type of the sums."""
    return _within(*(() if args[0].dtype is out.dtype else (_bytes(out),)))


def _group_norm(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    """Scale and shift of each channel of each sample."""
    return _within(*(4 * args[0].shape[0] * args[0].shape[1],) * 2)


def _group_norm_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    channels, groups = 4 * args[1].shape[0] * args[1].shape[1], 4 * args[2].numel()
    return (channels, channels, groups, groups, channels, ~3, ~2, ~4, ~1, ~0)


def _errors(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    """The loss of each element, and what their sum takes; the result itself has room for all of them too."""
    if len(args) > 2 and args[2] == UNREDUCED:
        return ()
    errors = math.prod(broadcast(*args[:2]))
    axes = Axes(reduced=((errors, 1),), kept=())
    steps = staging_bytes(axes, 4, chip.multiprocessors, chip.threads)
    return _within(errors * out.element_size(), *steps)


def _convolution(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    """Copies of an input and a weight that do not lie as the convolution wants them."""
    layout = convolved_in(args[0], args[1])
    inputs, weight = (_bytes(x) if not x.is_contiguous(memory_format=layout) else 0 for x in args[:2])
    return (inputs, None, weight, ~1, ~0)


def _convolution_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    """The sum that is the bias's gradient, and copies of what does not lie as the convolution wants it."""
    gradient, inputs, weight, wanted = args[0], args[1], args[2], args[10]
    layout = convolved_in(inputs, weight)
    inputs_copy, gradient_copy, weight_copy = (
        _bytes(x) if needed and not x.is_contiguous(memory_format=layout) else 0
        for x, needed in ((inputs, wanted[1]), (gradient, True), (weight, wanted[0]))
    )
    axes = Axes.of(gradient.shape, gradient.stride(), [0, *range(2, gradient.dim())])
    sums = staging_bytes(axes, 4, chip.multiprocessors, chip.threads) if wanted[2] else (0, 0)
    return (inputs_copy, gradient_copy, None, weight_copy, ~2, None, ~1, ~0, None, *sums, ~4, ~3)


def _copied_by_heads(*tensors: torch.Tensor) -> tuple[int, ...]:
    """Returns the copies that an attention kernel makes of (batch, heads, time, width) not laid out by time first."""
    return tuple(_bytes(tensor) for tensor in tensors if not tensor.transpose(1, 2).is_contiguous())


def _embedding_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    """Sorted indices, and sums over segments of equal ones (EmbeddingBackwardKernel.cu); none for few indices.

    The number of segments is bounded by that of rows, not read back from the device.
    """
    gradient, indices, rows, padding = args[0], args[1], args[2], args[3]
    count, width = indices.numel(), gradient.shape[-1]
    segments = min(count, rows)
    parts = segments + count // 10
    ids, sorting = 8 * count, 65 * count // 4 + 17919  # the latter is what cub's radix sort asks for
    begin = (ids, ids, ids, sorting, ~3, ~2, None)
    found = (ids, 8, ids, 1279, ~7, ~6, 8 * segments, 8 * segments, 1279, ~10, 8, 8 * parts, 4 * width * parts)
    steps = (*begin, *found, ~13, ~12, ~11, ~9, ~8, ~5, ~4, ~1, ~0)
    few = count <= 3072 and padding < 0
    return tuple(0 if few and step is not None and step >= 0 else step for step in steps)


def _batch_norm(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    return _within(*(_norm_staging(args[0], values=4) if sums_channels(args[0], args[1]) else ()))


def _batch_norm_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    if not sums_channels(args[1], args[2]):
        return ()
    channels = 4 * args[1].shape[1]
    staged = _norm_staging(args[1], values=2) if channels_innermost(args[0]) else ()
    passed = (*staged, *(~(2 + place) for place in reversed(range(len(staged)))))
    return (channels, channels, None, None, *passed, None, ~1, ~0)


def _norm_staging(tensor: torch.Tensor, values: int) -> tuple[int, ...]:
    """Returns the buffers of a sum over all but the channels: `flexible_launch_configs` in Normalization.cuh."""
    channels = tensor.shape[1]
    rows = tensor.numel() // channels
    block_x = min(_power(channels), 32)
    block_y = min(_power(-(-rows // 16)), 512 // block_x)
    if block_x * block_y != 512:
        block_x = min(_power(channels), 512 // block_y)
    grid = min(-(-rows // (block_y * 16)), 128)
    return (values * channels * grid * 4, 4 * -(-channels // block_x)) if grid >= 8 else (0, 0)


def _within(*sizes: int) -> Passing:
    """Returns the steps of taking sizes after the results and giving them back, the last first."""
    return (*sizes, *(~place for place in reversed(range(len(sizes)))))


def _around(*sizes: int, within: tuple[int, ...] = ()) -> Passing:
    """Returns the steps of holding `sizes` from before the results on, and taking `within` after them."""
    both = (*sizes, *within)
    return (*sizes, None, *within, *(~place for place in reversed(range(len(both)))))


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def _power(number: int) -> int:
    return 1 << max(number.bit_length() - 1, 0)


RULES: dict[Any, Callable[[Chip, tuple[Any, ...], Any], Passing]] = {
    aten.sum.dim_IntList: _sum,
    aten.sum.default: _sum,
    aten.mean.dim: _sum,
    aten.mean.default: _sum,
    aten._to_copy.default: _copy,
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _softmax,
    aten._softmax_backward_data.default: _softmax_backward_product,
    aten._log_softmax_backward_data.default: _softmax_backward,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
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
    aten.mse_loss.default: _errors,
    aten.smooth_l1_loss.default: _errors,
    aten.convolution.default: _convolution,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
}
