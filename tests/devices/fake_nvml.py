"""NVML as the package nvidia-ml-py shows it: the functions that autofit calls. Source: pynvml.py of version 13."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from autofit.devices import nvml
from tests.devices.fake_torch import UUID


class Driver:
    """NVML with processes as (number, bytes), None for bytes that are not available; `fails` names a function."""

    class NVMLError(Exception):
        """As the package raises for each code but success."""

    def __init__(self, processes: Sequence[tuple[int, int | None]], uuid: str = f"GPU-{UUID}", fails: str = "") -> None:
        self.processes, self.uuid, self.fails = processes, uuid, fails
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml"):
            self.calls.append(name)
            if name == self.fails:
                raise self.NVMLError("Insufficient Permissions")
        return super().__getattribute__(name)

    def nvmlInit(self) -> None:
        """Loads the library."""

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.124.06"

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != self.uuid:
            raise self.NVMLError("Not Found")
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes]


def install(patch: pytest.MonkeyPatch, driver: Driver | None) -> None:
    """Makes `driver` the package that is used; None for a machine without it."""
    patch.setattr(nvml, "pynvml", driver)
