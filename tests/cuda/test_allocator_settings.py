"""The allocator as the user has set it up, which a process reads when it starts: each in a process of its own."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.cuda.device_process import Process

MIB = 2**20
SETTINGS = {
    "expandable segments": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    "split size": {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"},
    # The variable's former name, which torch still reads.
    "garbage collection": {"PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.6,roundup_power2_divisions:4"},
}
EXPECTED = {
    "expandable segments": "expandable_segments:True",
    "split size": "max_split_size",
    "garbage collection": "garbage_collection_threshold:0.6",
}


@pytest.fixture(scope="module")
def started() -> Iterator[dict[str, Process]]:
    """A process for each, all of them started at once."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(Process(**variables)) for name, variables in SETTINGS.items()}


@pytest.fixture(params=SETTINGS)
def settings(request: pytest.FixtureRequest, started: dict[str, Process]) -> tuple[str, Process]:
    return request.param, started[request.param]


def outside(process: Process) -> int:
    read = process.ask("read")
    return int(read["total"] - read["free"] - read["reserved"])


def evaluate(process: Process, held: int, room: int, **plan: Any) -> dict[str, Any]:
    """Probes a batch of 8 samples of `held` MiB with `room` MiB beside the context."""
    return process.ask("evaluate", held=held, memory=outside(process) + room * MIB, **plan)


def test_the_budget_holds(settings: tuple[str, Process]) -> None:
    _, process = settings
    found = evaluate(process, held=100, room=600)
    assert found["outcome"]["status"] == "out of memory"
    assert (found["allocated"], found["fraction"]) == (0, pytest.approx(1.0))


def test_a_plan_inside_the_budget_is_measured(settings: tuple[str, Process]) -> None:
    _, process = settings
    found = evaluate(process, held=50, room=600)
    assert found["outcome"]["status"] == "measured", found["outcome"]["reason"]
    memory = found["outcome"]["measurement"]["memory"]
    assert 400 * MIB <= memory["allocated_bytes"] <= memory["reserved_bytes"] < memory["footprint_bytes"]
    assert memory["footprint_bytes"] <= outside(process) + 600 * MIB
    assert found["allocated"] == 0
    assert found["reserved"] == 0


def test_the_settings_are_part_of_what_a_measurement_depends_on(settings: tuple[str, Process]) -> None:
    """Trials under other settings are not comparable: a resumed study must see the difference."""
    name, process = settings
    assert EXPECTED[name] in process.ask("read")["versions"]["allocator"]
