"""Segments that grow by pages."""

from autofit.memory.allocator.blocks import MemoryBlock
from autofit.memory.allocator.settings import MIB, Settings
from autofit.memory.allocator.simulator import CachingAllocator


def given(allocator: CachingAllocator, size: int, stream: int = 0) -> MemoryBlock:
    block = allocator.malloc(size, stream)
    assert block is not None, "memory ran out"
    return block


def sizes(allocator: CachingAllocator) -> list[int]:
    return [segment.size_bytes for segment in allocator.segments()]


def test_expandable_segments_grow_by_pages_and_shrink_to_none() -> None:
    allocator = CachingAllocator(Settings.parse("expandable_segments:True"))
    first = given(allocator, 21 * MIB)
    second = given(allocator, 30 * MIB)
    assert sizes(allocator) == [60 * MIB]
    allocator.free(first)
    allocator.empty_cache()
    assert sizes(allocator) == [40 * MIB]  # one whole page of the first was free
    allocator.free(second)
    allocator.empty_cache()
    assert sizes(allocator) == []
    assert (allocator.reserved_bytes, allocator.peak_reserved_bytes) == (0, 60 * MIB)
