"""Simulated accelerators behind the functions of torch that `autofit.devices` calls.

`install` replaces, for one test, the functions of torch that are named in `FUNCTIONS` by ones over
simulated cards. Their parameters are those of torch 2.11 and 2.13 (tests/devices/test_fake_torch.py compares them with
the torch that is installed), their behaviour is what those versions do:

* the allocator's fraction is of the memory that the chip was built with (`built_bytes`), kept as whole bytes rounded
  down, and 1.0 is no limit; without one cudaMallocAsync says a number far above 1, and multiplies the driver's total;
* peaks begin again at what is held now; a request that fails flushes the cache once and counts a retry, then an
  out-of-memory;
* `memory_stats` is empty before the first allocation.

What it leaves out: blocks and pools (a request takes what the cache has and reserves the rest), streams, time.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch

GIB, MIB = 2**30, 2**20
UUID = "6f4a3c1e-0000-4000-8000-000000000001"
NO_LIMIT = 2**64 - 1

FUNCTIONS = {
    "torch.accelerator": (
        *("current_device_index", "memory_stats", "reset_peak_memory_stats", "synchronize", "empty_cache"),
    ),
    "torch.cuda": (
        *("is_available", "device_count", "current_device", "get_device_name", "mem_get_info"),
        *("get_device_properties", "get_device_capability", "get_allocator_backend"),
        "current_stream",
    ),
    "torch.cuda.memory": ("get_per_process_memory_fraction", "set_per_process_memory_fraction", "_snapshot"),
}


@dataclass
class Card:
    """One simulated device.

    Attributes:
        total_bytes: what the driver reports in all.
        built_bytes: what the chip was built with; None for the same.
        context_bytes: what this process holds outside the allocator.
        others_bytes: what other processes hold.
        limit_bytes: what the allocator may reserve at most; None for no limit.
        poisoned: whether each call fails.
    """

    total_bytes: int = 16 * GIB
    built_bytes: int | None = None
    context_bytes: int = 400 * MIB
    others_bytes: int = 0
    integrated: bool = False
    backend: str = "native"
    capability: tuple[int, int] = (9, 0)
    limit_bytes: int | None = None
    allocated: int = 0
    reserved: int = 0
    peaks: list[int] = field(default_factory=lambda: [0, 0])
    ooms: int = 0
    retries: int = 0
    used: bool = False
    poisoned: bool = False
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def base_bytes(self) -> int:
        """What a memory fraction is a fraction of."""
        return self.total_bytes if self.backend == "cudaMallocAsync" else self.built_bytes or self.total_bytes

    def free_bytes(self) -> int:
        return self.total_bytes - self.context_bytes - self.others_bytes - self.reserved

    def allocate(self, size: int) -> None:
        """Takes memory as a tensor does.

        Raises:
            torch.OutOfMemoryError: there is not that much, or the limit forbids it.
        """
        self.used = True
        if not self._grow(size) and self.reserved > self.allocated:
            self.retries += 1
            self.reserved = self.allocated
        if not self._grow(size):
            self.ooms += 1
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
        self.allocated += size
        self.peaks = [max(self.peaks[0], self.allocated), max(self.peaks[1], self.reserved)]

    def _grow(self, size: int) -> bool:
        more = max(size - (self.reserved - self.allocated), 0)
        if more > self.free_bytes() or (self.limit_bytes is not None and self.reserved + more > self.limit_bytes):
            return False
        self.reserved += more
        return True

    def give(self, size: int) -> None:
        """Releases a tensor of that size; its memory stays reserved."""
        self.allocated -= size

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        self.allocate(size)
        try:
            yield
        finally:
            self.give(size)

    def flush(self) -> None:
        self.answer()
        self.reserved = self.allocated

    def stats(self) -> OrderedDict[str, Any]:
        if not self.used:
            return OrderedDict()
        found = {"num_ooms": self.ooms, "num_alloc_retries": self.retries}
        if self.backend == "cudaMallocAsync":
            found = dict.fromkeys(found, 0)
        for name, now, peak in zip(("allocated", "reserved"), (self.allocated, self.reserved), self.peaks, strict=True):
            found |= {f"{name}_bytes.all.current": now, f"{name}_bytes.all.peak": peak}
        return OrderedDict(sorted(found.items()))

    def fraction(self) -> float:
        if self.limit_bytes is None:
            return NO_LIMIT / self.total_bytes if self.backend == "cudaMallocAsync" else 1.0
        return self.limit_bytes / self.base_bytes

    def set_fraction(self, fraction: float) -> None:
        if not isinstance(fraction, float):
            raise TypeError("Invalid type for fraction argument, must be `float`")
        if fraction < 0 or fraction > 1:
            raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
        unlimited = fraction == 1 and self.backend == "native"
        self.limit_bytes = None if unlimited else int(fraction * self.base_bytes)

    def answer(self) -> None:
        if self.poisoned:
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


class Machine:
    """The simulated cards of one kind, the current one, and what was done in order."""

    def __init__(self, cards: Sequence[Card], available: bool = True) -> None:
        self.cards, self.available = list(cards), available
        self.current = 0
        self.log: list[str] = []

    def at(self, device: Any = None) -> Card:
        index = device if isinstance(device, int) or device is None else torch.device(device).index
        return self.cards[self.current if index is None else index]


def install(patch: pytest.MonkeyPatch, *cards: Card, available: bool = True) -> Machine:
    """Makes this process see `cards` as CUDA devices, or none that answers."""
    machine = Machine(cards or [Card()], available)
    fakes = {"torch.accelerator": accelerator(machine)}
    fakes["torch.cuda"], fakes["torch.cuda.memory"] = cuda(machine), memory(machine)
    patch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: machine.log.append("cublas"), raising=False)
    patch.setattr(torch.cuda, "device", lambda device: at(machine, device))
    patch.setattr(torch.cuda, "Event", lambda enable_timing: event(machine))
    patch.setattr(torch.version, "cuda", "13.0")
    for module, functions in fakes.items():
        for name in FUNCTIONS[module]:
            patch.setattr(f"{module}.{name}", vars(functions)[name])
    return machine


@contextmanager
def at(machine: Machine, device: torch.device) -> Iterator[None]:
    before, machine.current = machine.current, device.index
    yield
    machine.current = before


def event(machine: Machine) -> Any:
    def record(stream: Any = None) -> None:
        machine.log.append(f"record {stream}")

    return SimpleNamespace(record=record, elapsed_time=lambda end: 1500.0)


def accelerator(machine: Machine) -> Any:
    def current_device_index() -> int:
        return machine.current

    def memory_stats(device_index: Any = None, /) -> OrderedDict[str, Any]:
        return machine.at(device_index).stats()

    def reset_peak_memory_stats(device_index: Any = None, /) -> None:
        card = machine.at(device_index)
        card.peaks = [card.allocated, card.reserved]

    def synchronize(device: Any = None, /) -> None:
        machine.log.append(f"synchronize {device}")
        machine.at(device).answer()

    def empty_cache() -> None:
        machine.log.append("empty")
        for card in machine.cards:
            card.flush()

    return SimpleNamespace(**locals())


def memory(machine: Machine) -> Any:
    def get_per_process_memory_fraction(device: Any = None) -> float:
        return machine.at(device).fraction()

    def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
        machine.at(device).set_fraction(fraction)

    def _snapshot(device: Any = None, augment_with_fx_traces: bool = False) -> dict[str, Any]:
        known = {"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0}
        known |= {"expandable_segments": False, "roundup_power2_divisions": {"1": 0, "2": 0}}
        return {"allocator_settings": known | machine.at(device).settings}

    return SimpleNamespace(**locals())


def cuda(machine: Machine) -> Any:
    def is_available() -> bool:
        return machine.available

    def device_count() -> int:
        return len(machine.cards) if machine.available else 0

    def get_device_name(device: Any = None) -> str:
        return f"Card {machine.cards.index(machine.at(device))}"

    def current_device() -> int:
        return machine.current

    def mem_get_info(device: Any = None) -> tuple[int, int]:
        card = machine.at(device)
        card.answer()
        return card.free_bytes(), card.total_bytes

    def get_device_properties(device: Any = None) -> Any:
        card = machine.at(device)
        built = card.built_bytes or card.total_bytes
        return SimpleNamespace(total_memory=built, is_integrated=int(card.integrated), uuid=UUID)

    def get_device_capability(device: Any = None) -> tuple[int, int]:
        return machine.at(device).capability

    def get_allocator_backend() -> str:
        return machine.at().backend

    def current_stream(device: Any = None) -> str:
        return f"stream of {device}"

    return SimpleNamespace(**locals())
