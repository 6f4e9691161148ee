"""MemoryBlock and Pool: the blocks that segments are split into, and the lists of free blocks.

Follows `Block`, `BlockPool`, `BlockComparatorSize` and `try_merge_blocks` of c10/cuda/CUDACachingAllocator.cpp. The
sets of the original are one list per stream here, since no search crosses streams.
"""

from bisect import bisect_left, insort

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
        first, after = self, self.after
        if after is not None and after.free and after.mapped == self.mapped:
            self._absorb(after)
        before = self.before
        if before is not None and before.free and before.mapped == self.mapped:
            first = before
            before.pool.remove(before)
            before.size += self.size
            before.after = self.after
            if before.after is not None:
                before.after.before = before
        return first

    def _absorb(self, after: "MemoryBlock") -> None:
        after.pool.remove(after)
        self.size += after.size
        self.after = after.after
        if self.after is not None:
            self.after.before = self


class Pool:
    """The free blocks of one stream and one size class.

    Attributes:
        stream: identifier of the stream.
        small: whether its segments serve requests up to 1 MiB.
        least_rest: minimum size of the remainder for a block to be split.
        places: sort keys of the cached blocks, in order of best fit.
        cached: cached blocks by sort key.
        unmapped: unmapped address space of expandable segments, by address.
    """

    __slots__ = ("cached", "least_rest", "places", "small", "stream", "unmapped")

    def __init__(self, stream: int, small: bool, least_rest: int) -> None:
        self.stream = stream
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
