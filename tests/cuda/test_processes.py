"""Two processes on one device: what one holds is not the other's to use, nor counted as the other's."""

from collections.abc import Iterator

import pytest

from tests.cuda.device_process import Process

MIB, GIB = 2**20, 2**30
CONTEXT_BYTES = 1536 * MIB
"""Up to so much in use may be this process's context: without NVML it cannot be told from another's memory."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes on one device: a real GPU is shared anyway."""
    return {"PHANTOM_DEVICE": str(tmp_path_factory.mktemp("device") / "state"), "PHANTOM_TOTAL_MIB": "24576"}


@pytest.fixture(scope="module")
def pair(shared: dict[str, str]) -> Iterator[tuple[Process, Process]]:
    with Process(**shared) as first, Process(**shared) as second:
        first.ask("read")
        second.ask("read")
        yield first, second


@pytest.fixture(scope="module")
def told(shared: dict[str, str], pair: tuple[Process, Process]) -> Iterator[Process]:
    """A third process, which NVML tells from the others."""
    with Process(**shared, PHANTOM_NVML="per_process") as process:
        yield process


@pytest.fixture
def neighbour(pair: tuple[Process, Process]) -> Iterator[Process]:
    """The other process; what it holds is given back after the test."""
    yield pair[0]
    pair[0].ask("drop")


@pytest.fixture
def tuner(pair: tuple[Process, Process]) -> Process:
    """The process that runs probes."""
    return pair[1]


def test_what_the_neighbour_holds_is_not_available(neighbour: Process, tuner: Process) -> None:
    before = tuner.ask("read")
    neighbour.ask("hold", bytes=6 * GIB)
    after = tuner.ask("read")
    assert before["free"] - after["free"] == pytest.approx(6 * GIB, abs=64 * MIB)
    assert 6 * GIB - CONTEXT_BYTES <= before["available"] - after["available"] <= 6 * GIB + 64 * MIB
    assert after["budget"] < before["budget"] - 4 * GIB
    neighbour.ask("drop")
    assert tuner.ask("read")["available"] == pytest.approx(before["available"], abs=64 * MIB)


def test_a_budget_that_nobody_asked_for_can_be_used_beside_the_neighbour(neighbour: Process, tuner: Process) -> None:
    """Most of what the budget promises is asked for at once, and there."""
    neighbour.ask("hold", bytes=6 * GIB)
    budget = tuner.ask("read")["budget"]
    held = (budget - CONTEXT_BYTES) / 8 / MIB
    found = tuner.ask("evaluate", held=0.95 * held, memory=None)
    assert found["outcome"]["status"] == "measured", found["outcome"]["reason"]
    assert found["outcome"]["measurement"]["memory"]["judged_bytes"] <= budget
    assert found["allocated"] == 0


def test_the_neighbours_memory_does_not_count_against_a_plan(neighbour: Process, tuner: Process) -> None:
    neighbour.ask("hold", bytes=6 * GIB)
    found = tuner.ask("evaluate", held=50, memory="3GiB")
    assert found["outcome"]["status"] == "measured", found["outcome"]["reason"]
    memory = found["outcome"]["measurement"]["memory"]
    assert memory["footprint_bytes"] < memory["reserved_bytes"] + CONTEXT_BYTES + 64 * MIB


@pytest.mark.fault("F37")
def test_a_neighbour_that_leaves_too_little_is_an_out_of_memory(neighbour: Process, tuner: Process) -> None:
    """Inside the budget, which was asked for, and not on the card: the plan is told as one that does not fit."""
    free = tuner.ask("read")["free"]
    neighbour.ask("hold", bytes=free - GIB)
    found = tuner.ask("evaluate", held=250, memory="8GiB")
    assert found["outcome"]["status"] == "out of memory"
    assert found["allocated"] == 0
    neighbour.ask("drop")
    assert tuner.ask("evaluate", held=250, memory="8GiB")["outcome"]["status"] == "measured"


@pytest.mark.phantom
@pytest.mark.fault("F40")
def test_who_cannot_be_told_apart_is_said(neighbour: Process, tuner: Process) -> None:
    neighbour.ask("hold", bytes=6 * GIB)
    (caveat,) = tuner.ask("read")["caveats"]
    assert "of the device seem to belong to other processes" in caveat


@pytest.mark.phantom
@pytest.mark.fault("F40")
def test_with_nvml_the_figures_are_exact(neighbour: Process, told: Process) -> None:
    neighbour.ask("hold", bytes=6 * GIB)
    read = told.ask("read")
    context = 500 * MIB
    assert read["available"] == pytest.approx(read["free"] + read["reserved"] + context, abs=MIB)
    assert read["caveats"] == []
    memory = told.ask("evaluate", held=50, memory="3GiB")["outcome"]["measurement"]["memory"]
    assert memory["footprint_bytes"] == memory["reserved_bytes"] + context


def test_both_may_run_probes_at_once(pair: tuple[Process, Process]) -> None:
    for process in pair:
        process.begin("evaluate", held=50, memory="3GiB")
    for process in pair:
        found = process.end()
        assert found["outcome"]["status"] == "measured", found["outcome"]["reason"]
        assert found["fraction"] == pytest.approx(1.0)


def test_the_memory_of_a_process_that_was_killed_is_free_again(shared: dict[str, str], tuner: Process) -> None:
    before = tuner.ask("read")["free"]
    with Process(**shared) as killed:
        killed.ask("hold", bytes=4 * GIB)
        assert tuner.ask("read")["free"] <= before - 4 * GIB
        killed.kill()
        assert tuner.ask("read")["free"] == pytest.approx(before, abs=64 * MIB)
