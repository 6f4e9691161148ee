from typing import Any

import pytest
import torch

from autofit.probing.tracing.chip import Chip
from autofit.probing.tracing.temporaries import passing
from tests.probing.tracing.measured import meta, taken

aten = torch.ops.aten
LONG = torch.int64


@pytest.mark.parametrize(
    ("shape", "dtype", "dim", "sizes"),
    [
        ((32, 512, 512), torch.float32, -1, [4096]),
        ((512, 1000), LONG, -1, [8000]),
        ((64, 10000), torch.float32, -1, [5120000, 5120000, 2560000, 7902719]),
        ((512, 10000), torch.float32, -1, [40960000, 61440255]),
        ((512, 10000), LONG, -1, [40960000, 81920255]),
        ((1, 100000), torch.float32, -1, [800000, 1242623]),
        ((4, 2097152), torch.float32, -1, [16777216, 25873919]),
        ((1, 100000), torch.bfloat16, -1, [800000, 5469183]),
        ((10000, 64), torch.float32, 0, [2560000, 2560000, 5120000, 5120000, 5120000, 2560000, 7902719]),
    ],
)
def test_sort(shape: tuple[int, ...], dtype: torch.dtype, dim: int, sizes: list[int]) -> None:
    assert taken(aten.sort.default, meta(*shape, dtype=dtype), dim) == pytest.approx(sizes, rel=0.001)


@pytest.mark.parametrize(
    ("shape", "dtype", "sizes"),
    [
        ((16384, 512), torch.float32, [65536, 131072, 131072, 8388608, 16777216, 65536, 65536, 1279]),
        ((16384, 512), torch.bfloat16, [32768, 131072, 131072, 8388608, 16777216, 65536, 65536, 1279]),
        ((32, 262144), torch.float32, [128, 256, 256, 344064, 32768, 2688, 2688, 1279]),
        ((16384, 64), torch.float32, []),
    ],
)
def test_topk(shape: tuple[int, ...], dtype: torch.dtype, sizes: list[int]) -> None:
    assert taken(aten.topk.default, meta(*shape, dtype=dtype), 8) == sizes


def steps(func: Any, *args: Any) -> Any:
    return passing(Chip(), func, args, func(*args))


def test_a_roll_over_two_dimensions_makes_two_tensors() -> None:
    """Row `roll2`: shifted windows."""
    x = meta(64, 64, 8192)
    assert steps(aten.roll.default, x, [1, 1], [0, 1]) == (134217728, None, ~0)
    assert steps(aten.roll.default, x, [1, 1, 1], [0, 1, 2]) == (134217728, 134217728, None, ~1, ~0)
    assert steps(aten.roll.default, x, [1], [0]) == (None,)
    assert steps(aten.roll.default, x.permute(2, 0, 1), [1, 1], [0, 1]) == (134217728, 134217728, ~0, None, ~1)


def test_adding_up_by_index_sorts_the_positions() -> None:
    places = meta(16384, dtype=LONG)
    sizes = taken(aten.index_put.default, meta(1000, 512), [places], meta(16384, 512), True)
    assert sum(sizes) == pytest.approx(4 * 131072 + 271871, rel=0.05)
    assert taken(aten.index_put.default, meta(1000, 512), [places], meta(16384, 512), False) == []


def test_the_gradient_of_a_bag_is_that_of_an_embedding() -> None:
    gradient, ids, offsets = meta(32, 512), meta(16384, dtype=LONG), meta(32, dtype=LONG)
    arguments = (gradient, ids, offsets, ids, offsets, offsets, 10000, False, 0, False, None)
    bag = passing(Chip(), aten._embedding_bag_backward.default, arguments, meta(10000, 512))
    plain = passing(Chip(), aten.embedding_dense_backward.default, (gradient, ids, 10000, -1), meta(10000, 512))
    assert bag == plain
    assert 23834624 in bag
