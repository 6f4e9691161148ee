from typing import Any

import pytest
import torch

from autofit.tracing.cuda.allocator_steps import Chip
from autofit.tracing.cuda.temporaries import temporary_steps
from tests.tracing.measured import meta, taken

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
    return temporary_steps(Chip(), func, args, func(*args))


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
    assert sum(sizes) == 5 * 131072 + 271871
    assert taken(aten.index_put.default, meta(1000, 512), [places], meta(16384, 512), False) == []


@pytest.mark.parametrize(
    ("rows", "count", "size"),
    [
        (100, 2304, 1), (100, 2401, 3583), (200, 4097, 4607), (200, 10000, 5631), (200, 1000000, 269823),
        (300, 2401, 44543), (60000, 10000, 167935), (60000, 1000000, 16271871),
        (100000, 2401, 46591), (100000, 100000, 1634303), (2**24, 1000000, 16273919),
    ],
)  # fmt: skip
def test_places_are_sorted_by_as_many_bits_as_they_have(rows: int, count: int, size: int) -> None:
    sizes = taken(aten.index_put.default, meta(rows, 1), [meta(count, dtype=LONG)], meta(count, 1), True)
    assert sizes[-1] == size


def test_values_that_lie_apart_are_copied_and_each_further_index_is_added_to_the_places() -> None:
    """Bias tables of shifted windows; the sequences were recorded from the allocator."""
    table, places, place = meta(169, 24), meta(49, 49, dtype=LONG), 8 * 2401
    lying = steps(aten._index_put_impl_.default, table, [places], meta(24, 49, 49).permute(1, 2, 0), True, True)
    assert lying == (None, place, place, ~0, 230496, place, place, place, 3583, ~6, ~5, ~4, ~3, ~2, ~1)
    both = steps(aten.index_put_.default, meta(16, 16, 24), [places, places], meta(49, 49, 24), True)
    added = (None, place, place, ~0, place, place, ~2, ~3)
    assert both == (*added, 0, place, place, place, 3583, ~8, ~7, ~6, ~5, ~4, ~1)
    one = meta(169, 24)
    assert steps(aten.index_put_.default, one, [places], meta(24), True)[4] == 230496  # one value for all places
    spread = steps(aten.index_put_.default, meta(40, 8, 300), [None, places, None], meta(40, 49, 49, 300), True)
    assert spread[8] == 44543  # 320 places in two passes


def test_the_gradient_of_a_bag_is_that_of_an_embedding() -> None:
    gradient, ids, offsets = meta(32, 512), meta(16384, dtype=LONG), meta(32, dtype=LONG)
    arguments = (gradient, ids, offsets, ids, offsets, offsets, 10000, False, 0, False, None)
    bag = temporary_steps(Chip(), aten._embedding_bag_backward.default, arguments, meta(10000, 512))
    plain = temporary_steps(Chip(), aten.embedding_dense_backward.default, (gradient, ids, 10000, -1), meta(10000, 512))
    assert bag == plain
    assert 23834624 in bag
