"""CUDA devices, and ROCm devices, which torch also calls "cuda".

Which memory figure is used depends on three things. On an integrated chip "free" leaves out the page cache, so the
system's available memory is used. If NVML lists this process, its figure is exact; otherwise the memory outside the
allocator is bounded (`Accelerator.outside_bytes`). The allocator's fraction refers to the memory that the device was
built with, which may differ from what the driver reports.
"""

import importlib.util
import os
import re
from collections.abc import Callable
from functools import cached_property

import torch

from autofit.chips import ceilings_of
from autofit.core.account import Account
from autofit.core.budget import Budget
from autofit.core.errors import UsageError
from autofit.core.units import format_bytes
from autofit.core.work import Ceilings
from autofit.devices.accelerator import CONTEXT_BYTES, Accelerator
from autofit.devices.base import Capability, T
from autofit.devices.nvml import Nvml

NATIVE, ASYNC = "native", "cudaMallocAsync"
"""The allocator back ends that can be metered: torch's caching allocator, and CUDA's memory pools."""
UNCACHED = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")
"""Environment variables that make torch allocate each tensor from the driver, whatever their value."""
UNREPORTED = ("large_segment_size_mb", "max_non_split_rounding_mb")
"""Options that the allocator reports only within the text of its environment variable."""
SETTINGS = ("expandable_segments", "max_split_size", "garbage_collection_threshold")
AMPERE = (8, 0)
"""The first compute capability with bf16 and TF32."""
VOLTA = (7, 0)
"""The first compute capability that torch.compile generates code for."""


def cuda_capabilities(compute_capability: tuple[int, int] | None) -> frozenset[str]:
    """Returns the capabilities that a CUDA chip has in hardware, whether or not it is present.

    Args:
        compute_capability: the chip's compute capability; None for a chip of ROCm, which computes in bf16 but has no
            TF32.
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


class Cuda(Accelerator):
    """One CUDA or ROCm device."""

    type = "cuda"
    pins_memory = True

    def __init__(self, index: int | None = None) -> None:
        super().__init__(index)
        self._nvml_outside: int | None = None

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

    def outside_bytes(self) -> int:
        """Returns the bytes that this process holds on the device outside the caching allocator.

        A figure of NVML is used only if it is plausible: it may belong to another process with the same number, to the
        whole card under MIG, or to all processes of a container, or it may stand for "not available". After the first
        plausible figure the latest one is kept, so that budgets and peaks use the same source.
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
        return super().outside_bytes()

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
        if settings := self._allocator():
            found["allocator"] = settings
        return found

    def account(self) -> Account | None:
        """Returns the allocator's options in force; None for CUDA's memory pools and for ROCm.

        Traces do not model what operators allocate there.
        """
        if torch.cuda.get_allocator_backend() != NATIVE or torch.version.hip is not None:
            return None
        return Account(allocator="caching", settings=self._options(), outside_bytes=self.outside_bytes())

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
        super().release()

    @cached_property
    def _nvml(self) -> Nvml | None:
        if torch.version.hip is not None or self.is_integrated:
            return None
        return Nvml.open(str(torch.cuda.get_device_properties(self.torch_device).uuid))

    def _options(self) -> str:
        """Returns the allocator's options in the syntax of `PYTORCH_ALLOC_CONF`."""
        known = torch.cuda.memory._snapshot()["allocator_settings"]
        text = str(known.get("PYTORCH_CUDA_ALLOC_CONF") or known.get("PYTORCH_ALLOC_CONF") or "")
        found = [option for name in UNREPORTED for option in re.findall(rf"{name}:\d+", text)]
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

    def _allocator(self) -> str:
        """Returns the settings that affect reserved memory; "" if they are torch's defaults.

        They come from one of three environment variables or from a call. Only the allocator knows which are in force.
        """
        backend = torch.cuda.get_allocator_backend()
        if backend != NATIVE:
            return backend
        known = torch.cuda.memory._snapshot()["allocator_settings"]
        found = [f"{name}={known[name]}" for name in SETTINGS if known.get(name, 0) not in (False, 0.0, -1)]
        divisions = known.get("roundup_power2_divisions", {})
        if any(divisions.values()):
            found.append("roundup_power2_divisions=" + "/".join(str(steps) for steps in divisions.values()))
        return ", ".join(found)
