"""CachingAllocator: a simulation of torch's native CUDA caching allocator, in sizes only.

Rules as in c10/cuda/CUDACachingAllocator.cpp of torch 2.11 and 2.13 (`malloc`, `get_free_block`, `should_split`,
`free_block`, `alloc_block`, `garbage_collect_cached_blocks`, `release_available_cached_blocks`,
`release_cached_blocks`); with the same requests it has the same segments, blocks, peaks and counters as the real one
(tests/cuda/test_allocator_simulator.py). Not simulated: private pools (CUDA graphs, MemPool), `record_stream` (a free
waits for no other stream), memory callbacks, settings that change while memory is held.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from autofit.memory.allocator.blocks import ADDRESS_BITS, MemoryBlock, Pool
from autofit.memory.allocator.driver import Driver
from autofit.memory.allocator.expandable import ExpandableSegments
from autofit.memory.allocator.settings import BLOCK_BYTES, SMALL_BYTES, Settings

UNBOUNDED = 1 << 62
DEVICE_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class Segment:
    """One piece of device memory that the allocator holds.

    Attributes:
        stream: the stream whose requests it serves.
        small: whether it is of the small pool.
        blocks: size of each block in the order of addresses, and whether it is in use.
    """

    stream: int
    small: bool
    blocks: tuple[tuple[int, bool], ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of all its blocks."""
        return sum(size for size, _ in self.blocks)


class CachingAllocator:
    """Serves requests as torch would on an otherwise idle device.

    Attributes:
        allocated_bytes: blocks in use, each with what was not worth splitting off.
        peak_allocated_bytes: the most of it since the last `reset_peaks`.
        retries: how often the whole cache was given back because the driver had too little (`num_alloc_retries`).
        ooms: requests that could not be served (`num_ooms`).
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        capacity_bytes: int | None = None,
        limit_bytes: int | None = None,
        device_bytes: int = DEVICE_BYTES,
    ) -> None:
        """Starts empty.

        Args:
            settings: the allocator's options; None: torch's defaults.
            capacity_bytes: what the driver can give to this process; None: no end.
            limit_bytes: the most that may be reserved, as `set_per_process_memory_fraction` sets it; None: what
                `settings.memory_fraction` says of `device_bytes`.
            device_bytes: the device's memory; address space of an expandable segment follows from it.
        """
        self._settings = settings or Settings()
        if limit_bytes is None and self._settings.memory_fraction < 1:
            limit_bytes = int(self._settings.memory_fraction * device_bytes)
        self.allocated_bytes = self.peak_allocated_bytes = self.retries = self.ooms = 0
        self._limit_bytes = limit_bytes
        self._driver = Driver(capacity_bytes)
        self._expandable = ExpandableSegments(self._driver, self._settings.large_segment_bytes, device_bytes)
        self._expands = self._settings.expandable_segments
        self._max_split = self._settings.max_split_bytes or UNBOUNDED
        self._collects = (  # expandable segments are never collected
            limit_bytes is not None and self._settings.gc_threshold_ratio > 0 and not self._expands
        )
        self._searches = 0  # in the large pools; a cached block's age is counted in them
        self._heads: set[MemoryBlock] = set()
        self._small: dict[int, Pool] = {}
        self._large: dict[int, Pool] = {}
        self._rounded: dict[int, int] = {}

    @property
    def reserved_bytes(self) -> int:
        """What the allocator holds of the device."""
        return self._driver.reserved_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """The most that it held since the last `reset_peaks`."""
        return self._driver.peak_reserved_bytes

    def reset_peaks(self) -> None:
        """Starts both peaks afresh from what is held now."""
        self.peak_allocated_bytes = self.allocated_bytes
        self._driver.peak_reserved_bytes = self._driver.reserved_bytes

    def malloc(self, requested_bytes: int, stream: int = 0) -> MemoryBlock | None:
        """Returns the block that serves a request of at least one byte, or None when memory has run out."""
        size = self._rounded.get(requested_bytes)
        if size is None:
            size = self._rounded[requested_bytes] = self._settings.rounded(requested_bytes)
        pool = (self._small if size <= SMALL_BYTES else self._large).get(stream)
        if pool is None:
            pool = self._new_pool(stream, small=size <= SMALL_BYTES)
        block = self._cached(pool, size) or self._obtained(pool, size)
        if block is None:
            self.ooms += 1
            return None
        if block.size - size >= pool.least_rest and (size < self._max_split or pool.least_rest == BLOCK_BYTES):
            pool.add(block.cut(size))
        block.free = False
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)
        return block

    def free(self, block: MemoryBlock) -> None:
        """Takes back a block that `malloc` returned."""
        self.allocated_bytes -= block.size
        block.free = True
        if block.before is not None or block.after is not None:
            block = block.joined()
        if self._collects:
            block.freed_at = self._searches
        block.pool.add(block)

    def empty_cache(self) -> None:
        """Gives every segment that is free as a whole back to the driver, and whole free pages of those that grow."""
        for pool in (*self._large.values(), *self._small.values()):
            if self._expands:
                self._expandable.release(pool)
            else:
                for block in [b for b in pool.cached.values() if b.before is None and b.after is None]:
                    self._release(block)

    def segments(self) -> Iterator[Segment]:
        """Yields what is held, in the order of addresses; of an expandable segment each mapped stretch."""
        for head in sorted(self._heads | self._expandable.heads, key=lambda block: block.address):
            blocks: list[tuple[int, bool]] = []
            block: MemoryBlock | None = head
            while block is not None:
                if block.mapped:
                    blocks.append((block.size, not block.free))
                block = block.after
                if blocks and (block is None or not block.mapped):
                    yield Segment(head.pool.stream, head.pool.small, tuple(blocks))
                    blocks = []

    def _new_pool(self, stream: int, small: bool) -> Pool:
        least_rest = BLOCK_BYTES if small or self._expands else SMALL_BYTES + 1
        pool = Pool(stream, small, least_rest)
        (self._small if small else self._large)[stream] = pool
        return pool

    def _cached(self, pool: Pool, size: int) -> MemoryBlock | None:
        """Returns the best fitting cached block, taken out of its pool."""
        if self._collects and not pool.small:
            self._searches += 1
        places = pool.places
        index = pool.from_size(size)
        if index == len(places):
            return None
        if self._expands:
            index = self._expandable.best(pool, index)
        if self._max_split != UNBOUNDED and not self._may_serve(places[index] >> ADDRESS_BITS, size):
            return None
        return pool.cached.pop(places.pop(index))

    def _may_serve(self, block_bytes: int, size: int) -> bool:
        """Says whether a block, which may be one that is never split, is near enough in size."""
        if size < self._max_split:
            return block_bytes < self._max_split
        return block_bytes < size + self._settings.max_non_split_rounding_bytes

    def _obtained(self, pool: Pool, size: int) -> MemoryBlock | None:
        """Returns fresh memory from the driver; when it has too little, gives more and more of the cache back."""
        if self._collects:
            self._collect()
        block = self._fresh(pool, size)
        if block is None and self._release_unsplittable(pool, size):
            block = self._fresh(pool, size)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._fresh(pool, size)
        return block

    def _fresh(self, pool: Pool, size: int) -> MemoryBlock | None:
        segment_bytes = self._settings.segment_bytes(size)
        if self._limit_bytes is not None and self.reserved_bytes + segment_bytes > self._limit_bytes:
            return None
        if self._expands:
            return self._expandable.grow(pool, size)
        if not self._driver.take(segment_bytes):
            return None
        block = MemoryBlock(self._driver.addresses(segment_bytes), segment_bytes, pool)
        self._heads.add(block)
        return block

    def _release(self, block: MemoryBlock) -> None:
        block.pool.remove(block)
        self._heads.remove(block)
        self._driver.give_back(block.size)

    def _release_unsplittable(self, pool: Pool, size: int) -> bool:
        """Gives back blocks that are never split until they would hold the request; says whether they do."""
        if self._max_split == UNBOUNDED or self._expands:
            return False
        wanted = max(size, self._max_split)
        index = pool.from_size(wanted)
        if index < len(pool.places):
            self._release(pool.cached[pool.places[index]])
            return True
        released = 0
        while pool.places and released < wanted:
            block = pool.cached[pool.places[-1]]
            if block.size < self._max_split:
                break
            released += block.size
            self._release(block)
        return released >= wanted

    def _collect(self) -> None:
        """Gives large segments back that have not been used for long, once the threshold of the limit is passed."""
        assert self._limit_bytes is not None, "collecting needs a limit"
        excess = self.reserved_bytes - int(self._settings.gc_threshold_ratio * self._limit_bytes)
        blocks = [b for p in self._large.values() for b in p.cached.values() if b.before is None and b.after is None]
        while excess > 0 and blocks:
            ages = [self._searches - block.freed_at for block in blocks]
            threshold = sum(ages) / len(ages)
            old = [block for block, age in zip(blocks, ages, strict=True) if age >= threshold]
            blocks = [block for block, age in zip(blocks, ages, strict=True) if age < threshold]
            for block in old:
                excess -= block.size
                self._release(block)
