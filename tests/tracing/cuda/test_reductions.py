"""Buffers of sums, against what torch 2.11's CUDA code took on a device of 108 multiprocessors of 2048 threads."""

from typing import Any

import pytest
import torch

from autofit.tracing.cuda.allocator_steps import Chip
from autofit.tracing.cuda.reductions import Axes, staging_bytes
from tests.tracing.measured import meta, taken

aten = torch.ops.aten
HALF = torch.bfloat16
SQUARE = (8192, 8192)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def buffers(shape: tuple[int, ...], dims: tuple[int, ...], strides: tuple[int, ...] | None = None) -> int:
    return sum(staging_bytes(Axes.of(shape, strides or row_major(shape), dims), 4, Chip()))


@pytest.mark.parametrize(
    ("shape", "dims", "expected"),
    [
        ((2048, 1024), (0,), 16777248),
        ((2048, 768), (0,), 12582936),
        ((2048, 256), (0,), 4194312),
        ((2048, 2000), (0,), 32768064),
        ((256, 8, 768), (0, 1), 12582936),
        ((128, 512), (0,), 0),
    ],
)
def test_column_sums_take_what_the_real_code_took(shape: tuple[int, ...], dims: tuple[int, ...], expected: int) -> None:
    assert buffers(shape, dims) == expected


def test_a_short_row_sum_needs_no_buffer() -> None:
    assert buffers((4096, 512), (1,)) == 0


def test_the_buffer_is_bounded_by_the_device() -> None:
    # However many rows there are, no more blocks run than the device holds at a time.
    small, large = (
        staging_bytes(Axes.of((rows, 1024), (1024, 1), (0,)), 4, Chip(multiprocessors=40, threads=1024))[0]
        for rows in (2**14, 2**18)
    )
    assert small <= large <= 2 * 40 * 1024 * 1024 * 4


def test_neighbouring_dimensions_count_as_one() -> None:
    joined = Axes.of((64, 32, 8), (256, 8, 1), (0, 1))
    assert joined == Axes(reduced=((2048, 8),), kept=((8, 1),))


def test_kept_dimensions_are_in_the_order_of_the_result() -> None:
    # Channels last: in the input the channel is innermost, in the result of a sum over the width it is not.
    axes = Axes.of((4, 16, 8, 32), (4096, 1, 512, 16), (3,))
    assert [size for size, _ in axes.kept] == [8, 16, 4]


def test_what_is_too_large_for_one_pass_has_no_buffer_here() -> None:
    assert buffers((2**17, 2**15), (0,)) == 0


@pytest.mark.parametrize(
    ("func", "dtype", "dims", "sizes"),
    [
        (aten.amax.default, HALF, ([0],), [56623104, 256]),
        (aten.max.dim, torch.float32, (0,), [452984832, 256]),
        (aten.argmax.default, torch.float32, (0,), [452984832, 256]),
        (aten.argmax.default, HALF, (), [8192, 4]),
        (aten.std.correction, HALF, ([0],), [452984832, 256]),
        (aten.var.correction, torch.float32, (), [8192, 4]),
        (aten.linalg_vector_norm.default, torch.float32, (2, [0]), [113246208, 256]),
        (aten.linalg_vector_norm.default, HALF, (2, [0]), [113246208, 256]),
        (aten.any.dim, torch.float32, (0,), [113246208, 256]),
        (aten.all.default, torch.bool, (), [512, 4]),
        (aten.logsumexp.default, torch.float32, ([0],), [268435456, 113246208, 256]),
        (aten.sum.dim_IntList, torch.float32, ([0],), [113246208, 256]),
    ],
)
def test_partial_results(func: Any, dtype: torch.dtype, dims: tuple[Any, ...], sizes: list[int]) -> None:
    assert taken(func, meta(*SQUARE, dtype=dtype), *dims) == sizes


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32])
def test_whole_numbers_are_summed_as_long_ones(dtype: torch.dtype) -> None:
    assert taken(aten.sum.dim_IntList, meta(*SQUARE, dtype=dtype), [0]) == [536870912, 226492416, 256]
