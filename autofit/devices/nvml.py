"""NVML: the memory of each process on one device, and the version of NVIDIA's driver. Every failure means "unknown".

The optional package nvidia-ml-py calls the library that comes with the driver. The library reports nothing useful in
most containers, under MIG without permission, on Windows and on ROCm.
"""

import os
from typing import Any, Self

try:
    import pynvml
except ImportError:
    pynvml = None  # without the package, memory outside the allocator has an upper bound only


class Nvml:
    """One device in NVML. Use `open`."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    @classmethod
    def open(cls, uuid: str) -> Self | None:
        """Returns the device (or MIG slice) with torch's `uuid`; None if NVML is unavailable."""
        if pynvml is None or not _started():
            return None
        for kind in ("GPU", "MIG"):
            try:
                return cls(pynvml.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}"))
            except pynvml.NVMLError:
                continue
        return None

    @staticmethod
    def driver_version() -> str:
        """Returns the version of NVIDIA's driver, such as "570.124.06"; "" if NVML is unavailable."""
        if pynvml is None or not _started():
            return ""
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError:
            return ""

    def used_bytes(self) -> tuple[int, bool] | None:
        """Returns the device memory of this process and whether its process id was listed; None if unknown.

        NVML lists the processes of the whole machine by the machine's process ids, which differ from those inside a
        container. This process holds a context; if only one process is listed, it is this one, or all processes of a
        container together.
        """
        try:
            processes = pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except pynvml.NVMLError:
            return None
        found = {process.pid: process.usedGpuMemory for process in processes}
        named = os.getpid() in found
        if not named and len(processes) != 1:
            return None
        used = found[os.getpid()] if named else processes[0].usedGpuMemory
        return None if used is None else (int(used), named)  # None: the driver does not report it


def _started() -> bool:
    """Returns whether NVML could be loaded. It may be loaded any number of times."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True
