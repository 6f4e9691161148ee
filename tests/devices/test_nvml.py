"""NVML names this process, or says nothing: it never raises and is never guessed at."""

import os

import pytest

from autofit.devices.nvml import Nvml
from tests.devices.fake_nvml import Driver, install
from tests.devices.fake_torch import UUID

MINE = (os.getpid(), 700)
OTHERS = [(pid, 10) for pid in range(1, 4)]


def told(monkeypatch: pytest.MonkeyPatch, driver: Driver | None) -> tuple[int, bool] | None:
    install(monkeypatch, driver)
    found = Nvml.open(UUID)
    return None if found is None else found.used_bytes()


def test_this_process_is_found_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, Driver([*OTHERS, MINE])) == (700, True)


@pytest.mark.fault("F40")
def test_a_slice_of_a_card_is_found_by_its_own_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, Driver([MINE], uuid=f"MIG-{UUID}")) == (700, True)


def test_in_a_container_the_only_process_is_this_one_but_was_not_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number there is another one. With two, nobody knows."""
    assert told(monkeypatch, Driver([(4_000_000, 700)])) == (700, False)
    assert told(monkeypatch, Driver([(4_000_000, 700), (4_000_001, 900)])) is None
    assert told(monkeypatch, Driver([])) is None


@pytest.mark.parametrize("name", ["nvmlInit", "nvmlDeviceGetHandleByUUID", "nvmlDeviceGetComputeRunningProcesses"])
@pytest.mark.fault("F40")
def test_what_fails_says_nothing(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert told(monkeypatch, Driver([MINE], fails=name)) is None


@pytest.mark.fault("F40")
def test_without_the_package_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, None) is None


@pytest.mark.fault("F40")
def test_another_card_is_not_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, Driver([MINE], uuid="GPU-another")) is None


def test_the_driver_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Driver([]))
    assert Nvml.driver_version() == "570.124.06"


@pytest.mark.parametrize("name", ["nvmlInit", "nvmlSystemGetDriverVersion"])
def test_a_version_that_cannot_be_read_is_empty(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for driver in (Driver([], fails=name), None):
        install(monkeypatch, driver)
        assert Nvml.driver_version() == ""
