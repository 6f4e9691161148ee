"""CachingAllocator: a simulation of torch's native CUDA caching allocator, in sizes only.

Rules as in c10/cuda/CUDACachingAllocator.cpp of torch 2.11 and 2.13 (`malloc`, `get_free_block`, `should_split`,
`free_block`, `alloc_block`, `garbage_collect_cached_blocks`, `release_available_cached_blocks`,
`release_cached_blocks`). For the same requests it has the same segments, blocks, peaks and counters as the real one
(tests/cuda/test_allocator_simulator.py). Not simulated: private pools (CUDA graphs, MemPool), `record_stream` (a free
does not wait for other streams), memory callbacks, and settings that change while memory is held.
"""

from autofit.memory.allocator.blocks import ADDRESS_BITS, Driver, ExpandableSegments, MemoryBlock, Pool
from autofit.memory.allocator.settings import BLOCK_BYTES, SMALL_BYTES, Settings

UNBOUNDED = 1 << 62
DEVICE_BYTES = 1 << 40


class CachingAllocator:
    """Serves requests as torch would on an otherwise idle device.

    Attributes:
        allocated_bytes: total size of the blocks in use, including remainders too small to split off.
        peak_allocated_bytes: maximum of it since the last `reset_peaks`.
        retries: number of times the whole cache was released because the driver had run out (`num_alloc_retries`).
        ooms: number of requests that could not be served (`num_ooms`).
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
            settings: the allocator's options. None uses torch's defaults.
            capacity_bytes: memory that the driver can allocate to this process. None is unlimited.
            limit_bytes: maximum to reserve, as set by `set_per_process_memory_fraction`. None uses
                `settings.memory_fraction` of `device_bytes`.
            device_bytes: memory of the device. It determines the address space of an expandable segment.
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
        self._searches = 0  # searches in the large pools: the unit of a cached block's age
        self._small: dict[int, Pool] = {}
        self._large: dict[int, Pool] = {}
        self._rounded: dict[int, int] = {}

    @property
    def reserved_bytes(self) -> int:
        """Device memory that the allocator holds."""
        return self._driver.reserved_bytes

    @property
    def peak_reserved_bytes(self) -> int:
        """Maximum of `reserved_bytes` since the last `reset_peaks`."""
        return self._driver.peak_reserved_bytes

    def reset_peaks(self) -> None:
        """Resets both peaks to the present values."""
        self.peak_allocated_bytes = self.allocated_bytes
        self._driver.peak_reserved_bytes = self._driver.reserved_bytes

    def malloc(self, requested_bytes: int, stream: int = 0) -> MemoryBlock | None:
        """Returns the block that serves a request of at least one byte, or None if memory has run out."""
        size = self._rounded.get(requested_bytes)
        if size is None:
            size = self._rounded[requested_bytes] = self._settings.rounded(requested_bytes)
        small = size <= SMALL_BYTES
        pools = self._small if small else self._large
        pool = pools.get(stream)
        if pool is None:
            pool = pools[stream] = Pool(small, BLOCK_BYTES if small or self._expands else SMALL_BYTES + 1)
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
        """Frees a block that `malloc` returned."""
        self.allocated_bytes -= block.size
        block.free = True
        if block.before is not None or block.after is not None:
            block = block.joined()
        if self._collects:
            block.freed_at = self._searches
        block.pool.add(block)

    def empty_cache(self) -> None:
        """Returns completely free segments, and completely free pages of expandable segments, to the driver."""
        for pool in (*self._large.values(), *self._small.values()):
            if self._expands:
                self._expandable.release(pool)
            else:
                for block in [b for b in pool.cached.values() if b.before is None and b.after is None]:
                    self._release(block)

    def _cached(self, pool: Pool, size: int) -> MemoryBlock | None:
        """Returns the best fitting cached block, removed from its pool."""
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
        """Returns whether a block may serve a request, given the limits for blocks that are never split."""
        if size < self._max_split:
            return block_bytes < self._max_split
        return block_bytes < size + self._settings.max_non_split_rounding_bytes

    def _obtained(self, pool: Pool, size: int) -> MemoryBlock | None:
        """Returns new memory from the driver. If it runs out, releases cached segments step by step and retries."""
        if self._collects:
            self._collect()
        block = self._new_block(pool, size)
        if block is None and self._release_unsplittable(pool, size):
            block = self._new_block(pool, size)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._new_block(pool, size)
        return block

    def _new_block(self, pool: Pool, size: int) -> MemoryBlock | None:
        segment_bytes = self._settings.segment_bytes(size)
        if self._limit_bytes is not None and self.reserved_bytes + segment_bytes > self._limit_bytes:
            return None
        if self._expands:
            return self._expandable.grow(pool, size)
        if not self._driver.take(segment_bytes):
            return None
        return MemoryBlock(self._driver.addresses(segment_bytes), segment_bytes, pool)

    def _release(self, block: MemoryBlock) -> None:
        block.pool.remove(block)
        self._driver.give_back(block.size)

    def _release_unsplittable(self, pool: Pool, size: int) -> bool:
        """Releases blocks that are never split until they would hold the request. Returns whether they would."""
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
        """Releases large segments that have not been used for long, if reserved memory is above the threshold."""
        assert self._limit_bytes is not None, "collecting requires a limit"
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
