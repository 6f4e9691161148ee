"""Accelerator: a device with torch's caching allocator, its counters, peaks and limit.

The budget applies to the footprint: the memory that the device loses to this process. The allocator accounts for the
reserved part, for all streams and the pools of captured graphs. Each member adds what lies outside it: the context, and
libraries that allocate memory themselves.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from autofit.core.measurement import Memory
from autofit.devices import host_memory
from autofit.devices.base import Counters, Device, Reading

CONTEXT_BYTES = 1536 * 2**20
"""Upper bound on a context with its libraries, which take 0.3 to 1.3 GB (reference/memory_prediction.md section 4)."""


class Accelerator(Device):
    """A device with torch's caching allocator, reached through `torch.accelerator`."""

    queues_work = True

    @property
    def torch_device(self) -> torch.device:
        """The device with its index, since allocator statistics are per index and another device may become current."""
        if self.index is None:
            self.index = torch.accelerator.current_device_index()
        return torch.device(self.type, self.index)

    @abstractmethod
    def driver_info(self) -> tuple[int, int]:
        """Returns the free and the total memory of the device, as the driver reports them."""

    @abstractmethod
    def fraction_base(self) -> int:
        """Returns the base of the allocator's memory fraction, in bytes."""

    @property
    @abstractmethod
    def is_integrated(self) -> bool:
        """Whether the chip computes in the machine's main memory."""

    def capacity_bytes(self) -> int:
        """Returns the total memory of the device; for an integrated chip at most that of the machine or container."""
        total = self.driver_info()[1]
        return min(total, host_memory.capacity()) if self.is_integrated else total

    def available_bytes(self) -> int:
        """Returns the free memory plus what this process holds, limited to the fraction that the user has set.

        An integrated chip reports only unused memory as free, which is next to nothing once the system has cached some
        files. The system's available memory is used there.
        """
        available = host_memory.available() if self.is_integrated else None
        free = self.driver_info()[0] if available is None else available
        outside = self.outside_bytes()
        found = min(free + self._reserved_bytes() + outside, self.capacity_bytes())
        fraction = self._fraction()
        return found if fraction >= 1 else min(found, int(fraction * self.fraction_base()) + outside)

    def outside_bytes(self) -> int:
        """Returns the bytes that this process holds on the device outside the caching allocator.

        The device's figures do not separate this process from others. Memory used beyond this process's segments is
        attributed to its context, up to `CONTEXT_BYTES`, and the rest to other processes. The error affects the
        available memory and the need of a plan alike. On an integrated chip the figures change with each file that is
        read, so `CONTEXT_BYTES` is assumed.
        """
        if self.is_integrated:
            return CONTEXT_BYTES
        free, total = self.driver_info()
        return min(max(total - free - self._reserved_bytes(), 0), CONTEXT_BYTES)

    def synchronize(self) -> None:
        """Waits for all streams of the device."""
        torch.accelerator.synchronize(self.torch_device)

    def release(self) -> None:
        """Returns cached segments to the device."""
        torch.accelerator.empty_cache()

    def counters(self) -> Counters:
        """Returns `num_ooms` and `num_alloc_retries` of the caching allocator."""
        stats = self._stats()
        return Counters(ooms=int(stats.get("num_ooms", 0)), retries=int(stats.get("num_alloc_retries", 0)))

    def live_bytes(self) -> int:
        """Returns the caching allocator's sum of live tensors."""
        return int(self._stats().get("allocated_bytes.all.current", 0))

    @contextmanager
    def meter(self, static: Callable[[], int]) -> Iterator[Reading]:
        """Meters the steps inside by the allocator's peak counters. This costs nothing, so the steps may be timed."""
        reading, before = Reading(live_bytes=self.live_bytes), self.counters()
        torch.accelerator.reset_peak_memory_stats(self.torch_device)
        yield reading
        self.synchronize()
        after, stats = self.counters(), self._stats()
        reserved = int(stats.get("reserved_bytes.all.peak", 0))
        footprint = reserved + self.outside_bytes()
        reading.memory = Memory(
            allocated_bytes=int(stats.get("allocated_bytes.all.peak", 0)),
            reserved_bytes=reserved,
            footprint_bytes=footprint,
            judged_bytes=footprint,
            judged_by="footprint (reserved + context and libraries)",
            static_bytes=static(),
            allocator_retries=after.retries - before.retries,
            swallowed_ooms=after.ooms - before.ooms,
        )

    @contextmanager
    def limit(self, budget_bytes: int, static: Callable[[], int]) -> Iterator[None]:
        """Caps the caching allocator at the budget less the memory outside it, or at the user's lower fraction."""
        before = self._fraction()
        wanted = max(budget_bytes - self.outside_bytes(), 0) / self.fraction_base()
        self._set_fraction(min(wanted, before))
        try:
            yield
        finally:
            self._set_fraction(before)
            # The limit is stored in whole bytes, rounded down: a restored fraction can read as one byte less.
            if self._fraction() < before < 1:
                self._set_fraction(math.nextafter(before, 1.0))

    def _stats(self) -> dict[str, Any]:
        return torch.accelerator.memory_stats(self.torch_device)

    def _reserved_bytes(self) -> int:
        return int(self._stats().get("reserved_bytes.all.current", 0))

    def _fraction(self) -> float:
        return float(self._memory.get_per_process_memory_fraction(self.torch_device))

    def _set_fraction(self, fraction: float) -> None:
        # 1 or more means no limit. Some allocators report "no limit" as a number far above 1.
        self._memory.set_per_process_memory_fraction(min(fraction, 1.0), self.torch_device)

    @property
    def _memory(self) -> Any:
        return torch.get_device_module(self.type).memory
