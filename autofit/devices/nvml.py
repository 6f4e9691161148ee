"""NVML: what NVIDIA's driver says of the processes on one device. An extra: every way it can fail means "not told".

Called by `ctypes`, from the library that comes with the driver, so that it needs no package. In most containers, under
MIG without permission, on Windows and on ROCm it says nothing of use.
"""

import ctypes
import os
from typing import Any, Self

LIBRARY = "libnvidia-ml.so.1"
_SUCCESS, _INSUFFICIENT_SIZE = 0, 7
_ROOM = 64
"""Processes that are asked for at first; NVML says how many there are when that is too few."""


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t, since version 2 of the call."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Nvml:
    """One device as NVML knows it. Use `open`."""

    def __init__(self, library: Any, handle: ctypes.c_void_p) -> None:
        self._library, self._handle = library, handle

    @classmethod
    def open(cls, uuid: str) -> Self | None:
        """Returns the device with torch's `uuid`, a whole one or a slice (MIG); None where NVML does not answer."""
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

    def used_bytes(self) -> tuple[int, bool] | None:
        """Returns the device memory of this process, and whether it was found by its number; None when NVML is silent.

        It lists the processes of the whole machine by the machine's own numbers, which in a container are not those
        that the process knows. This one holds a context, so when only one is listed that is this one, or all of a
        container taken together.
        """
        found = self._processes()
        for process in found:
            if process.pid == os.getpid():
                return int(process.used_bytes), True
        return (int(found[0].used_bytes), False) if len(found) == 1 else None

    def _processes(self) -> list[_Process]:
        room = ctypes.c_uint(_ROOM)
        for _ in range(2):  # once more with the room that it asks for
            size = room.value
            rows = (_Process * size)()
            try:
                code = self._library.nvmlDeviceGetComputeRunningProcesses_v3(self._handle, ctypes.byref(room), rows)
            except AttributeError:  # a driver before 510
                return []
            if code != _INSUFFICIENT_SIZE:
                return list(rows[: min(room.value, size)]) if code == _SUCCESS else []
            room.value += _ROOM  # more may start meanwhile
        return []
