"""Apple's GPUs, through `torch.mps`. Written from torch's sources and never run on hardware; a caveat says so.

`torch.accelerator` has no memory functions for MPS before torch 2.13 (pytorch #167447), so this module uses those of
`torch.mps`, which every supported version has. They report no peaks. But Metal's allocator keeps its memory unless
memory runs short, so the driver's memory after the steps is the peak of the steps.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from autofit.core.measurement import Memory
from autofit.devices import host_memory
from autofit.devices.base import Capability, Device, Reading

DEFAULT_RATIO, HIGHEST_RATIO = 1.7, 2.0
"""The allocator's default and highest limit, relative to the recommended memory (ATen/mps/MPSAllocator.h)."""


class Mps(Device):
    """The GPU of a Mac. Untested on hardware."""

    type = "mps"
    queues_work = True

    @classmethod
    def is_available(cls) -> bool:
        """Returns whether this build of torch and this system support Metal."""
        return torch.mps.is_available()

    @property
    def torch_device(self) -> torch.device:
        """The device with its index, as tensors report it. There is only one."""
        return torch.device("mps", 0)

    def name(self) -> str:
        """Returns the chip's name."""
        return str(torch.backends.mps.get_name())

    def capacity_bytes(self) -> int:
        """Returns the memory that Metal recommends as a maximum. Beyond it the machine becomes slow."""
        return int(torch.mps.recommended_max_memory())

    def available_bytes(self) -> int:
        """Returns the system's available memory plus what this process holds; the capacity if unknown (macOS)."""
        capacity, available = self.capacity_bytes(), host_memory.available()
        return capacity if available is None else min(available + self._driver_bytes(), capacity)

    def caveats(self) -> tuple[str, ...]:
        """Returns what is unknown about this back end."""
        return (
            "the mps back end has never been run on hardware: check the memory of a longer training run yourself",
            "Metal does not report peaks, allocator retries, out-of-memory errors that the model hides, or memory "
            "of other programs",
            "a limit set with torch.mps.set_per_process_memory_fraction cannot be read: set it again after tuning",
        )

    def capabilities(self) -> frozenset[str]:
        """Returns the capabilities of torch's kernels for Metal."""
        found = {Capability.FP16, Capability.CHANNELS_LAST, Capability.FUSED}
        if torch.backends.mps.is_macos_or_newer(14, 0):
            found.add(Capability.BF16)
        return frozenset(found)

    def synchronize(self) -> None:
        """Waits until the device has finished all queued work."""
        torch.mps.synchronize()

    def release(self) -> None:
        """Returns cached memory to the system."""
        torch.mps.empty_cache()

    def live_bytes(self) -> int:
        """Returns the bytes of live tensors."""
        return int(torch.mps.current_allocated_memory())

    @contextmanager
    def meter(self, static: Callable[[], int]) -> Iterator[Reading]:
        """Meters the steps inside by the driver's memory after them, an upper bound on live tensors."""
        reading = Reading(live_bytes=self.live_bytes)
        yield reading
        self.synchronize()
        held = self._driver_bytes()
        reading.memory = Memory(
            allocated_bytes=held,
            reserved_bytes=held,
            footprint_bytes=held,
            judged_bytes=held,
            judged_by="the driver's memory after the steps (Metal does not report peaks)",
            static_bytes=static(),
        )

    @contextmanager
    def limit(self, budget_bytes: int, static: Callable[[], int]) -> Iterator[None]:
        """Caps Metal's memory for this process at the budget, then restores torch's default limit."""
        before = _usual_ratio()
        # Zero would mean no limit at all.
        wanted = max(budget_bytes, 1) / self.capacity_bytes()
        torch.mps.set_per_process_memory_fraction(min(wanted, before or HIGHEST_RATIO))
        try:
            yield
        finally:
            torch.mps.set_per_process_memory_fraction(before)

    def _driver_bytes(self) -> int:
        return int(torch.mps.driver_allocated_memory())


def _usual_ratio() -> float:
    """Returns the limit that the allocator started with, as a ratio; 0 means no limit."""
    return float(os.environ.get("PYTORCH_MPS_HIGH_WATERMARK_RATIO", DEFAULT_RATIO))
