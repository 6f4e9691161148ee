"""A driver library with the functions of NVML that are called by `ctypes`. Source: nvml.h of driver 535."""

import ctypes
from collections.abc import Sequence
from typing import Any

import pytest

from tests.devices.fake_torch import UUID

UNKNOWN = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE: the driver manages memory in a way that NVML does not see (Windows)."""


class Driver:
    """NVML with processes as (number, bytes); `fails` names what returns an error, and what the library lacks."""

    def __init__(
        self, processes: Sequence[tuple[int, int]], uuid: str = f"GPU-{UUID}", fails: str = "", lacks: str = ""
    ) -> None:
        self.processes, self.uuid, self.fails, self.lacks = processes, uuid, fails, lacks
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            self.calls.append(name)
            if name == self.lacks:
                raise AttributeError(f"undefined symbol: {name}")
        found = super().__getattribute__(name)
        if name.startswith("nvml") and name == self.fails:
            return lambda *given: (found(*given) and 4) or 4  # NVML_ERROR_NO_PERMISSION, whatever was written before
        return found

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, length: int) -> int:
        text.value = b"570.124.06"[: length - 1]
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        if uuid.decode() != self.uuid:
            return 6  # NVML_ERROR_NOT_FOUND
        handle._obj.value = 1
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, rows: Any) -> int:
        room, count._obj.value = count._obj.value, len(self.processes)
        if room < len(self.processes):
            return 7  # NVML_ERROR_INSUFFICIENT_SIZE
        for row, (pid, used) in zip(rows, self.processes, strict=False):
            row.pid, row.used_bytes = pid, used
        return 0


def install(patch: pytest.MonkeyPatch, driver: Driver | None) -> None:
    """Makes `driver` the library that is loaded; None for a machine without."""

    def load(name: str) -> Driver:
        if driver is None:
            raise OSError(f"{name}: cannot open shared object file")
        return driver

    patch.setattr(ctypes, "CDLL", load)
