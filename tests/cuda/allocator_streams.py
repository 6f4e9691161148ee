"""Seeded streams of requests, and what the real caching allocator answers to them.

    <python of a CUDA build> -m tests.cuda.allocator_streams tests/data/allocator_streams.json

records a few streams of every option set with the real allocator's answers; tests/memory/allocator/test_simulator.py
compares the simulator with them where there is no device.
"""

import json
import os
import random
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from autofit.memory.allocator.blocks import MemoryBlock
from autofit.memory.allocator.settings import Settings
from tests.memory.allocator.segments import Segment, Watched
from tests.phantom.phantom import Phantom

MIB = 1 << 20
PLAIN = {"large_segment_size_mb": "20", "max_non_split_rounding_mb": "64", "expandable_segments": "False"}
"""torch keeps these three from one setting to the next, so each text says them."""
EMPTY_CACHE = 0
STREAMS = 3
CHECK_EVERY = 20
"""Every so many operations all segments are compared, block by block; the figures are after each one."""

Figures = tuple[int, int, int, int, int, int]
"""Allocated, reserved, peak allocated, peak reserved, retries, out-of-memories."""


@dataclass(frozen=True)
class OptionSet:
    """Options of the allocator, and how much it may have.

    `limit_mib` is set as a memory fraction; `capacity_mib` is what another process leaves of the device.
    """

    name: str
    options: str = ""
    limit_mib: int | None = None
    capacity_mib: int | None = None

    @property
    def text(self) -> str:
        """All options, so that none remains from an earlier set."""
        kept = [f"{name}:{value}" for name, value in PLAIN.items() if name not in self.options]
        return ",".join([*kept, self.options] if self.options else kept)


_DIVISIONS = "roundup_power2_divisions:[1:1,2:2,4:4,8:0,16:8,64:16,>:2]"
OPTION_SETS = (
    OptionSet("default"),
    OptionSet("default, limit", limit_mib=640),
    OptionSet("default, capacity", capacity_mib=641),
    OptionSet("divisions 4", "roundup_power2_divisions:4", limit_mib=900),
    OptionSet("divisions 1", "roundup_power2_divisions:1"),
    OptionSet("divisions by size", _DIVISIONS, limit_mib=800),
    OptionSet("large segments", "large_segment_size_mb:64", limit_mib=800),
    OptionSet("large segments, odd", "large_segment_size_mb:33,max_split_size_mb:40", capacity_mib=800),
    OptionSet("max split", "max_split_size_mb:32", limit_mib=700),
    OptionSet("max split, capacity", "max_split_size_mb:20", capacity_mib=500),
    OptionSet("max split, rounding", "max_split_size_mb:24,max_non_split_rounding_mb:20", limit_mib=700),
    OptionSet("collection 0.5", "garbage_collection_threshold:0.5", limit_mib=900),
    OptionSet("collection 0.8", "garbage_collection_threshold:0.8", limit_mib=600),
    OptionSet("collection, max split", "garbage_collection_threshold:0.6,max_split_size_mb:24", limit_mib=700),
    OptionSet("collection, capacity", "garbage_collection_threshold:0.3", limit_mib=1500, capacity_mib=600),
    OptionSet("collection, no limit", "garbage_collection_threshold:0.1"),
    OptionSet("expandable", "expandable_segments:True"),
    OptionSet("expandable, limit", "expandable_segments:True", limit_mib=640),
    OptionSet("expandable, capacity", "expandable_segments:True", capacity_mib=500),
    OptionSet("expandable, max split", "expandable_segments:True,max_split_size_mb:32", limit_mib=600),
    OptionSet("expandable, pages", "expandable_segments:True,large_segment_size_mb:48", capacity_mib=700),
    OptionSet("expandable, divisions", f"expandable_segments:True,{_DIVISIONS}", limit_mib=640),
    OptionSet("expandable, collection", "expandable_segments:True,garbage_collection_threshold:0.5", limit_mib=640),
)


def operations(seed: int, count: int) -> list[int]:
    """Returns a stream of operations: `bytes * STREAMS + stream` asks, `~n` frees the n-th request, 0: empty cache.

    Half of the streams are noise; the other half are training-like: the same sizes step after step, freed in reverse.
    """
    chance = random.Random(seed)
    streams = STREAMS if chance.random() < 0.4 else 1
    training = _steps(chance) if chance.random() < 0.5 else None
    made: list[int] = []
    live: list[int] = []
    asked = 0
    while len(made) < count:
        if chance.random() < 0.004:
            made.append(EMPTY_CACHE)
        elif training is not None and chance.random() < 0.9:
            size = next(training)
            if size:
                made.append(size * STREAMS)
                live.append(asked)
                asked += 1
            elif live:
                made.append(~live.pop())
        elif live and chance.random() < (0.45 if len(live) < 60 else 0.6):
            made.append(~live.pop(chance.randrange(len(live))))
        else:
            made.append(_size(chance) * STREAMS + chance.randrange(streams))
            live.append(asked)
            asked += 1
    return made


def _size(chance: random.Random) -> int:
    kind = chance.random()
    if kind < 0.35:
        return int(2 ** chance.uniform(0, 20))
    if kind < 0.8:
        return int(2 ** chance.uniform(20, 24.5))
    if kind < 0.85:  # near the borders of the rules
        border = chance.choice((512, MIB, 2 * MIB, 10 * MIB, 20 * MIB, 32 * MIB, 64 * MIB))
        return max(border + chance.choice((-512, -1, 0, 1, 512, MIB)), 1)
    if kind < 0.9:  # sizes that are often equal, or a rule's limit apart
        return chance.randrange(6, 48) * 2 * MIB
    return int(2 ** chance.uniform(24, 27.5))


def _steps(chance: random.Random) -> Iterator[int]:
    """Yields sizes to ask for, and 0 for a free, as steps of a training that grows now and then."""
    layers = [_size(chance) for _ in range(chance.randrange(4, 20))]
    while True:
        scale = chance.choice((1, 1, 1, 1.5))
        for size in layers:
            yield max(int(size * scale), 1)
            if chance.random() < 0.3:
                yield max(int(size * scale / 2), 1)
                yield 0
        for _ in layers:
            yield 0


class Allocator(Protocol):
    """An allocator that can be asked and looked at, real or simulated."""

    def ask(self, size: int, stream: int) -> Any:
        """Returns something to free, or None when memory has run out."""

    def free(self, block: Any) -> None:
        """Frees what `ask` returned."""

    def empty(self) -> None:
        """Empties the cache."""

    def figures(self) -> Figures:
        """Returns the figures that are compared after each operation."""

    def segments(self) -> list[Segment]:
        """Returns all segments, in an order that depends on their content only."""


class Simulated:
    """The simulator, set as an option set says."""

    def __init__(self, options: OptionSet, device_bytes: int) -> None:
        limit = None if options.limit_mib is None else options.limit_mib * MIB
        capacity = None if options.capacity_mib is None else options.capacity_mib * MIB
        settings = Settings.parse(options.text)
        self._allocator = Watched(settings, capacity_bytes=capacity, limit_bytes=limit, device_bytes=device_bytes)

    def ask(self, size: int, stream: int) -> MemoryBlock | None:
        return self._allocator.malloc(size, stream)

    def free(self, block: MemoryBlock) -> None:
        self._allocator.free(block)

    def empty(self) -> None:
        self._allocator.empty_cache()

    def figures(self) -> Figures:
        a = self._allocator
        return (
            a.allocated_bytes, a.reserved_bytes, a.peak_allocated_bytes, a.peak_reserved_bytes, a.retries, a.ooms
        )  # fmt: skip

    def segments(self) -> list[Segment]:
        return in_order(self._allocator.segments())


class Real:
    """The process's allocator, empty at first. It must be closed; options and limit then stay as they were set."""

    def __init__(self, options: OptionSet, phantom: Phantom) -> None:
        """Empties and sets the allocator; another process takes what the option set does not leave of the device."""
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch has no types here
        torch.cuda.empty_cache()
        held = torch.cuda.memory_reserved()
        if held:
            raise RuntimeError(f"the allocator still holds {held} bytes; free everything first")
        torch._C._accelerator_setAllocatorSettings(options.text)
        self._device_bytes = torch.cuda.get_device_properties(0).total_memory
        limit = self._device_bytes if options.limit_mib is None else options.limit_mib * MIB
        torch.cuda.set_per_process_memory_fraction(limit / self._device_bytes)
        phantom.give_back()
        if options.capacity_mib is not None:
            phantom.take(phantom.free_bytes - options.capacity_mib * MIB)
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        self._streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(STREAMS - 1))]  # type: ignore[no-untyped-call]  # torch has no types here
        self._numbers = {stream.cuda_stream: number for number, stream in enumerate(self._streams)}
        self._phantom = phantom

    def ask(self, size: int, stream: int) -> int | None:
        try:
            return torch._C._cuda_cudaCachingAllocator_raw_alloc(size, self._streams[stream].cuda_stream)
        except torch.OutOfMemoryError:
            return None

    def free(self, block: int) -> None:
        torch._C._cuda_cudaCachingAllocator_raw_delete(block)

    def empty(self) -> None:
        torch.cuda.empty_cache()

    def figures(self) -> Figures:
        stats = torch._C._cuda_memoryStats(0)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        return (
            allocated["current"], reserved["current"], allocated["peak"], reserved["peak"],
            stats["num_alloc_retries"], stats["num_ooms"],
        )  # fmt: skip

    def segments(self) -> list[Segment]:
        # Not torch.cuda.memory_snapshot(): of torch 2.11 it loses a reference to True at each call, a crash in the end.
        snapshot = torch._C._cuda_memorySnapshot((0, 0))
        return in_order(
            Segment(
                self._numbers[segment["stream"]],
                segment["segment_type"] == "small",
                tuple((block["size"], block["state"] != "inactive") for block in segment["blocks"]),
            )
            for segment in snapshot["segments"]
        )

    def close(self) -> None:
        """Gives everything back and ends limit and options; blocks in use must have been freed."""
        torch.cuda.empty_cache()
        torch._C._accelerator_setAllocatorSettings(OPTION_SETS[0].text)
        torch.cuda.set_per_process_memory_fraction(1.0)
        self._phantom.give_back()


def in_order(segments: Iterable[Segment]) -> list[Segment]:
    """Returns segments in an order that depends on their content only."""
    return sorted(segments, key=lambda segment: (segment.stream, segment.small, segment.blocks))


def digest(segments: list[Segment]) -> int:
    """Returns a checksum of segments that were put `in_order`."""
    return zlib.crc32(json.dumps([(s.stream, s.small, s.blocks) for s in segments]).encode())


Answer = tuple[Figures, list[Segment] | None]


def run(allocator: Allocator, stream: list[int]) -> Iterator[Answer]:
    """Yields the figures after each operation, every `CHECK_EVERY` with the segments; frees all at the end."""
    asked: list[Any] = []
    for number, operation in enumerate(stream, 1):
        if operation == EMPTY_CACHE:
            allocator.empty()
        elif operation > 0:
            asked.append(allocator.ask(*divmod(operation, STREAMS)))
        elif asked[~operation] is not None:
            allocator.free(asked[~operation])
            asked[~operation] = None
        checked = number % CHECK_EVERY == 0 or number == len(stream)
        yield allocator.figures(), allocator.segments() if checked else None
    for block in asked:
        if block is not None:
            allocator.free(block)


def compare(options: OptionSet, stream: list[int], phantom: Phantom) -> str:
    """Returns how simulated and real allocator differ on a stream, or "" when they do not."""
    real = Real(options, phantom)
    simulated = Simulated(options, torch.cuda.get_device_properties(0).total_memory)
    difference = ""
    try:
        for number, (ours, theirs) in enumerate(zip(run(simulated, stream), run(real, stream), strict=True)):
            if ours != theirs and not difference:
                difference = f"{options.name}, operation {number}: simulated {ours}, real {theirs}"
    finally:
        real.close()
    return difference


def recorded(options: OptionSet, seed: int, count: int, phantom: Phantom) -> dict[str, Any]:
    """Returns a stream with the real allocator's answers wherever segments are looked at."""
    stream = operations(seed, count)
    real = Real(options, phantom)
    answers = [[*figures, digest(segments)] for figures, segments in run(real, stream) if segments is not None]
    real.close()
    return {
        "name": options.name, "options": options.text,
        "limit_mib": options.limit_mib, "capacity_mib": options.capacity_mib,
        "seed": seed, "operations": stream, "answers": answers,
    }  # fmt: skip


def main(path: str) -> None:
    """Writes the record to `path`."""
    phantom = Phantom()
    streams = [
        recorded(options, seed, 140, phantom) for options in OPTION_SETS for seed in (2, 11)
    ]  # in which memory runs out
    head = {"torch": torch.__version__, "device_bytes": torch.cuda.get_device_properties(0).total_memory}
    lines = ",\n".join(json.dumps(stream, separators=(",", ":")) for stream in streams)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f'{{"head":{json.dumps(head)},"streams":[\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(sys.argv[1])
    sys.stdout.flush()
    os._exit(0)  # the phantom's stand-ins for NVIDIA's libraries do not all shut down cleanly
