"""ExpandableSegments: segments that grow page by page (`expandable_segments:True`).

Follows `ExpandableSegment`, `find_expandable_block`, `try_allocate_expandable_block`, `map_block` and `unmap_block` of
c10/cuda/CUDACachingAllocator.cpp. A segment reserves address space for more than the whole device. Memory is mapped
into it on demand, at the lowest address first. Completely free pages are unmapped when the cache is emptied.
"""

from autofit.memory.allocator.blocks import MemoryBlock, Pool
from autofit.memory.allocator.driver import Driver
from autofit.memory.allocator.settings import SMALL_SEGMENT_BYTES


class ExpandableSegments:
    """Grows and shrinks the expandable segments of all pools.

    Attributes:
        heads: the first block of each segment.
    """

    def __init__(self, driver: Driver, large_page_bytes: int, device_bytes: int) -> None:
        self.heads: set[MemoryBlock] = set()
        self._driver = driver
        self._large_page_bytes = large_page_bytes
        self._address_bytes = device_bytes + device_bytes // 8

    def best(self, pool: Pool, index: int) -> int:
        """Returns the index of the best fit. The size of a block includes the address space into which it can grow.

        Args:
            pool: the pool to search.
            index: index of the smallest cached block that is large enough.
        """
        size = _grown(pool.cached[pool.places[index]])
        while index + 1 < len(pool.places):
            larger = _grown(pool.cached[pool.places[index + 1]])
            if larger >= size:
                break
            index, size = index + 1, larger
        return index

    def grow(self, pool: Pool, size: int) -> MemoryBlock | None:
        """Returns a free block of at least `size` bytes, in no list, or None if the driver runs out of memory.

        Memory that was mapped before that stays in the pool, as in torch.
        """
        block: MemoryBlock | None = _room(pool, size) or self._new(pool)
        if block is not None and not block.mapped:
            block = self._map(block, min(size, block.size))
        while block is not None and block.size < size:
            following = block.after
            assert following is not None, "the free range is large enough, so address space follows"
            block = self._map(following, min(size - block.size, following.size))
        if block is not None:
            pool.remove(block)
        return block

    def release(self, pool: Pool) -> None:
        """Returns the completely free pages of a pool to the driver."""
        for block in list(pool.cached.values()):
            self._unmap(block)

    def _page_bytes(self, pool: Pool) -> int:
        return SMALL_SEGMENT_BYTES if pool.small else self._large_page_bytes

    def _new(self, pool: Pool) -> MemoryBlock:
        page = self._page_bytes(pool)
        size = -(-self._address_bytes // page) * page
        start = self._driver.addresses(size)
        block = MemoryBlock(start, size, pool, start)
        block.mapped = False
        pool.add(block)
        self.heads.add(block)
        return block

    def _map(self, block: MemoryBlock, size: int) -> MemoryBlock | None:
        """Maps pages for the first `size` bytes of an unmapped block. Returns the resulting block, in its pool."""
        page = self._page_bytes(block.pool)
        count = -(-size // page)
        if not self._driver.take(page, count):
            return None
        block.pool.remove(block)
        if page * count < block.size:
            block.pool.add(block.cut(page * count))
        block.mapped = True
        block = block.joined()
        block.pool.add(block)
        return block

    def _unmap(self, block: MemoryBlock) -> None:
        page, pool = self._page_bytes(block.pool), block.pool
        first = -(-(block.address - block.start) // page)
        count = (block.address + block.size - block.start) // page - first
        if count <= 0:
            return
        pool.remove(block)
        lead = block.start + first * page - block.address
        if lead:
            front, block = block, block.cut(lead)
            pool.add(front)
        if page * count < block.size:
            pool.add(block.cut(page * count))
        block.mapped = False
        self._driver.give_back(page, count)
        block = block.joined()
        if block.before is None and block.after is None:
            self.heads.remove(block)
        else:
            pool.add(block)


def _grown(block: MemoryBlock) -> int:
    after = block.after
    return block.size + (after.size if after is not None and not after.mapped else 0)


def _room(pool: Pool, size: int) -> MemoryBlock | None:
    """Returns the first block of the lowest free range, mapped or not, that holds `size` bytes and can grow."""
    for unmapped in pool.unmapped:
        before = unmapped.before
        first = before if before is not None and before.free else unmapped
        found, block = 0, first
        while found < size:
            found += block.size
            if block.after is None or not block.after.free:
                break
            block = block.after
        if found >= size:
            return first
    return None
