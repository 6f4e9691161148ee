"""CUDA (and ROCm, which torch gives the same names): the caching allocator's own counters, its limit, its events.

The budget is on the footprint: what the device loses to this process. The allocator accounts for the reserved part;
the context and the libraries that allocate for themselves are what remains of the device's used memory, read after
the first work of this process. Other processes' memory cannot be told from that without NVML (pynvml, used where it is
installed), so what was in use before this process allocated anything large is taken to be theirs.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from autofit.core.measurement import Memory
from autofit.devices.base import Capability, Counters, Device, Reading, T

CONTEXT_BYTES = 1536 * 2**20
"""More than a CUDA context with its libraries takes (0.3 to 1.3 GB, reference/memory_prediction.md section 4)."""


class Cuda(Device):
    """One CUDA or ROCm device."""

    type = "cuda"

    def __init__(self, index: int | None = None) -> None:
        super().__init__(index)
        self._foreign: int | None = None

    @classmethod
    def is_available(cls) -> bool:
        """Says whether torch sees a device and its driver answers."""
        return torch.cuda.is_available()

    @classmethod
    def count(cls) -> int:
        """Returns how many devices torch sees."""
        return int(torch.cuda.device_count())

    @property
    def torch_device(self) -> torch.device:
        """The device with its index: allocator statistics are kept per index."""
        return torch.device("cuda", torch.cuda.current_device() if self.index is None else self.index)

    def name(self) -> str:
        """Returns the driver's name of the device."""
        return str(torch.cuda.get_device_name(self.torch_device))

    def capacity_bytes(self) -> int:
        """Returns the memory that the driver reports for the device (for this slice, under MIG)."""
        return int(torch.cuda.mem_get_info(self.torch_device)[1])

    def available_bytes(self) -> int:
        """Returns the free memory plus what this process holds."""
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return int(min(total, free + self._footprint(free, total)))

    def capabilities(self) -> frozenset[str]:
        """Returns what this generation of chips computes in hardware."""
        found = {Capability.FP16, Capability.CHANNELS_LAST, Capability.FOREACH, Capability.FUSED}
        with torch.cuda.device(self.torch_device):
            if torch.cuda.is_bf16_supported(including_emulation=False):
                found.add(Capability.BF16)
        if torch.version.hip is None and torch.cuda.get_device_capability(self.torch_device)[0] >= 8:
            found.add(Capability.TF32)
        return frozenset(found)

    def versions(self) -> dict[str, str]:
        """Returns the CUDA or ROCm and cuDNN versions and the allocator's settings."""
        runtime = torch.version.hip or torch.version.cuda or "unknown"
        found = {"cuda" if torch.version.hip is None else "rocm": runtime}
        if torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]  # torch has no types here
            found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]  # as above
        settings = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF")
        if settings:
            found["allocator"] = settings
        return found

    def synchronize(self) -> None:
        """Waits for all streams of the device."""
        torch.cuda.synchronize(self.torch_device)

    def timed(self, work: Callable[[], T]) -> tuple[T, float]:
        """Runs `work` and returns what it returned, and the seconds between two events on the current stream.

        The stream is idle when the first event is recorded, so gaps in which it waits for the host count, while the
        host's waking up after the last kernel does not.
        """
        with torch.cuda.device(self.torch_device):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # no types
            self.synchronize()
            first.record()
            result = work()
            last.record()
        self.synchronize()
        return result, float(first.elapsed_time(last)) / 1e3

    def release(self) -> None:
        """Gives cached segments back, and cuBLAS workspaces where torch lets us."""
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:
            clear()
        torch.cuda.empty_cache()

    def counters(self) -> Counters:
        """Returns `num_ooms` and `num_alloc_retries` of the caching allocator."""
        stats = torch.cuda.memory_stats(self.torch_device)
        return Counters(ooms=int(stats.get("num_ooms", 0)), retries=int(stats.get("num_alloc_retries", 0)))

    def live_bytes(self) -> int:
        """Returns the caching allocator's sum of live tensors."""
        return int(torch.cuda.memory_allocated(self.torch_device))

    @contextmanager
    def meter(self, static: Callable[[], int]) -> Iterator[Reading]:
        """Meters the steps inside by the allocator's peaks; costs nothing, so the steps may be timed."""
        reading, device = Reading(), self.torch_device
        before = self.counters()
        torch.cuda.reset_peak_memory_stats(device)
        yield reading
        self.synchronize()
        after = self.counters()
        reserved = int(torch.cuda.max_memory_reserved(device))
        footprint = reserved + self._outside()
        reading.memory = Memory(
            allocated_bytes=int(torch.cuda.max_memory_allocated(device)),
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
        """Caps the caching allocator at the budget less what lies outside the allocator."""
        device, total = self.torch_device, self.capacity_bytes()
        before = torch.cuda.get_per_process_memory_fraction(device)
        wanted = max(budget_bytes - self._outside(), 1) / total
        torch.cuda.set_per_process_memory_fraction(min(wanted, before, 1.0), device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(before, device)

    def _outside(self) -> int:
        """Returns the bytes that this process holds on the device outside the caching allocator."""
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return max(self._footprint(free, total) - int(torch.cuda.memory_reserved(self.torch_device)), 0)

    def _footprint(self, free: int, total: int) -> int:
        """Returns the device memory of this process: NVML's figure, else what is used less what others hold."""
        try:
            import pynvml  # noqa: PLC0415  # optional, and only needed here

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(self.torch_device).uuid}")
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
                if process.pid == os.getpid() and process.usedGpuMemory:
                    return int(process.usedGpuMemory)
        except Exception:  # noqa: BLE001  # NVML fails in many ways (MIG, containers, absent); all mean "not known"
            pass
        return max(total - free - self._others(total - free), 0)

    def _others(self, used: int) -> int:
        """Returns what other processes hold, as it was when this process first asked.

        Without NVML a process cannot be told from the others. What is used beyond this process's segments and a
        generous context when the first question comes, before anything large was allocated, is not its own.
        """
        if self._foreign is None:
            mine = int(torch.cuda.memory_reserved(self.torch_device)) + CONTEXT_BYTES
            self._foreign = max(used - mine, 0)
        return self._foreign
