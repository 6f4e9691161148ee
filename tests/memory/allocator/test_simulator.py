"""The simulated caching allocator: against recorded answers of the real one, and rule by rule."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from autofit.memory.allocator.blocks import MemoryBlock
from autofit.memory.allocator.settings import MIB, Settings
from tests.memory.allocator.segments import Watched

RECORD = json.loads((Path(__file__).parents[2] / "data" / "allocator_streams.json").read_text(encoding="utf-8"))
STREAMS, EMPTY_CACHE, CHECK_EVERY = 3, 0, 20  # as tests/cuda/allocator_streams.py records them


def figures(allocator: Watched) -> list[int]:
    held = sorted((s.stream, s.small, s.blocks) for s in allocator.segments())
    return [
        allocator.allocated_bytes, allocator.reserved_bytes,
        allocator.peak_allocated_bytes, allocator.peak_reserved_bytes,
        allocator.retries, allocator.ooms, zlib.crc32(json.dumps(held).encode()),
    ]  # fmt: skip


def served(stream: dict[str, Any]) -> list[list[int]]:
    """Returns the simulator's figures wherever the real allocator's were recorded."""
    limit, capacity = (None if stream[key] is None else stream[key] * MIB for key in ("limit_mib", "capacity_mib"))
    allocator = Watched(
        Settings.parse(stream["options"]),
        capacity_bytes=capacity,
        limit_bytes=limit,
        device_bytes=RECORD["head"]["device_bytes"],
    )
    blocks: list[MemoryBlock | None] = []
    found = []
    for number, operation in enumerate(stream["operations"], 1):
        if operation == EMPTY_CACHE:
            allocator.empty_cache()
        elif operation > 0:
            blocks.append(allocator.malloc(operation // STREAMS, operation % STREAMS))
        elif (block := blocks[~operation]) is not None:
            allocator.free(block)
            blocks[~operation] = None
        if number % CHECK_EVERY == 0 or number == len(stream["operations"]):
            found.append(figures(allocator))
    return found


@pytest.mark.parametrize("stream", RECORD["streams"], ids=lambda stream: f"{stream['name']}, {stream['seed']}")
def test_recorded_streams_have_the_real_allocators_segments_peaks_and_counters(stream: dict[str, Any]) -> None:
    assert served(stream) == stream["answers"]


def test_the_record_holds_retries_and_out_of_memories_of_plain_and_expandable_segments() -> None:
    for expandable in (False, True):
        last = [
            s["answers"][-1] for s in RECORD["streams"] if ("expandable_segments:True" in s["options"]) is expandable
        ]
        assert any(retries for *_, retries, _, _ in last)
        assert any(ooms for *_, ooms, _ in last)


def test_the_tail_of_a_large_block_counts_as_allocated_up_to_one_mebibyte() -> None:
    allocator = Watched()
    allocator.given(19 * MIB)  # a segment of 20 MiB, with 1 MiB left: not split
    assert allocator.allocated_bytes == 20 * MIB
    allocator.given(19 * MIB - 512)
    assert allocator.allocated_bytes == 39 * MIB - 512
    assert allocator.sizes() == [20 * MIB, 20 * MIB]


def test_freed_neighbours_become_one_block() -> None:
    allocator = Watched()
    blocks = [allocator.given(5 * MIB) for _ in range(4)]
    for index in (1, 3, 2, 0):
        allocator.free(blocks[index])
    assert [segment.blocks for segment in allocator.segments()] == [((20 * MIB, False),)]
    assert allocator.malloc(20 * MIB - MIB) is blocks[0]


def test_streams_do_not_share_blocks() -> None:
    allocator = Watched()
    allocator.free(allocator.given(30 * MIB, stream=0))
    allocator.given(30 * MIB, stream=1)
    assert allocator.sizes() == [30 * MIB, 30 * MIB]
    allocator.given(30 * MIB, stream=0)
    assert allocator.reserved_bytes == 60 * MIB


def test_at_the_limit_the_cache_is_given_back_once_before_memory_runs_out() -> None:
    allocator = Watched(limit_bytes=100 * MIB)
    allocator.free(allocator.given(60 * MIB))
    allocator.given(80 * MIB)
    assert (allocator.retries, allocator.ooms, allocator.reserved_bytes) == (1, 0, 80 * MIB)
    assert allocator.malloc(30 * MIB) is None
    assert (allocator.retries, allocator.ooms) == (2, 1)


def test_the_fraction_in_the_settings_is_a_limit() -> None:
    allocator = Watched(Settings.parse("per_process_memory_fraction:0.5"), device_bytes=100 * MIB)
    assert allocator.malloc(52 * MIB) is None
    allocator.given(50 * MIB)


def test_old_segments_are_collected_above_the_threshold_without_a_retry() -> None:
    allocator = Watched(Settings.parse("garbage_collection_threshold:0.5"), limit_bytes=200 * MIB)
    old, new, other = (allocator.given(size * MIB) for size in (40, 60, 12))
    allocator.free(old)
    for _ in range(3):
        allocator.free(other)
        other = allocator.given(12 * MIB)
    allocator.free(new)
    allocator.given(80 * MIB)  # 112 MiB held, above 100: of what is free, what has at least the mean age goes
    assert allocator.sizes() == [60 * MIB, 12 * MIB, 80 * MIB]
    assert allocator.retries == 0


def test_without_a_limit_nothing_is_collected() -> None:
    allocator = Watched(Settings.parse("garbage_collection_threshold:0.1"), capacity_bytes=200 * MIB)
    allocator.free(allocator.given(100 * MIB))
    allocator.given(20 * MIB + 1 * MIB + 512, stream=1)
    assert 100 * MIB in allocator.sizes()
