"""NVML: the memory of each process on one device, and the version of NVIDIA's driver. Every failure means "unknown".

The library comes with the driver and is called through `ctypes`, so that no package is needed. It reports nothing
useful in most containers, under MIG without permission, on Windows and on ROCm.
"""

import ctypes
import os
from typing import Any, Self

LIBRARY = "libnvidia-ml.so.1"
_SUCCESS, _INSUFFICIENT_SIZE = 0, 7
_LONGEST_VERSION = 80
"""NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE."""
_ROOM = 64
"""Initial size of the process list. NVML reports the size it needs if this is too small."""


class _ProcessMemory(ctypes.Structure):
    """nvmlProcessInfo_t, since version 2 of the call."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """One device in NVML. Use `open`."""

    def __init__(self, library: Any, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle

    @classmethod
    def open(cls, uuid: str) -> Self | None:
        """Returns the device (or MIG slice) with torch's `uuid`; None if NVML is unavailable."""
        try:
            library = ctypes.CDLL(LIBRARY)
            if library.nvmlInit_v2() != _SUCCESS:
                return None
            for kind in ("GPU", "MIG"):
                handle = ctypes.c_void_p()
                if library.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}".encode(), ctypes.byref(handle)) == _SUCCESS:
                    return cls(library, handle)
        except (OSError, AttributeError):  # no such library, or an older one without the function
            pass
        return None

    @staticmethod
    def driver_version() -> str:
        """Returns the version of NVIDIA's driver, such as "570.124.06"; "" if NVML is unavailable."""
        try:
            library = ctypes.CDLL(LIBRARY)
            text = ctypes.create_string_buffer(_LONGEST_VERSION)
            known = library.nvmlInit_v2() == _SUCCESS
            known = known and library.nvmlSystemGetDriverVersion(text, _LONGEST_VERSION) == _SUCCESS
        except (OSError, AttributeError):  # as in `open`
            return ""
        return text.value.decode(errors="replace") if known else ""

    def used_bytes(self) -> tuple[int, bool] | None:
        """Returns the device memory of this process and whether its process id was listed; None if unknown.

        NVML lists the processes of the whole machine by the machine's process ids, which differ from those inside a
        container. This process holds a context; if only one process is listed, it is this one, or all processes of a
        container together.
        """
        found = self._processes()
        for process in found:
            if process.pid == os.getpid():
                return int(process.used_bytes), True
        return (int(found[0].used_bytes), False) if len(found) == 1 else None

    def _processes(self) -> list[_ProcessMemory]:
        room = ctypes.c_uint(_ROOM)
        for _ in range(2):  # retry once with the size that it reports
            size = room.value
            rows = (_ProcessMemory * size)()
            try:
                code = self._library.nvmlDeviceGetComputeRunningProcesses_v3(self._handle, ctypes.byref(room), rows)
            except AttributeError:  # a driver before 510
                return []
            if code != _INSUFFICIENT_SIZE:
                return list(rows[: min(room.value, size)]) if code == _SUCCESS else []
            room.value += _ROOM  # more may start meanwhile
        return []
