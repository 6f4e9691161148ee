"""Segments that grow by pages."""

from autofit.memory.allocator.settings import MIB, Settings
from tests.memory.allocator.segments import Watched


def test_expandable_segments_grow_by_pages_and_shrink_to_none() -> None:
    allocator = Watched(Settings.parse("expandable_segments:True"))
    first = allocator.given(21 * MIB)
    second = allocator.given(30 * MIB)
    assert allocator.sizes() == [60 * MIB]
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.sizes() == [40 * MIB]  # one whole page of the first was free
    allocator.free(second)
    allocator.empty_cache()
    assert allocator.sizes() == []
    assert (allocator.reserved_bytes, allocator.peak_reserved_bytes) == (0, 60 * MIB)
