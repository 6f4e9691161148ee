"""What CUDA operators take from the allocator inside one call, beside their results, and give back before they return.

No trace shows it: it lies below the dispatcher. Each rule was read off the host code of torch 2.11 and 2.13, which
allocates the same with and without a GPU (reference/memory_prediction.md section 4).
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.torch_version import TorchVersion

from autofit.probing.tracing.reductions import Axes, staging_bytes
from autofit.probing.tracing.results import channels_innermost, is_channels_last

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
stands for the results, which come first where it is missing. What is not taken at this batch but may be at another has
size 0, so that the steps do not depend on the batch."""


def passing(chip: Chip, func: Any, args: tuple[Any, ...], out: Any) -> Passing:
    """Returns what an operator takes beside its results on a CUDA device, and gives back; () for nothing."""
    rule = RULES.get(func)
    return () if rule is None else rule(chip, args, out)


def _sum(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    summed: torch.Tensor = args[0]
    dims = [dim % summed.dim() for dim in args[1] or range(summed.dim())] if summed.dim() else []
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


def _copy_of_gradient(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    return _within(*(() if args[0].is_contiguous() else (_bytes(args[0]),)))


def _group_norm(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    """Scale and shift of each channel of each sample."""
    return _within(*(4 * args[0].shape[0] * args[0].shape[1],) * 2)


def _group_norm_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    channels, groups = 4 * args[1].shape[0] * args[1].shape[1], 4 * args[2].numel()
    return (channels, channels, groups, groups, channels, ~3, ~2, ~4, ~1, ~0)


def _squared_error(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    """The errors, and what their mean takes."""
    if out.dim():
        return ()
    errors = args[0].numel()
    axes = Axes(reduced=((errors, 1),), kept=())
    return _around(_bytes(args[0]), within=staging_bytes(axes, 4, chip.multiprocessors, chip.threads))


def _convolution_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    """The sum that is the bias's gradient, and the copy of a gradient that does not lie as input and weight do."""
    gradient, inputs, weight, wanted = args[0], args[1], args[2], args[10]
    if gradient.dim() != 4:
        return ()
    layout = torch.channels_last if is_channels_last(inputs) or is_channels_last(weight) else torch.contiguous_format
    copied = not gradient.is_contiguous(memory_format=layout)
    axes = Axes.of(gradient.shape, gradient.stride(), (0, 2, 3))
    sums = staging_bytes(axes, 4, chip.multiprocessors, chip.threads) if wanted[2] else (0, 0)
    return (_bytes(gradient) if copied else 0, None, ~0, *sums, ~2, ~1)


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
    return _within(*_norm_staging(args[0], values=4))


def _batch_norm_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> Passing:
    if not channels_innermost(args[1]):
        return ()
    channels, staged = 4 * args[1].shape[1], _norm_staging(args[1], values=2)
    passed = (*staged, *(~(2 + place) for place in reversed(range(len(staged)))))
    return (channels, channels, *passed, None, ~1, ~0)


def _norm_staging(tensor: torch.Tensor, values: int) -> tuple[int, ...]:
    """Returns the buffers of a sum over all but the channels: `flexible_launch_configs` in Normalization.cuh."""
    if not channels_innermost(tensor):
        return ()
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
    aten._to_copy.default: _copy,
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _softmax,
    aten._softmax_backward_data.default: _softmax_backward_product,
    aten._log_softmax_backward_data.default: _softmax_backward,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten.convolution_backward.default: _convolution_backward,
    aten.native_layer_norm.default: _copies,
    aten.native_layer_norm_backward.default: _copies,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten.upsample_bilinear2d_backward.default: _copy_of_gradient,
    aten.mse_loss.default: _squared_error,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
}
