"""The CPU: tensors metered by torch's own allocation record, a real limit by `RLIMIT_DATA`.

The record (host_meter.py) lists every allocation and release of the CPU allocator: it is exact and repeats to the byte.
The process's resident memory is reported beside it. The legacy profiler makes it, because starting the Kineto one costs
400 ms a reading; both give the same peak.

What the record leaves out: allocations of threads that the user's code starts itself, and the release of tensors that
were there before it began, so that a model which replaces its buffers or optimizer state is metered as needing more.
"""

import ctypes
import platform
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import torch

from autofit.core.account import Account
from autofit.core.measurement import Memory
from autofit.core.work import Ceilings
from autofit.devices import host_memory, host_recording, host_speed
from autofit.devices.base import Capability, Device, Reading, Recording, nothing
from autofit.devices.host_meter import HostMeter

BOOKKEEPING_BYTES = 2 * 2**20
"""What the interpreter and the graph's nodes may grow by under a limit: they are not tensors."""


class Cpu(Device):
    """The machine's own processors and main memory."""

    type = "cpu"
    meter_slows = True
    is_host = True

    @classmethod
    def is_available(cls) -> bool:
        """Says yes."""
        return True

    def name(self) -> str:
        """Returns the processor's model name."""
        try:
            for line in Path("/proc/cpuinfo").read_text().splitlines():
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
        except OSError:
            pass  # not Linux
        return platform.processor() or platform.machine()

    def capacity_bytes(self) -> int:
        """Returns the machine's main memory, or the control group's limit when that is lower."""
        return host_memory.capacity()

    def available_bytes(self) -> int:
        """Returns what the system could still give plus what this process holds, inside the control group's limit."""
        available = host_memory.available()
        if available is None:
            return self.capacity_bytes()
        # Pages that are shared with others count in both.
        return min(available + (host_memory.status_bytes("VmRSS") or 0), self.capacity_bytes())

    def capabilities(self) -> frozenset[str]:
        """Returns what torch's CPU kernels offer; reduced precision only where the chip computes in it; fp16 is tried.

        Emulated, a step in fp16 was 50 times slower than in fp32: not worth a probe.
        """
        found = {Capability.CHANNELS_LAST, Capability.FOREACH, Capability.FUSED}
        chip: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # older torch cannot say
        for capability in (Capability.BF16, Capability.FP16):
            if any(chip.get(f"{prefix}{capability}") for prefix in ("", "avx512_", "amx_")):
                found.add(capability)
        if Capability.FP16 in found and not host_speed.trains_in(Capability.FP16):
            found.remove(Capability.FP16)
        return frozenset(found)

    @contextmanager
    def meter(self, static: Callable[[], int]) -> Iterator[Reading]:
        """Meters the steps inside by the allocation record; the footprint is the peak resident memory."""
        before, meter = static(), HostMeter()
        reading = Reading(drain=meter.drain)
        footprint_known = _reset_resident_peak()
        meter.start()
        try:
            yield reading
        finally:
            meter.stop()
            reading.drain = nothing
        peak = before + meter.peak_bytes
        reading.memory = Memory(
            allocated_bytes=peak,
            judged_bytes=peak,
            judged_by="live tensors (torch's allocation record)",
            footprint_bytes=host_memory.status_bytes("VmHWM") if footprint_known else None,
            static_bytes=static(),
        )

    def ceilings(self) -> Ceilings:
        """Measures it, with as many threads as torch uses now."""
        return host_speed.measured("fp32", *(c for c in (Capability.BF16, Capability.FP16) if c in self.capabilities()))

    def account(self) -> Account:
        """Returns that live tensors count."""
        return Account(allocator="host")

    def recording(self) -> AbstractContextManager[Recording]:
        """Records what torch's CPU allocator is asked for."""
        return host_recording.recording()

    @contextmanager
    def limit(self, budget_bytes: int, static: Callable[[], int]) -> Iterator[None]:
        """Lets this process allocate only what the budget leaves beside its live tensors, by `RLIMIT_DATA`.

        Exact only in a fresh process that was started with the allocator settings that
        `autofit.probing.remote.bench` gives it. The limit is on the whole
        process, so nothing else should allocate meanwhile.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        _trim()
        held = host_memory.status_bytes("VmData")
        if held is None:  # not Linux: the record alone judges
            yield
            return
        wanted = held + max(budget_bytes - static(), 0) + BOOKKEEPING_BYTES
        resource.setrlimit(
            resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _trim() -> None:
    """Gives freed heap back to the system (glibc; elsewhere there is nothing to do)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _reset_resident_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True
