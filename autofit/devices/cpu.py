"""The CPU: memory from torch's allocation record, and a hard limit by `RLIMIT_DATA`.

The record lists every allocation and release of the CPU allocator. It is exact and repeatable to the byte. The resident
memory of the process is reported beside it. The record comes from the legacy profiler, because starting the Kineto
profiler costs 400 ms per reading; both give the same peak.

The record does not contain allocations by threads that the user's code starts, nor the release of tensors that existed
before it began. A model that replaces its buffers or optimizer state is therefore metered too high.
"""

import ctypes
import platform
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path
from statistics import median
from time import perf_counter

import torch

from autofit.core.account import Account
from autofit.core.measurement import Memory
from autofit.core.work import Ceilings
from autofit.devices import host_memory
from autofit.devices.base import Capability, Device, Reading, nothing
from autofit.torch_internals import start_memory_record, stop_memory_record

BOOKKEEPING_BYTES = 32 * 2**20
"""Allowance under a limit for what is not tensors: the interpreter, the nodes of the graph, and the primitives and code
that oneDNN keeps for each shape. With 2 MiB, a graph network with ragged batches and routed experts failed in proofs
far below its budget; with 32 MiB it ran. Tensors are judged by the allocation record, which is exact."""


LONG_S = 2e-3
"""Duration from which a matrix product is large enough to reach the peak rate: its launch takes a thousandth of
this."""
SIDES = (128, 256, 512, 1024)
COPIED_BYTES = 64 * 2**20
"""Size of the copy that shows memory bandwidth: larger than the last-level cache of most chips."""
OPERATORS = 200
REPEATS = 3


class Cpu(Device):
    """The machine's processors and main memory."""

    type = "cpu"
    is_host = True
    shapes_kept = 32
    """oneDNN keeps 1,024 primitives by default (ONEDNN_PRIMITIVE_CACHE_CAPACITY). This assumes 32 of them per shape:
    the forward and backward products of ten layers of different size."""

    @classmethod
    def is_available(cls) -> bool:
        """Returns True."""
        return True

    def name(self) -> str:
        """Returns the processor's model name."""
        found = host_memory.text_of(Path("/proc/cpuinfo"), "model name")
        return found if found is not None else platform.processor() or platform.machine()

    def capacity_bytes(self) -> int:
        """Returns the machine's main memory, or the limit of the control group if that is lower."""
        return host_memory.capacity()

    def available_bytes(self) -> int:
        """Returns the system's available memory plus what this process holds, within the control group's limit."""
        available = host_memory.available()
        if available is None:
            return self.capacity_bytes()
        # Pages shared with other processes are in both figures.
        return min(available + (host_memory.status_bytes("VmRSS") or 0), self.capacity_bytes())

    def capabilities(self) -> frozenset[str]:
        """Returns the capabilities of torch's CPU kernels, with bf16 only if the chip computes in it.

        fp16 is not one: on a chip with AVX512-FP16, torch 2.13 emulated it, and a step was 40 to 50 times slower.
        """
        found = {Capability.CHANNELS_LAST, Capability.FOREACH, Capability.FUSED, Capability.COMPILE}
        chip: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # missing in older versions of torch
        if any(chip.get(f"{prefix}{Capability.BF16}") for prefix in ("", "avx512_", "amx_")):
            found.add(Capability.BF16)
        return frozenset(found)

    @contextmanager
    def meter(self, static: Callable[[], int]) -> Iterator[Reading]:
        """Meters the steps inside by the allocation record. The footprint is the peak of resident memory."""
        before, meter = static(), HostMeter()
        reading = Reading(drain=meter.drain, live_bytes=meter.live_bytes)
        try:
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak of resident memory
            footprint_known = True
        except OSError:
            footprint_known = False
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
        """Measures the peak speed with the number of threads that torch uses now."""
        source = torch.empty(COPIED_BYTES, dtype=torch.uint8).fill_(1)
        target, one = torch.empty_like(source).fill_(0), torch.ones(1)

        def issue() -> None:
            for _ in range(OPERATORS):
                torch.add(one, one)

        with torch.inference_mode():
            rates = {"fp32": _rate(torch.float32)}
            if Capability.BF16 in self.capabilities():
                rates["bf16"] = _rate(torch.bfloat16)
            return Ceilings(
                flops_per_s=rates,
                bytes_per_s=2 * COPIED_BYTES / _seconds(lambda: target.copy_(source)),
                operator_s=_seconds(issue) / OPERATORS,
                ahead=False,
            )

    def account(self) -> Account:
        """Returns an account in which live tensors are counted."""
        return Account(allocator="host")

    @contextmanager
    def limit(self, budget_bytes: int, static: Callable[[], int]) -> Iterator[None]:
        """Limits this process by `RLIMIT_DATA` to the part of the budget that its live tensors leave.

        This is exact only in a fresh process with the allocator settings of `autofit.probing.remote.bench`. The limit
        applies to the whole process, so nothing else should allocate meanwhile.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # with glibc
            trim(0)  # returns freed heap memory to the system
        held = host_memory.status_bytes("VmData")
        if held is None:  # not Linux: only the record is used
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


_usage_bytes = methodcaller("cpu_memory_usage")  # of an event; 0 if it is not a memory event


class HostMeter:
    """Adds up the allocations and releases of torch's CPU allocator between `start` and `stop`.

    The record has no operators, and each call of `drain` processes and clears it, so that it stays small however long a
    step is: 0.6 kB for each allocation and release since the last call.

    Releases of memory that was allocated before the start do not count. Torch leaves them out of its record, except at
    addresses where a block from an earlier record was released while nothing was recorded: there it reports a release
    with the size of that block. So a release counts only if a recorded allocation of its size is live.

    Attributes:
        peak_bytes: highest sum of allocations less releases so far. It is an upper bound: each thread counts with its
            highest sum since the last `drain`.
    """

    def __init__(self) -> None:
        self.peak_bytes = 0
        self._live_bytes = 0
        self._live_sizes: Counter[int] = Counter()

    def start(self) -> None:
        """Starts the record. A thread can make only one record at a time."""
        start_memory_record()

    def drain(self) -> None:
        """Processes the record made so far and starts an empty one. Restarting takes some microseconds."""
        self.stop()
        self.start()

    def live_bytes(self) -> int:
        """Returns the sum of allocations less releases since the start."""
        self.drain()
        return self._live_bytes

    def stop(self) -> None:
        """Ends the record and processes it."""
        threads = stop_memory_record()
        peak = live = self._live_bytes
        for thread in threads:
            thread_peak, thread_live = self._add_up(map(_usage_bytes, thread))
            peak += thread_peak
            live += thread_live
        self._live_bytes = live
        self.peak_bytes = max(self.peak_bytes, peak)

    def _add_up(self, changes: Iterable[int]) -> tuple[int, int]:
        """Returns the highest and the last sum of one thread's allocations less its releases."""
        sizes, peak, live = self._live_sizes, 0, 0
        for change in changes:
            if change > 0:
                sizes[change] += 1
            elif not sizes[-change]:
                continue
            else:
                sizes[-change] -= 1
            live += change
            peak = max(peak, live)
        return peak, live


def _rate(dtype: torch.dtype) -> float:
    """Returns the peak rate in operations per second, from the largest product that was measured."""
    rate = 0.0
    for side in SIDES:
        factor = torch.ones(side, side, dtype=dtype)
        seconds = _seconds(lambda factor=factor: torch.mm(factor, factor))  # type: ignore[misc]  # bound early
        rate = 2 * side**3 / seconds
        if seconds > LONG_S:
            break
    return rate


def _seconds(work: Callable[[], object]) -> float:
    """Returns the median duration of a few runs in seconds, after one warm-up run."""
    times = []
    for _ in range(REPEATS + 1):
        began = perf_counter()
        work()
        times.append(perf_counter() - began)
    return median(times[1:])
