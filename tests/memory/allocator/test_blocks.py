"""Blocks are cut, joined and found by best fit."""

import pytest

from autofit.memory.allocator.blocks import MemoryBlock, Pool


@pytest.fixture
def pool() -> Pool:
    return Pool(small=False, least_rest=512)


def test_a_cut_block_and_its_rest_are_neighbours(pool: Pool) -> None:
    block = MemoryBlock(1000, 100, pool)
    rest = block.cut(30)
    last = rest.cut(50)
    assert [(b.address, b.size) for b in (block, rest, last)] == [(1000, 30), (1030, 50), (1080, 20)]
    assert (block.after, rest.before, rest.after, last.before) == (rest, block, last, rest)


def test_a_freed_block_joins_both_free_neighbours_and_the_first_remains(pool: Pool) -> None:
    first = MemoryBlock(0, 300, pool)
    middle = first.cut(100)
    last = middle.cut(100)
    pool.add(first)
    pool.add(last)
    joined = middle.joined()
    assert joined is first
    assert (joined.size, joined.before, joined.after) == (300, None, None)
    pool.add(joined)
    assert list(pool.cached.values()) == [first]


def test_a_block_joins_no_neighbour_that_is_in_use_or_not_mapped(pool: Pool) -> None:
    first = MemoryBlock(0, 300, pool)
    middle = first.cut(100)
    last = middle.cut(100)
    first.free = False
    last.mapped = False
    assert middle.joined() is middle
    assert middle.size == 100


def test_the_best_fit_is_the_smallest_that_is_large_enough_then_the_lowest_address(pool: Pool) -> None:
    blocks = [MemoryBlock(address, size, pool) for address, size in ((0, 400), (1000, 200), (2000, 200), (3000, 100))]
    for block in blocks:
        pool.add(block)
    assert pool.cached[pool.places[pool.from_size(150)]] is blocks[1]
    assert pool.cached[pool.places[pool.from_size(201)]] is blocks[0]
    assert pool.from_size(401) == len(pool.places)
    pool.remove(blocks[1])
    assert pool.cached[pool.places[pool.from_size(150)]] is blocks[2]


def test_address_space_without_memory_is_kept_apart(pool: Pool) -> None:
    block = MemoryBlock(0, 400, pool)
    block.mapped = False
    pool.add(block)
    assert (pool.places, pool.unmapped) == ([], [block])
    pool.remove(block)
    assert pool.unmapped == []
