"""MemoryBlock and Pool: the blocks that segments are split into, and the lists of free blocks.

Follows `Block`, `BlockPool`, `BlockComparatorSize` and `try_merge_blocks` of c10/cuda/CUDACachingAllocator.cpp. The
sets of the original are one list per stream here, since no search crosses streams.

Driver: the source of the caching allocator's segments.

ExpandableSegments: segments that grow page by page (`expandable_segments:True`).

Follows `ExpandableSegment`, `find_expandable_block`, `try_allocate_expandable_block`, `map_block` and `unmap_block` of
c10/cuda/CUDACachingAllocator.cpp. A segment reserves address space for more than the whole device. Memory is mapped
into it on demand, at the lowest address first. Completely free pages are unmapped when the cache is emptied.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass

from autofit.memory.allocator.settings import SMALL_SEGMENT_BYTES

PAGE_BYTES = 2 << 20
"""CUDA allocates device memory in pages of 2 MiB."""


@dataclass(slots=True)
class Driver:
    """Memory and addresses of a device, as cudaMalloc and cuMemCreate return them.

    Addresses only increase. The real driver may reuse an address, which can only affect the choice between two free
    blocks of equal size.

    Attributes:
        capacity_bytes: total memory that it can allocate. None is unlimited.
        reserved_bytes: memory currently allocated to the caching allocator.
        peak_reserved_bytes: maximum of `reserved_bytes`.
    """

    capacity_bytes: int | None = None
    reserved_bytes: int = 0
    peak_reserved_bytes: int = 0
    _paged_bytes: int = 0
    _next_address: int = PAGE_BYTES

    def take(self, size: int, count: int = 1) -> bool:
        """Allocates `count` pieces of `size` bytes. Returns False, and allocates nothing, if memory is insufficient."""
        paged = self._paged_bytes + _paged(size) * count
        if self.capacity_bytes is not None and paged > self.capacity_bytes:
            return False
        self._paged_bytes = paged
        self.reserved_bytes += size * count
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return True

    def give_back(self, size: int, count: int = 1) -> None:
        """Frees `count` pieces of `size` bytes."""
        self._paged_bytes -= _paged(size) * count
        self.reserved_bytes -= size * count

    def addresses(self, size: int) -> int:
        """Returns the start of `size` bytes of new address space."""
        address = self._next_address
        self._next_address += _paged(size)
        return address


def _paged(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


ADDRESS_BITS = 64
"""Width of an address. Free blocks are sorted by size, then address, with the key (size << ADDRESS_BITS) + address."""


class MemoryBlock:
    """A part of a segment: in use, cached (free and mapped), or address space without memory (unmapped).

    Attributes:
        address: start address.
        size: size in bytes.
        before: the preceding block in the same segment.
        after: the following block in the same segment.
        start: address of its expandable segment. -1 if the segment is not expandable.
        free: whether it is not in use.
        mapped: whether it is backed by memory.
        freed_at: the number of searches made before it was put into its pool. Only set if old segments are collected.
    """

    __slots__ = ("address", "after", "before", "free", "freed_at", "mapped", "pool", "size", "start")

    def __init__(self, address: int, size: int, pool: "Pool", start: int = -1) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.start = start
        self.before: MemoryBlock | None = None
        self.after: MemoryBlock | None = None
        self.free = True
        self.mapped = True
        self.freed_at = 0

    def cut(self, size: int) -> "MemoryBlock":
        """Shortens this block to `size` bytes and returns the rest, which is not in a list yet."""
        rest = MemoryBlock(self.address + size, self.size - size, self.pool, self.start)
        rest.mapped = self.mapped
        self.size = size
        rest.before, rest.after = self, self.after
        if rest.after is not None:
            rest.after.before = rest
        self.after = rest
        return rest

    def joined(self) -> "MemoryBlock":
        """Merges this free block with free neighbours of the same kind, which leave their lists.

        The block with the lowest address is kept, so the first block of a segment is always the same object.
        """
        before, after = self.before, self.after
        if after is not None and after.free and after.mapped == self.mapped:
            after.pool.remove(after)
            self._absorb(after)
        if before is not None and before.free and before.mapped == self.mapped:
            before.pool.remove(before)
            before._absorb(self)
            return before
        return self

    def _absorb(self, after: "MemoryBlock") -> None:
        self.size += after.size
        self.after = after.after
        if self.after is not None:
            self.after.before = self


class Pool:
    """The free blocks of one stream and one size class.

    Attributes:
        small: whether its segments serve requests up to 1 MiB.
        least_rest: minimum size of the remainder for a block to be split.
        places: sort keys of the cached blocks, in order of best fit.
        cached: cached blocks by sort key.
        unmapped: unmapped address space of expandable segments, by address.
    """

    __slots__ = ("cached", "least_rest", "places", "small", "unmapped")

    def __init__(self, small: bool, least_rest: int) -> None:
        self.small = small
        self.least_rest = least_rest
        self.places: list[int] = []
        self.cached: dict[int, MemoryBlock] = {}
        self.unmapped: list[MemoryBlock] = []

    def add(self, block: MemoryBlock) -> None:
        """Puts a free block into its list."""
        if block.mapped:
            place = (block.size << ADDRESS_BITS) + block.address
            insort(self.places, place)
            self.cached[place] = block
        else:
            insort(self.unmapped, block, key=_address)

    def remove(self, block: MemoryBlock) -> None:
        """Removes a free block from its list."""
        if block.mapped:
            place = (block.size << ADDRESS_BITS) + block.address
            del self.places[bisect_left(self.places, place)]
            del self.cached[place]
        else:
            del self.unmapped[bisect_left(self.unmapped, block.address, key=_address)]

    def from_size(self, size: int) -> int:
        """Returns the index in `places` of the smallest cached block of at least `size` bytes."""
        return bisect_left(self.places, size << ADDRESS_BITS)


def _address(block: MemoryBlock) -> int:
    return block.address


class ExpandableSegments:
    """Grows and shrinks the expandable segments of all pools."""

    def __init__(self, driver: Driver, large_page_bytes: int, device_bytes: int) -> None:
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
        if block.before is not None or block.after is not None:  # else the whole segment is gone
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
