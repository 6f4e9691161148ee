"""Driver: what the caching allocator gets its segments from."""

from dataclasses import dataclass

PAGE_BYTES = 2 << 20
"""CUDA gives device memory in pages of 2 MiB."""


@dataclass(slots=True)
class Driver:
    """Memory and addresses of a device, as cudaMalloc and cuMemCreate give them.

    Addresses only ever rise; the real driver may use one again, which can only change which of two equally large free
    blocks is taken.

    Attributes:
        capacity_bytes: what it can give in all; None: without end.
        reserved_bytes: what the caching allocator has of it.
        peak_reserved_bytes: the most that it had.
    """

    capacity_bytes: int | None = None
    reserved_bytes: int = 0
    peak_reserved_bytes: int = 0
    _paged_bytes: int = 0
    _next_address: int = PAGE_BYTES

    def take(self, size: int, count: int = 1) -> bool:
        """Takes `count` pieces of `size` bytes; returns False, and takes nothing, when there is too little."""
        paged = self._paged_bytes + _paged(size) * count
        if self.capacity_bytes is not None and paged > self.capacity_bytes:
            return False
        self._paged_bytes = paged
        self.reserved_bytes += size * count
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        return True

    def give_back(self, size: int, count: int = 1) -> None:
        """Gives `count` pieces of `size` bytes back."""
        self._paged_bytes -= _paged(size) * count
        self.reserved_bytes -= size * count

    def addresses(self, size: int) -> int:
        """Returns where `size` bytes of fresh address space begin."""
        address = self._next_address
        self._next_address += _paged(size)
        return address


def _paged(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES
