"""Device: a back end. Capacity, synchronisation, memory readings, limit enforcement."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import ClassVar, TypeVar

import torch

from autofit.core.account import Account
from autofit.core.budget import Budget
from autofit.core.errors import Untraceable, UsageError
from autofit.core.measurement import Memory
from autofit.core.units import format_bytes, parse_budget
from autofit.core.work import Ceilings

T = TypeVar("T")

HEADROOM_RATIO = 0.08
HEADROOM_BYTES = 512 * 2**20
"""8 % and at least 512 MiB: between the 5 to 10 % that peers leave (reference/reliability.md section 5)."""
VARYING_FACTOR = 1.5
"""More headroom when shapes vary: fragmentation grows for hours."""


class Capability(StrEnum):
    """What a device can do, by the name that strategies ask for."""

    BF16 = "bf16"
    FP16 = "fp16"
    TF32 = "tf32"
    CHANNELS_LAST = "channels_last"
    FOREACH = "foreach"
    FUSED = "fused"


@dataclass(frozen=True, slots=True)
class Counters:
    """The allocator's event counters since the process began; zero where there is no such allocator."""

    ooms: int = 0
    retries: int = 0


def nothing() -> None:
    """Does nothing."""


@dataclass(slots=True)
class Reading:
    """Receives the memory peak of a metered stretch when its context is left.

    Attributes:
        memory: the peak; None until then.
        drain: to be called now and then within the stretch: works off what was recorded so far, where the device
            meters by a record that grows with the operators that run.
    """

    memory: Memory | None = None
    drain: Callable[[], None] = nothing


@dataclass(frozen=True, slots=True)
class AllocatorRequest:
    """One request to an allocator.

    Attributes:
        address: of the memory that was given, or is given back.
        size_bytes: as asked for, without the allocator's rounding; negative where it is given back.
    """

    address: int
    size_bytes: int


@dataclass(slots=True)
class Recording:
    """Receives what an allocator is asked for, request by request; complete when its context is left.

    Attributes:
        mark: remembers the point that is reached now, between two requests.
        standing: what was alive at the beginning, address to bytes; None where the device cannot tell.
        requests: in order.
        marks: for each call of `mark`, the number of requests before it.
    """

    mark: Callable[[], None]
    standing: Mapping[int, int] | None = None
    requests: list[AllocatorRequest] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)


class Device(ABC):
    """A back end.

    Made once per process that runs probes. Every method is called in that process, from one thread.

    Attributes:
        type: torch's name of the device type.
        meter_slows: whether steps inside `meter` must not be timed.
        queues_work: whether the host goes on while the device still works. Short steps are then timed several at a time
            (`autofit.probing.window`), as a training does not wait for each either.
        is_host: whether the device's memory is the machine's main memory.
    """

    type: ClassVar[str]
    meter_slows: ClassVar[bool] = False
    queues_work: ClassVar[bool] = False
    is_host: ClassVar[bool] = False

    def __init__(self, index: int | None = None) -> None:
        self.index = index

    @property
    def torch_device(self) -> torch.device:
        """The device as torch names it."""
        return torch.device(self.type, self.index) if self.index is not None else torch.device(self.type)

    @property
    def lock_key(self) -> str:
        """What names the device to all processes of this machine, whichever of its devices they see."""
        return f"{self.type}-{self.index or 0}"

    @classmethod
    @abstractmethod
    def is_available(cls) -> bool:
        """Says whether this process can use a device of this type."""

    @classmethod
    def count(cls) -> int:
        """Returns how many devices of this type this process can use."""
        return int(cls.is_available())

    @abstractmethod
    def name(self) -> str:
        """Returns the device as its maker calls it."""

    @abstractmethod
    def capacity_bytes(self) -> int:
        """Returns all memory of the device."""

    @abstractmethod
    def available_bytes(self) -> int:
        """Returns the memory that this process could hold in all, what it holds now included."""

    @abstractmethod
    def capabilities(self) -> frozenset[str]:
        """Returns the names from `Capability` that this device has."""

    @abstractmethod
    def meter(self, static: Callable[[], int]) -> AbstractContextManager[Reading]:
        """Meters the peak of the steps run inside; the reading is complete when the context is left.

        Args:
            static: returns the bytes of the live tensors that the step keeps: parameters, buffers, gradients,
                optimizer state.
        """

    def versions(self) -> dict[str, str]:
        """Returns versions beside torch's own that decide what is measured: driver, libraries."""
        return {}

    def caveats(self) -> tuple[str, ...]:
        """Returns what a person should know about readings on this device, for the caveats of a search."""
        return ()

    def synchronize(self) -> None:
        """Waits until the device has done all it was given. Raises what a poisoned device raises."""
        return

    def timed(self, work: Callable[[], T]) -> tuple[T, float]:
        """Runs `work` and returns what it returned, and the seconds it took, synchronised at both edges."""
        self.synchronize()
        began = perf_counter()
        result = work()
        self.synchronize()
        return result, perf_counter() - began

    def release(self) -> None:
        """Gives cached memory back to the device."""
        return

    def counters(self) -> Counters:
        """Returns the allocator's event counters."""
        return Counters()

    def live_bytes(self) -> int | None:
        """Returns the bytes of this process's live tensors on the device; None where nothing counts them."""
        return None

    def account(self) -> Account | None:
        """Returns how memory is accounted for here; None where it cannot be predicted, only measured."""
        return None

    def recording(self) -> AbstractContextManager[Recording]:
        """Records what the allocator is asked for while the context is open: the steps of one short run.

        Raises:
            Untraceable: the device keeps no such record, or cannot do so now.
        """
        raise Untraceable(f"{self.type} keeps no record of what its allocator is asked for", "in recording a short run")

    def ceilings(self) -> Ceilings | None:
        """Returns how fast the device is at best; None where that is not known. May take a fraction of a second."""
        return None

    def limit(self, budget_bytes: int, static: Callable[[], int]) -> AbstractContextManager[None]:
        """Enforces the budget while the context is open, so that exceeding it is a clean out-of-memory."""
        return _no_limit()

    def budget(self, wanted: int | float | str | None, varies: bool) -> Budget:
        """Returns the memory budget that `wanted` asks for, with its arithmetic in words.

        Args:
            wanted: bytes, a text such as "20GiB", a fraction of the capacity (a float up to 1), or None for what
                is available less the headroom.
            varies: whether batches have varying shapes.

        Raises:
            UsageError: `wanted` cannot be read, or is more than the device has.
        """
        capacity = self.capacity_bytes()
        if wanted is None:
            return self._default_budget(varies)
        if isinstance(wanted, float) and 0 < wanted <= 1:
            size = round(capacity * wanted)
            return Budget(memory_bytes=size, memory_note=f"{wanted:.0%} of the capacity {format_bytes(capacity)}")
        if isinstance(wanted, float) and not wanted.is_integer():
            raise UsageError(f'memory_budget is {wanted}; expected a fraction up to 1, bytes, or a text like "20GiB".')
        size = parse_budget(wanted if isinstance(wanted, str) else int(wanted))
        if size > capacity:
            raise UsageError(
                f"the memory budget {format_bytes(size)} is more than the {format_bytes(capacity)} of {self.name()}; "
                "give at most that, or leave it out."
            )
        return Budget(memory_bytes=size, memory_note=f"{format_bytes(size)} as asked")

    def _default_budget(self, varies: bool) -> Budget:
        available = self.available_bytes()
        factor = VARYING_FACTOR if varies else 1.0
        headroom = round(max(available * HEADROOM_RATIO, HEADROOM_BYTES) * factor)
        size = max(available - headroom, available // 2)
        note = (
            f"{format_bytes(available)} available - {format_bytes(available - size)} headroom "
            f"({HEADROOM_RATIO:.0%}, at least {format_bytes(HEADROOM_BYTES)}"
            f"{f', times {VARYING_FACTOR} for varying shapes' if varies else ''}"
            f"{', at most half' if size > available - headroom else ''}) = {format_bytes(size)}"
        )
        return Budget(memory_bytes=size, memory_note=note)


@contextmanager
def _no_limit() -> Iterator[None]:
    yield
