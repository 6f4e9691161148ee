"""CUDA devices, and ROCm devices, which torch also calls "cuda".

The budget applies to the footprint: the memory that the device loses to this process. Torch's caching allocator
accounts for the reserved part, for all streams and the pools of captured graphs; the context, and libraries that
allocate memory themselves, are added (`Cuda.outside_bytes`).
"""

import importlib.util
import math
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal

import torch

from autofit.chips import ceilings_of
from autofit.core.account import Account
from autofit.core.budget import Budget
from autofit.core.errors import UsageError
from autofit.core.measurement import Memory
from autofit.core.units import format_bytes
from autofit.core.work import Ceilings
from autofit.devices import host_memory
from autofit.devices.base import Capability, Counters, Device, Misfit, Reading, T
from autofit.devices.nvml import Nvml

CONTEXT_BYTES = 1536 * 2**20
"""Upper bound on a context with its libraries, which take 0.3 to 1.3 GB (reference/memory_prediction.md section 4)."""
NATIVE, ASYNC = "native", "cudaMallocAsync"
"""The allocator back ends that can be metered: torch's caching allocator, and CUDA's memory pools."""
UNCACHED = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")
"""Environment variables that make torch allocate each tensor from the driver, whatever their value."""
UNREPORTED = ("large_segment_size_mb", "max_non_split_rounding_mb")
"""Options that the allocator reports only within the text of its environment variable."""
AMPERE = (8, 0)
"""The first compute capability with bf16 and TF32."""
VOLTA = (7, 0)
"""The first compute capability that torch.compile generates code for."""
LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""The oldest branch of NVIDIA's driver for each major version of CUDA
(https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, table 1, read in November 2026)."""
_ARCHITECTURE = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")


def cuda_capabilities(compute_capability: tuple[int, int] | None) -> frozenset[str]:
    """Returns the capabilities that a CUDA chip has in hardware, whether or not it is present.

    `compute_capability` is None for a chip of ROCm, which computes in bf16 but has no TF32.
    """
    found = {Capability.FP16, Capability.CHANNELS_LAST, Capability.FOREACH, Capability.FUSED, Capability.OWN_MEMORY}
    if compute_capability is None or compute_capability >= AMPERE:
        found.add(Capability.BF16)
    if compute_capability is not None:
        found.add(Capability.CUDNN)
    if compute_capability is not None and compute_capability >= AMPERE:
        found.add(Capability.TF32)
    if compute_capability is None or compute_capability >= VOLTA:
        found |= {Capability.COMPILE, Capability.TUNED_KERNELS, Capability.CUDA_GRAPHS}
    return frozenset(found)


def code_for(architectures: Iterable[str], capability: tuple[int, int]) -> Literal["machine code", "ptx", ""]:
    """Returns what a build for these architectures has for a card: machine code, PTX that the driver compiles, or "".

    Machine code `sm_86` also runs on later cards of the same major version, PTX `compute_86` on all later ones. With
    the suffix "a", both run on that card alone, and with "f" on cards of the same major version, from that minor one on
    (CUDA C++ Programming Guide, sections "Binary compatibility", "PTX compatibility" and "Feature set").
    """
    found = ""
    for kind, major, minor, suffix in (each.groups() for each in map(_ARCHITECTURE.fullmatch, architectures) if each):
        built = (int(major), int(minor))
        if built > capability or (suffix == "a" and built != capability):
            continue
        same = built[0] == capability[0]
        if kind == "sm" and same:
            return "machine code"
        found = "ptx" if kind == "compute" and (same or not suffix) else found
    return "ptx" if found else ""


def gpu_count() -> int:
    """Returns the number of GPUs that torch sees in this process."""
    return torch.cuda.device_count()


def gpu_in_use() -> bool:
    """Returns whether torch has used a GPU in this process."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch has no types here


@contextmanager
def known_gpu_count(count: int) -> Iterator[None]:
    """Has torch answer with a known number of GPUs, without a question to the driver, until the context is left."""
    before = torch.cuda.is_available, torch.cuda.device_count
    torch.cuda.is_available, torch.cuda.device_count = (lambda: count > 0), (lambda: count)
    try:
        yield
    finally:
        torch.cuda.is_available, torch.cuda.device_count = before


class Cuda(Device):
    """One CUDA or ROCm device, with torch's caching allocator, its counters, peaks and limit."""

    type = "cuda"
    queues_work = True
    pins_memory = True

    def __init__(self, index: int | None = None) -> None:
        super().__init__(index)
        self._nvml_outside: int | None = None

    @property
    def torch_device(self) -> torch.device:
        """The device with its index, since allocator statistics are per index and another device may become current."""
        if self.index is None:
            self.index = torch.accelerator.current_device_index()
        return torch.device(self.type, self.index)

    @classmethod
    def is_available(cls) -> bool:
        """Returns whether torch sees a device with a working driver. torch warns if the driver is too old."""
        return torch.cuda.is_available()

    @classmethod
    def count(cls) -> int:
        """Returns how many devices torch sees."""
        return int(torch.cuda.device_count())

    def name(self) -> str:
        """Returns the driver's name of the device."""
        return str(torch.cuda.get_device_name(self.torch_device))

    @property
    def lock_key(self) -> str:
        """The UUID of the card, which does not depend on CUDA_VISIBLE_DEVICES."""
        return f"{self.type}-{torch.cuda.get_device_properties(self.torch_device).uuid}"

    def ceilings(self) -> Ceilings | None:
        """Returns the published peak rates of a card with this name."""
        return ceilings_of(self.name())

    def driver_info(self) -> tuple[int, int]:
        """Returns free and total memory as the driver reports them; under MIG, those of this slice."""
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return int(free), int(total)

    @property
    def is_integrated(self) -> bool:
        """Whether the chip computes in the machine's main memory (Jetson, GB10)."""
        return bool(getattr(torch.cuda.get_device_properties(self.torch_device), "is_integrated", False))

    def fraction_base(self) -> int:
        """Returns the memory that the chip was built with, to which the fraction of torch's allocator refers."""
        if torch.cuda.get_allocator_backend() == ASYNC:
            return int(torch.cuda.mem_get_info(self.torch_device)[1])
        return int(torch.cuda.get_device_properties(self.torch_device).total_memory)

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

        A figure of NVML is used only if it is plausible: it may belong to another process with the same number, to the
        whole card under MIG, or to all processes of a container. After the first plausible figure the latest one is
        kept, so that budgets and peaks use the same source.

        Without NVML, memory used beyond this process's segments is attributed to its context, up to `CONTEXT_BYTES`,
        and the rest to other processes. The error affects the available memory and the need of a plan alike. On an
        integrated chip the figures change with each file that is read, so `CONTEXT_BYTES` is assumed.
        """
        reported = self._nvml.used_bytes() if self._nvml is not None else None
        if reported is not None:
            free, total = self.driver_info()
            (used, named), reserved = reported, self._reserved_bytes()
            if reserved <= used <= total - free and (named or used - reserved <= CONTEXT_BYTES):
                self._nvml_outside = used - reserved
        if self._nvml_outside is not None:
            return self._nvml_outside
        self._nvml = None  # do not query it again at every probe
        if self.is_integrated:
            return CONTEXT_BYTES
        free, total = self.driver_info()
        return min(max(total - free - self._reserved_bytes(), 0), CONTEXT_BYTES)

    def budget(self, wanted: int | float | str | None, varies: bool) -> Budget:
        """Returns the memory budget for the user's `memory_budget`, with its arithmetic in words.

        Raises:
            UsageError: as in `Device.budget`, or torch's allocator cannot be metered.
        """
        backend = torch.cuda.get_allocator_backend()
        if backend not in (NATIVE, ASYNC):
            raise UsageError(
                f"found the CUDA allocator {backend!r}; expected torch's own, whose memory can be metered and limited. "
                "Tune without changing the allocator, or pass device='cpu'."
            )
        if uncached := [name for name in UNCACHED if name in os.environ]:
            raise UsageError(
                f"{uncached[0]} is set: torch then does not account for device memory. Unset it and start again."
            )
        return super().budget(wanted, varies)

    def caveats(self) -> tuple[str, ...]:
        """Returns notes about memory on this device: other users of it, and what its allocator cannot report."""
        found = []
        free, total = self.driver_info()
        unclear = total - free - self._reserved_bytes() - self.outside_bytes()
        if self._nvml is None and unclear > 0 and not self.is_integrated:
            found.append(
                f"{format_bytes(unclear)} of the device seem to belong to other processes, and "
                f"{format_bytes(CONTEXT_BYTES)} are counted as the context of this one: NVML does not separate them"
            )
        if torch.cuda.get_allocator_backend() == ASYNC:
            found.append(
                "the allocator is cudaMallocAsync: it counts no retries and no out-of-memory errors that the model "
                "hides, and its limit covers only live tensors: only the measured peak enforces the budget"
            )
        return tuple(found)

    def capabilities(self) -> frozenset[str]:
        """Returns the capabilities of this generation of chips; torch.compile also needs Triton to be installed."""
        if torch.version.hip is not None:  # as `torch.cuda.is_bf16_supported` has it
            found = cuda_capabilities(None)
        else:
            found = cuda_capabilities(torch.cuda.get_device_capability(self.torch_device))
        found -= {Capability.OWN_MEMORY} if self.is_integrated else frozenset()
        if not torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]  # torch has no types here
            found -= {Capability.CUDNN}
        return found if importlib.util.find_spec("triton") is not None else found - {Capability.COMPILE}

    def versions(self) -> dict[str, str]:
        """Returns the versions of CUDA or ROCm, cuDNN and NVIDIA's driver, and the allocator settings in force."""
        runtime = torch.version.hip or torch.version.cuda or "unknown"
        found = {"cuda" if torch.version.hip is None else "rocm": runtime}
        if torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]  # torch has no types here
            found["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]  # as above
        if torch.version.hip is None and (driver := Nvml.driver_version()):
            found["driver"] = driver
        backend = torch.cuda.get_allocator_backend()
        if settings := _options(_settings()) if backend == NATIVE else backend:
            found["allocator"] = settings
        return found

    def misfit(self) -> Misfit | None:
        """Returns that NVIDIA's driver is too old for the build of torch, or that this build has no code for the card.

        A driver that is too old only counts if torch can use no card: NVIDIA's compatibility packages make some fit.
        """
        built = torch.version.cuda
        if built is None:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of the driver
            available = self.is_available()
        if not available:
            driver, least = Nvml.driver_version(), LEAST_DRIVER.get(int(built.partition(".")[0]), 0)
            if not driver or int(driver.partition(".")[0]) >= least:
                return None
            what = f"torch was built for CUDA {built}, which needs NVIDIA's driver {least} or newer, but finds {driver}"
            remedy = "update the driver, or install a build of torch for an older CUDA"
            return Misfit(f"{what}, so that it uses no GPU", remedy)
        capability = torch.cuda.get_device_capability(self.torch_device)
        code = code_for(torch.cuda.get_arch_list(), capability)
        if code == "machine code":
            return None
        card = f"{self.name()} (compute capability {capability[0]}.{capability[1]})"
        effect = ": the driver compiles each kernel at its first use" if code else " and cannot use it"
        remedy = "install a build of torch for a CUDA version that supports this card with its own kernels"
        return Misfit(f"this build of torch has no kernels for {card}{effect}", remedy)

    def account(self) -> Account | None:
        """Returns the allocator's options in force; None for CUDA's memory pools and for ROCm.

        Traces do not model what operators allocate there.
        """
        if torch.cuda.get_allocator_backend() != NATIVE or torch.version.hip is not None:
            return None
        known = _settings()
        text = str(known.get("PYTORCH_CUDA_ALLOC_CONF") or known.get("PYTORCH_ALLOC_CONF") or "")
        unreported = [option for name in UNREPORTED for option in re.findall(rf"{name}:\d+", text)]
        settings = ",".join(filter(None, [*unreported, _options(known)]))
        return Account(allocator="caching", settings=settings, outside_bytes=self.outside_bytes())

    def synchronize(self) -> None:
        """Waits for all streams of the device."""
        torch.accelerator.synchronize(self.torch_device)

    def counters(self) -> Counters:
        """Returns `num_ooms` and `num_alloc_retries` of the caching allocator."""
        stats = self._stats()
        return Counters(ooms=int(stats.get("num_ooms", 0)), retries=int(stats.get("num_alloc_retries", 0)))

    def live_bytes(self) -> int:
        """Returns the caching allocator's sum of live tensors."""
        return int(self._stats().get("allocated_bytes.all.current", 0))

    def peaks(self) -> tuple[int, int]:
        """Returns the caching allocator's peak counters, which the user's code may reset."""
        stats = self._stats()
        return int(stats.get("allocated_bytes.all.peak", 0)), int(stats.get("reserved_bytes.all.peak", 0))

    @contextmanager
    def meter(self, static: Callable[[], int]) -> Iterator[Reading]:
        """Meters the steps inside by the allocator's peak counters. This costs nothing, so the steps may be timed."""
        reading, before = Reading(live_bytes=self.live_bytes), self.counters()
        torch.accelerator.reset_peak_memory_stats(self.torch_device)
        yield reading
        self.synchronize()
        after, (allocated, reserved) = self.counters(), self.peaks()
        footprint = reserved + self.outside_bytes()
        reading.memory = Memory(
            allocated_bytes=allocated,
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

    def timed(self, work: Callable[[], T]) -> tuple[T, float]:
        """Runs `work`; returns its result and the seconds between two events on the current stream.

        The stream is idle when the first event is recorded. Gaps in which the stream waits for the host are included.
        The time that the host needs to wake up after the last kernel is not. The current device does not change.
        """
        stream = torch.cuda.current_stream(self.torch_device)
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # no types
        self.synchronize()
        first.record(stream)
        result = work()
        last.record(stream)
        self.synchronize()
        return result, float(first.elapsed_time(last)) / 1e3

    def release(self) -> None:
        """Returns cached segments, and first cuBLAS workspaces, which would hold segments, if torch allows it."""
        clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
        if clear is not None:
            clear()
        torch.accelerator.empty_cache()

    def _stats(self) -> dict[str, Any]:
        return torch.accelerator.memory_stats(self.torch_device)

    def _reserved_bytes(self) -> int:
        return int(self._stats().get("reserved_bytes.all.current", 0))

    def _fraction(self) -> float:
        return float(torch.cuda.memory.get_per_process_memory_fraction(self.torch_device))

    def _set_fraction(self, fraction: float) -> None:
        # 1 or more means no limit. Some allocators report "no limit" as a number far above 1.
        torch.cuda.memory.set_per_process_memory_fraction(min(fraction, 1.0), self.torch_device)

    @cached_property
    def _nvml(self) -> Nvml | None:
        if torch.version.hip is not None or self.is_integrated:
            return None
        return Nvml.open(str(torch.cuda.get_device_properties(self.torch_device).uuid))


def _settings() -> dict[str, Any]:
    """Returns the allocator's settings, which come from one of three environment variables or from a call.

    Only the allocator knows which are in force.
    """
    found: dict[str, Any] = torch.cuda.memory._snapshot()["allocator_settings"]
    return found


def _options(known: dict[str, Any]) -> str:
    """Returns settings as options in the syntax of `PYTORCH_ALLOC_CONF`; "" if they are torch's defaults."""
    found = list[str]()
    if (split := known.get("max_split_size", -1)) > 0:
        found.append(f"max_split_size_mb:{split >> 20}")
    if threshold := known.get("garbage_collection_threshold", 0.0):
        found.append(f"garbage_collection_threshold:{threshold}")
    if known.get("expandable_segments"):
        found.append("expandable_segments:True")
    divisions = known.get("roundup_power2_divisions", {})
    if any(divisions.values()):
        listed = ",".join(f"{mib}:{steps}" for mib, steps in divisions.items())
        found.append(f"roundup_power2_divisions:[{listed}]")
    return ",".join(found)
