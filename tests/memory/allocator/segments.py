"""A simulated allocator whose segments can be looked at: they are found from their blocks."""

from collections.abc import Iterator
from dataclasses import dataclass

from autofit.memory.allocator.blocks import MemoryBlock
from autofit.memory.allocator.settings import Settings
from autofit.memory.allocator.simulator import CachingAllocator


@dataclass(frozen=True, slots=True)
class Segment:
    """One piece of device memory that the allocator holds.

    Attributes:
        stream: the stream whose requests it serves.
        small: whether it belongs to the small pool.
        blocks: the size of each block in address order, and whether it is in use.
    """

    stream: int
    small: bool
    blocks: tuple[tuple[int, bool], ...]


class Watched(CachingAllocator):
    """The allocator, which also knows the blocks in use."""

    def __init__(self, settings: Settings | None = None, **options: int | None) -> None:
        super().__init__(settings, **options)  # type: ignore[arg-type]  # tests give no device of None bytes
        self._used = set[MemoryBlock]()

    def malloc(self, requested_bytes: int, stream: int = 0) -> MemoryBlock | None:
        block = super().malloc(requested_bytes, stream)
        if block is not None:
            self._used.add(block)
        return block

    def free(self, block: MemoryBlock) -> None:
        self._used.remove(block)
        super().free(block)

    def given(self, size: int, stream: int = 0) -> MemoryBlock:
        """Returns the block of a request that memory suffices for."""
        block = self.malloc(size, stream)
        assert block is not None, "memory ran out"
        return block

    def sizes(self) -> list[int]:
        """Returns the total size of each segment, in address order."""
        return [sum(size for size, _ in segment.blocks) for segment in self.segments()]

    def segments(self) -> Iterator[Segment]:
        """Yields the segments in address order. An expandable segment yields each mapped range."""
        streams = {pool: stream for pools in (self._small, self._large) for stream, pool in pools.items()}
        cached = (block for pool in streams for block in pool.cached.values())
        for head in sorted({_head(block) for block in (*self._used, *cached)}, key=lambda block: block.address):
            blocks: list[tuple[int, bool]] = []
            block: MemoryBlock | None = head
            while block is not None:
                if block.mapped:
                    blocks.append((block.size, not block.free))
                block = block.after
                if blocks and (block is None or not block.mapped):
                    yield Segment(streams[head.pool], head.pool.small, tuple(blocks))
                    blocks = []


def _head(block: MemoryBlock) -> MemoryBlock:
    while block.before is not None:
        block = block.before
    return block
