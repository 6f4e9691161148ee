"""Temporary memory of CUDA's reductions: partial results of several blocks, and copies in a wider type.

`staging_bytes` is a transcription of the parts of `setReduceConfig` and `ReduceConfig` (Reduce.cuh) that affect memory.
It was checked against that code of torch 2.11 on a few thousand shapes.

Sources: aten/src/ATen/native/cuda/Reduce.cuh (`gpu_reduce_kernel`) and the kernels that use it: ReduceSumProdKernel.cu,
ReduceMomentKernel.cu (`WelfordData`), ReduceAMinMaxKernel.cu, ReduceMaxValuesKernel.cu, ReduceArgMaxKernel.cu and
ReduceNormKernel.cu. The copies are made by `make_reduction` in aten/src/ATen/native/ReduceOpsUtils.h.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from autofit.tracing.cuda.allocator_steps import AllocatorSteps, Chip, Rule, after_results, power_of_two

aten = torch.ops.aten
PAIR_BYTES = 16
"""Size of a partial result: a value with its index, or a mean with its sum of squares and two counts."""
MOST_THREADS = 512  # per block; no reduction here computes in complex double, which has half of it
WARP = 32
VECTOR = 4  # elements that a thread reads, or writes, at once
LEAST_VALUES, MOST_VALUES = 16, 256  # per thread
LARGEST_INDEXED = 2**31 - 1  # elements; a larger reduction is cut into pieces


@dataclass(frozen=True, slots=True)
class Axes:
    """The dimensions of a reduction. Dimensions that are adjacent in memory are merged.

    Attributes:
        reduced: (size, stride) of the dimensions that are summed over, smallest stride first.
        kept: (size, stride) of the other dimensions, last to first.
    """

    reduced: tuple[tuple[int, int], ...]
    kept: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, shape: Sequence[int], strides: Sequence[int], dims: Sequence[int]) -> "Axes":
        """Returns the axes of a tensor that is reduced over `dims`."""
        places = range(len(shape))
        reduced = sorted((strides[place], shape[place]) for place in places if place in dims and shape[place] > 1)
        kept, step = [], 1
        for place in reversed([place for place in places if place not in dims]):  # in the order of the result's strides
            if shape[place] > 1:
                kept.append((shape[place], strides[place], step))
            step *= shape[place]
        return cls(_merged([(size, stride, 0) for stride, size in reduced]), _merged(kept))


def staging_bytes(axes: Axes, partial_bytes: int, chip: Chip, vectorised: bool = True) -> tuple[int, int]:
    """Returns the temporary bytes of a reduction: those of the partial results, and of a counter per output block.

    Both are 0 if one block does the whole reduction.

    Args:
        axes: the dimensions of the reduction.
        partial_bytes: bytes of one partial result.
        chip: the device.
        vectorised: whether a thread may read several elements at once. All reductions but moments do.
    """
    inputs, outputs = (prod(size for size, _ in each) for each in (axes.reduced, axes.kept))
    if inputs * outputs > LARGEST_INDEXED or not inputs * outputs:
        return 0, 0
    along_inputs = not axes.kept or (bool(axes.reduced) and axes.reduced[0][1] < axes.kept[0][1])
    width, height = (inputs, outputs) if along_inputs else (outputs, inputs)
    vector = 1
    flat = len(axes.reduced) == 1 and not axes.kept and axes.reduced[0][1] == 1
    if along_inputs and width > 128 and flat and vectorised:
        width //= VECTOR
    elif not along_inputs and axes.kept[0][1] == 1:
        vector = _output_vector(axes)
        width //= vector
    block_width, block_height = _block(width, height, MOST_THREADS // vector)
    per_input, per_output = (block_width, 1) if along_inputs else (1, block_width)
    split = -(-inputs // per_input) >= min(block_height * 16, MOST_VALUES)
    if split:
        per_input *= block_height
    else:
        per_output *= block_height
    grid = -(-(outputs // vector) // per_output)
    room = chip.multiprocessors * (chip.threads // (block_width * block_height))
    values = -(-inputs // per_input)
    if not split or values < MOST_VALUES or grid > room:
        return 0, 0
    blocks = max(min(-(-room // grid), -(-values // LEAST_VALUES)), -(-values // MOST_VALUES))
    if blocks <= 1:
        return 0, 0
    size = partial_bytes * outputs * blocks * (1 if along_inputs else block_width * vector)
    return size, 4 * grid


def _merged(axes: Sequence[tuple[int, int, int]]) -> tuple[tuple[int, int], ...]:
    """Returns (size, stride), with neighbours merged if both the input's and the output's strides allow it."""
    found: list[tuple[int, int, int]] = []
    for size, stride, row in axes:
        if found and found[-1][0] * found[-1][1] == stride and found[-1][0] * found[-1][2] == row:
            found[-1] = (found[-1][0] * size, *found[-1][1:])
        else:
            found.append((size, stride, row))
    return tuple((size, stride) for size, stride, _ in found)


def _output_vector(axes: Axes) -> int:
    """Returns the number of outputs per thread: up to 4, if it divides the sizes and strides."""
    vector = VECTOR
    for number in (axes.kept[0][0], *(stride for _, stride in (*axes.reduced, *axes.kept[1:]))):
        while number % vector:
            vector //= 2
    return vector


def _block(width: int, height: int, most: int) -> tuple[int, int]:
    wide = most if width >= most else power_of_two(width)
    high = most if height >= most else power_of_two(height)
    block_width = min(wide, WARP)
    block_height = min(high, most // block_width)
    return min(wide, most // block_height), block_height


def reduction(chip: Chip, x: torch.Tensor, over: Any, partial_bytes: int, vectorised: bool = True) -> tuple[int, int]:
    """Returns the buffers of a reduction of `x` over `over`: a list of dimensions, one dimension, or None for all."""
    given = [over] if isinstance(over, int) else over
    dims = [dim % max(x.dim(), 1) for dim in given or range(x.dim())]
    axes = Axes.of(x.shape, x.stride(), dims)
    return staging_bytes(axes, partial_bytes, chip, vectorised)


def _sum(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """For a sum or a mean, over some dimensions or all."""
    summed, over = args[0], args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
    # A sum reads 16-bit types and writes float32 without a copy.
    widened = out.dtype is torch.float32 and summed.dtype in (torch.float16, torch.bfloat16)
    if widened or summed.dtype is out.dtype:
        return after_results(*reduction(chip, summed, over, max(summed.element_size(), 4)))
    copied = torch.empty_like(summed, dtype=out.dtype, device="meta")
    return after_results(copied.nbytes, *reduction(chip, copied, over, max(copied.element_size(), 4)))


def _over(partial_bytes: Callable[[int], int], place: int = 1, vectorised: bool = True) -> Rule:
    """Returns the rule of a reduction from the bytes of a partial result, by those of an element.

    `place` is the position of the argument with the dimensions.
    """

    def rule(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
        over = args[place] if len(args) > place else None
        return after_results(*reduction(chip, args[0], over, partial_bytes(args[0].element_size()), vectorised))

    return rule


_VALUES, _PAIRS = _over(lambda size: size), _over(lambda size: PAIR_BYTES)
_MOMENTS = _over(lambda size: PAIR_BYTES * max(size // 4, 1), vectorised=False)
_NORMS = _over(lambda size: max(size, 4), place=2)
RULES: dict[Any, Rule] = {
    **dict.fromkeys((aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default), _sum),
    **dict.fromkeys((aten.amax.default, aten.amin.default, aten.max.default, aten.min.default), _VALUES),
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.all.default, aten.all.dim), _VALUES),
    **dict.fromkeys((aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default), _PAIRS),
    **dict.fromkeys((aten.var.correction, aten.std.correction), _MOMENTS),
    **dict.fromkeys((aten.var_mean.correction, aten.std_mean.correction), _MOMENTS),
    **dict.fromkeys((aten.linalg_vector_norm.default, aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dim_dtype), _NORMS),
    # The exponential of each element minus the maximum, and the buffers of their sum.
    aten.logsumexp.default: lambda chip, args, out: after_results(
        args[0].nbytes, *reduction(chip, args[0], args[1], max(args[0].element_size(), 4))
    ),
}
