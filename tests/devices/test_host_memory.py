"""Main memory, as the system and the control group tell it."""

import os
from pathlib import Path

import pytest

from autofit.devices import host_memory
from autofit.devices.cpu import Cpu

GIB = 2**30
TOTAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The texts of the files that are read, by their names; a file that is not in it does not exist."""
    files = {"meminfo": "MemTotal: 8 kB\nMemAvailable: 4194304 kB\n", "status": "VmRSS: 1048576 kB\n"}

    def read(path: Path) -> str:
        if path.name not in files:
            raise FileNotFoundError(path)
        return files[path.name]

    monkeypatch.setattr(Path, "read_text", read)
    return files


def limited(system: dict[str, str], most: str, now: int) -> None:
    system |= {"cgroup": "0::/job\n", "memory.max": most, "memory.current": str(now)}


def test_the_system_says_what_it_could_still_give(system: dict[str, str]) -> None:
    assert host_memory.available() == 4 * GIB
    assert host_memory.capacity() == TOTAL


def test_a_control_group_gives_no_more_than_its_limit(system: dict[str, str]) -> None:
    limited(system, str(3 * GIB), GIB)
    assert host_memory.capacity() == min(3 * GIB, TOTAL)
    assert host_memory.available() == 2 * GIB
    limited(system, str(3 * GIB), 5 * GIB)
    assert host_memory.available() == 0
    limited(system, "max", GIB)
    assert host_memory.available() == 4 * GIB


def test_files_that_a_control_group_would_give_up_count_as_available(system: dict[str, str]) -> None:
    limited(system, str(3 * GIB), 2 * GIB)
    system["memory.stat"] = f"anon 5\nfile {2 * GIB}\ninactive_file {GIB}\nactive_file 7\n"
    assert host_memory.available() == 2 * GIB


def test_a_system_that_does_not_say_is_not_guessed_at(system: dict[str, str]) -> None:
    del system["meminfo"], system["status"]
    assert host_memory.available() is None
    assert host_memory.status_bytes("VmRSS") is None
    assert Cpu().available_bytes() == TOTAL


def test_the_cpu_has_what_is_available_and_what_it_holds_but_no_more_than_all(system: dict[str, str]) -> None:
    limited(system, str(6 * GIB), GIB)
    assert Cpu().available_bytes() == min(5 * GIB, TOTAL)
    limited(system, str(4 * GIB), GIB // 2)
    assert Cpu().available_bytes() == min(4 * GIB, TOTAL)
