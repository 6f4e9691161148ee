from typing import Any

import pytest
import torch

from tests.tracing.measured import meta, taken

aten = torch.ops.aten
HALF = torch.bfloat16
SQUARE = (8192, 8192)


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
