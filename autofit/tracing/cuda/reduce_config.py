"""Reduce configuration: the buffers in which a sum on CUDA combines the partial results of several blocks.

A transcription of the parts of `setReduceConfig` and `ReduceConfig` (aten/src/ATen/native/cuda/Reduce.cuh) that affect
memory. It was checked against that code of torch 2.11 on a few thousand shapes.

Chip: the properties of a CUDA device that a trace needs, and the notation for an operator's allocator steps.
"""

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.torch_version import TorchVersion

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


def staging_bytes(
    axes: Axes, partial_bytes: int, multiprocessors: int, threads: int, vectorised: bool = True
) -> tuple[int, int]:
    """Returns the temporary bytes of a reduction: those of the partial results, and of a counter per output block.

    Both are 0 if one block does the whole reduction.

    Args:
        axes: the dimensions of the reduction.
        partial_bytes: bytes of one partial result.
        multiprocessors: number of multiprocessors of the device.
        threads: number of threads that one multiprocessor holds.
        vectorised: whether a thread may read several elements at once. All reductions but moments do.
    """
    inputs, outputs = (math.prod(size for size, _ in sizes) for sizes in (axes.reduced, axes.kept))
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
    room = multiprocessors * (threads // (block_width * block_height))
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


KIB, MIB = 2**10, 2**20


SHARED_SINCE = "2.13"
"""First torch version in which cuBLASLt shares cuBLAS's workspace (measured: 2.11 does not)."""


@dataclass(frozen=True, slots=True)
class Chip:
    """The properties of a CUDA device that a trace needs.

    Attributes:
        capability: compute capability. It determines which attention kernel runs.
        multiprocessors: number of multiprocessors.
        threads: maximum number of resident threads per multiprocessor.
    """

    capability: tuple[int, int] = (8, 0)
    multiprocessors: int = 108
    threads: int = 2048

    @classmethod
    def of(cls, device: torch.device) -> "Chip":
        """Returns the chip of a device that is present."""
        found = torch.get_device_module(device).get_device_properties(device)
        return cls(
            capability=(found.major, found.minor),
            multiprocessors=found.multi_processor_count,
            threads=found.max_threads_per_multi_processor,
        )

    @property
    def workspaces(self) -> tuple[int, int]:
        """Workspace bytes of cuBLAS per thread and stream, and those of cuBLASLt (0 if it shares cuBLAS's)."""
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


AllocatorSteps = tuple[int | None, ...]
"""The allocator steps of an operator, in order. A size is an allocation, and `~i` releases the i-th allocation. None
stands for the results, which come first if there is no None. With several Nones, each stands for one result, and the
last for all remaining ones. An allocation that occurs only at other batch sizes has size 0, so that the steps do not
depend on the batch."""


Rule = Callable[[Chip, tuple[Any, ...], Any], AllocatorSteps]
"""A function that returns the allocator steps of an operator on a chip, from its arguments and its result."""


def after_results(*sizes: int) -> AllocatorSteps:
    """Returns the steps that allocate `sizes` after the results and release them in reverse order."""
    return (*sizes, *(~place for place in reversed(range(len(sizes)))))


def around_results(*sizes: int, inside: tuple[int, ...] = ()) -> AllocatorSteps:
    """Returns the steps that allocate `sizes` before the results and `inside` after them, and release all of them."""
    both = (*sizes, *inside)
    return (*sizes, None, *inside, *(~place for place in reversed(range(len(both)))))


def nbytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of all elements, regardless of layout."""
    return tensor.numel() * tensor.element_size()


def round_up(number: int, step: int) -> int:
    """Returns a number rounded up to a multiple of `step`."""
    return -(-number // step) * step


def power_of_two(number: int) -> int:
    """Returns the largest power of two that is not above a number, at least 1."""
    return 1 << max(number.bit_length() - 1, 0)
