"""Temporary memory of CUDA operators that order elements: sorts, top-k, sums by index.

Sources: aten/src/ATen/native/cuda/Sort.cpp, Sort.cu, TensorTopK.cu, Indexing.cu, IndexKernel.cpp, Unique.cu,
EmbeddingBackwardKernel.cu and EmbeddingBag.cu. The memory of cub's sorts and scans was measured.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from autofit.tracing.cuda.allocator_steps import (
    AllocatorSteps,
    Chip,
    Rule,
    after_results,
    around_results,
    round_up,
)

aten = torch.ops.aten
ONE_TILE = 2304
"""Maximum number of eight-byte keys that one block sorts without temporary memory (measured)."""
SHORT = 4096
"""Maximum length of rows that are sorted by one block each (`should_use_small_sort`)."""
FEW, LONG = 128, 1_000_000
"""Number of rows below which all rows are sorted together, and row length from which each row is sorted separately
(Sort.cu)."""
LEAST_ROW = ((20, 20000), (40, 10000), (80, 8000), (200, 5000), (800, 3000), (4000, 800))
"""Pairs of a maximum number of rows and the minimum row length from which several blocks share a row
(`should_use_multiblock` in TensorTopK.cu)."""
ITEMS, BINS = 256, 256
"""Number of threads of a block, and number of values of a digit."""
RESIDENT = 6
"""Number of top-k blocks that one multiprocessor runs at a time, limited by registers."""


def _sorting(count: int, key_bytes: int) -> int:
    """Returns the temporary bytes of cub's radix sort of keys with eight-byte values."""
    return (key_bytes + 8) * count + (4469000 if key_bytes <= 2 else count // 3 + 9300)


def _sorting_indices(count: int, most: int) -> int:
    """Returns the temporary bytes of cub's sort of `count` indices below `most`.

    A pass sorts eight bits; several passes need two copies. The onesweep kernels of DeviceRadixSort use a histogram per
    pass and counters per tile of 3840 indices, both for eight-byte indices and values, aligned to 256 bytes.
    """
    if count <= ONE_TILE:
        return 1
    passes = -(-max(most - 1, 1).bit_length() // 8)
    return passes * 2048 + -(-count // 3840) * 1024 + 511 + (2 * round_up(8 * count, 256) if passes > 1 else 0)


def _sort(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    values, dim = out[0], next((each for each in args[1:] if type(each) is int), -1)
    length, count, key = values.shape[dim] if values.dim() else 1, values.numel(), values.element_size()
    if length <= SHORT:
        return after_results(8 * length)
    rows = count // max(length, 1)
    moved = () if values.transpose(dim, -1).is_contiguous() else (key * count, key * count, 8 * count)
    if rows == 1 or length >= LONG:
        return after_results(*moved, 8 * length, _sorting(length, key))
    if rows < FEW:
        return after_results(*moved, 8 * count, 8 * count, key * count, _sorting(count, key))
    return after_results(*moved, 8 * count, (key + 8) * count + 255)


def _topk(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    x, dim = args[0], args[2] if len(args) > 2 else -1
    length = x.shape[dim] if x.dim() else 1
    rows = x.numel() // max(length, 1)
    least = next((least for most, least in LEAST_ROW if rows <= most), 400)
    if length < least:
        return ()
    shared = -(-length * rows // (chip.multiprocessors * RESIDENT * ITEMS))
    blocks = rows * -(-length // (min(max(shared, 4), 64) * ITEMS))
    counts = (2 * BINS * blocks, 4 * BINS * rows, 4 * blocks, 4 * blocks, 1279)
    return after_results(x.element_size() * rows, 8 * rows, 8 * rows, *counts)


def _roll(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """Dimensions are rolled one after the other, each into a new tensor (`roll_common`, TensorTransformations.h)."""
    dims = len(args[2]) if len(args) > 2 else 0
    parts = (out.nbytes,) * max(dims - 1, 0)
    if dims == 0 or args[0].is_contiguous():
        return around_results(*parts)
    copied = out.nbytes  # a contiguous copy, made beforehand for the first dimension
    if not parts:
        return (copied, None, ~0)
    return (copied, parts[0], ~0, *parts[1:], None, *(~place for place in reversed(range(1, len(parts) + 1))))


def _index_put(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """If values at equal indices are accumulated: the sorted indices, and a contiguous copy of the values.

    Sources: `index_put_with_sort_kernel` and `makeLinearIndex`. Each index is brought into range, then multiplied.
    """
    found = [index for index in args[1] if index is not None]
    if not found or len(args) < 4 or not args[3]:
        return ()
    count = torch.broadcast_shapes(*(index.shape for index in found)).numel()  # type: ignore[no-untyped-call]  # torch has none
    place, written = 8 * count, args[0]
    steps: list[int | None] = [None, place, place, ~0]
    for _ in found[1:]:
        taken = _taken(steps)
        steps += [place, place, ~taken, ~(taken + 1)]
    indexed, slices = _indexed(written, args[1])
    whole = count * (written.numel() // max(indexed, 1))
    copied = args[2].numel() < whole or not args[2].is_contiguous()
    first = _taken(steps)
    steps += [whole * args[2].element_size() if copied else 0, place, place, place]
    steps += [_sorting_indices(count, written.numel() // max(slices, 1))]
    return (*steps, *(~taken for taken in (first + 4, first + 3, first + 2, first + 1, first, 1)))


def _taken(steps: list[int | None]) -> int:
    """Returns the number of allocations in `steps`."""
    return sum(step is not None and step >= 0 for step in steps)


def _indexed(written: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> tuple[int, int]:
    """Returns the number of positions that the indices can address, and of contiguous elements at each position."""
    dims, at = list[int](), 0
    for index in indices:
        width = index.dim() if index is not None and index.dtype in (torch.bool, torch.uint8) else 1
        dims += range(at, at + width) if index is not None else ()
        at += width
    places = math.prod(written.shape[dim] for dim in dims)
    joined = dims == list(range(dims[0], dims[0] + len(dims)))
    return places, math.prod(written.shape[dims[-1] + 1 :]) if joined else written.numel() // max(places, 1)


def _embedding_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """Sorted indices, and sums over segments of equal indices (EmbeddingBackwardKernel.cu); nothing for few indices."""
    gradient, indices, rows, padding = args[0], args[1], args[2], args[3]
    steps = _sorted_sums(indices.numel(), gradient.shape[-1], rows)
    few = indices.numel() <= 3072 and padding < 0
    return tuple(0 if few and step is not None and step >= 0 else step for step in steps)


def _sorted_sums(count: int, width: int, rows: int) -> AllocatorSteps:
    """Returns the steps for `count` indices. The number of segments depends on data; that of rows is an upper bound."""
    segments = min(count, rows)
    parts = segments + count // 10
    ids, sorting = 8 * count, 65 * count // 4 + 17919  # the latter is the memory of cub's radix sort
    begin = (ids, ids, ids, sorting, ~3, ~2, None)
    found = (ids, 8, ids, 1279, ~7, ~6, 8 * segments, 8 * segments, 1279, ~10, 8, 8 * parts, 4 * width * parts)
    return (*begin, *found, ~13, ~12, ~11, ~9, ~8, ~5, ~4, ~1, ~0)


def _embedding_bag_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The same as for an embedding; nothing if the mode is max."""
    gradient, indices, rows, mode = args[0], args[1], args[6], args[8]
    return () if mode == 2 else _sorted_sums(indices.numel(), gradient.shape[-1], rows)


RULES: dict[Any, Rule] = {
    **dict.fromkeys((aten.sort.default, aten.sort.stable), _sort),
    aten.topk.default: _topk,
    aten.roll.default: _roll,
    **dict.fromkeys((aten.index_put.default, aten._index_put_impl_.default, aten.index_put_.default), _index_put),
    # For each element of the mask, the number of set elements before it.
    aten.masked_scatter.default: lambda chip, args, out: after_results(8 * args[0].numel(), args[0].numel() // 55),
    # The selected elements, and the same padded with zeros.
    aten.masked_scatter_backward.default: lambda chip, args, out: around_results(out.nbytes),
    # All elements in sorted order, and the temporary memory of sorting.
    aten._unique2.default: lambda chip, args, out: (args[0].nbytes, args[0].nbytes * 33 // 32, ~1, None, ~0),
    aten.embedding_dense_backward.default: _embedding_backward,
    aten._embedding_bag_backward.default: _embedding_bag_backward,
    aten._embedding_bag_dense_backward.default: _embedding_bag_backward,
}
