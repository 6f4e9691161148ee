"""Driver: the source of the caching allocator's segments."""

from dataclasses import dataclass

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
