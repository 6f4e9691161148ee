"""Device: a back end, with its capacity, synchronisation, memory readings and memory limit."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from time import perf_counter
from typing import ClassVar, TypeVar

import torch

from autofit.core.account import Account
from autofit.core.budget import Budget
from autofit.core.errors import UsageError
from autofit.core.measurement import Memory
from autofit.core.units import format_bytes, parse_budget
from autofit.core.work import Ceilings
from autofit.memory.headroom import default_budget

T = TypeVar("T")


class Capability(StrEnum):
    """A feature of a device, by the name that strategies use.

    `COMPILE`: torch.compile generates code for it, if the tools to do so are installed. `TUNED_KERNELS`: the compiler
    can time several kernels for a product and take the fastest. `CUDA_GRAPHS`: a step's kernels can be recorded and
    launched together.
    """

    BF16 = "bf16"
    FP16 = "fp16"
    TF32 = "tf32"
    CHANNELS_LAST = "channels_last"
    FOREACH = "foreach"
    FUSED = "fused"
    OWN_MEMORY = "own_memory"  # apart from the machine's main memory
    CUDNN = "cudnn"
    COMPILE = "compiled code"
    TUNED_KERNELS = "tuned kernels"
    CUDA_GRAPHS = "cuda graphs"


@dataclass(frozen=True, slots=True)
class Counters:
    """Event counters of the caching allocator since the process began; zero without such an allocator."""

    ooms: int = 0
    retries: int = 0

    def since(self, before: "Counters") -> "Counters":
        """Returns the increase since an earlier reading."""
        return Counters(self.ooms - before.ooms, self.retries - before.retries)


def nothing() -> None:
    """Does nothing. As a reading, it says that nothing is known."""


@dataclass(slots=True)
class Reading:
    """Receives the memory peak of the metered steps when its context is left.

    Attributes:
        memory: the peak; None until the context is left.
        drain: processes the record made so far, which grows with each operator on some devices. Call it regularly.
        live_bytes: returns the live bytes now, less what was live at the start on some devices; None if unknown.
    """

    memory: Memory | None = None
    drain: Callable[[], None] = nothing
    live_bytes: Callable[[], int | None] = nothing


@dataclass(frozen=True, slots=True)
class Misfit:
    """A driver or card that does not go with the build of torch.

    Attributes:
        what: what does not fit, as a sentence without a full stop.
        remedy: what to install.
    """

    what: str
    remedy: str


class Device(ABC):
    """A back end.

    One is made in each process that runs probes. Every method is called in that process, from one thread.

    Attributes:
        type: torch's name of the device type.
        queues_work: whether the host continues while the device is still working. Short steps are then timed several at
            a time (`autofit.probing.timing`), because training does not wait for each step either.
        is_host: whether the device is the CPU, whose memory is the machine's main memory.
        pins_memory: whether copies to the device are faster from page-locked main memory.
        shapes_kept: number of batch shapes whose kernels the libraries keep. With more of them, most steps prepare
            their kernels anew. The default assumes the 10,000 execution plans of torch's cache for cuDNN, and a plan
            for each shape.
    """

    type: ClassVar[str]
    queues_work: ClassVar[bool] = False
    is_host: ClassVar[bool] = False
    pins_memory: ClassVar[bool] = False
    shapes_kept: ClassVar[int] = 10_000

    def __init__(self, index: int | None = None) -> None:
        self.index = index

    @property
    def torch_device(self) -> torch.device:
        """The device as torch names it."""
        return torch.device(self.type, self.index) if self.index is not None else torch.device(self.type)

    @property
    def lock_key(self) -> str:
        """Name of the device that is the same in all processes of this machine, whichever devices they see."""
        return f"{self.type}-{self.index or 0}"

    @classmethod
    @abstractmethod
    def is_available(cls) -> bool:
        """Returns whether this process can use a device of this type."""

    @classmethod
    def count(cls) -> int:
        """Returns how many devices of this type this process can use."""
        return int(cls.is_available())

    @abstractmethod
    def name(self) -> str:
        """Returns the manufacturer's name of the device."""

    @abstractmethod
    def capacity_bytes(self) -> int:
        """Returns the total memory of the device."""

    @abstractmethod
    def available_bytes(self) -> int:
        """Returns the memory that this process could hold in total, including what it holds now."""

    @abstractmethod
    def capabilities(self) -> frozenset[str]:
        """Returns the capabilities of this device."""

    @abstractmethod
    def meter(self, static: Callable[[], int]) -> AbstractContextManager[Reading]:
        """Meters the peak of the steps run inside; the reading is complete when the context is left.

        `static` returns the bytes of the live tensors that the step keeps: parameters, buffers, gradients, optimizer
        state.
        """

    def versions(self) -> dict[str, str]:
        """Returns versions, other than torch's, that affect measurements: driver and libraries."""
        return {}

    def misfit(self) -> Misfit | None:
        """Returns what of the driver and the card does not go with the build of torch; None if all does, or is unknown.

        It may be called where no device of this type is available.
        """
        return None

    def caveats(self) -> tuple[str, ...]:
        """Returns notes about readings on this device, for the caveats of a search."""
        return ()

    def synchronize(self) -> None:
        """Waits until the device has finished all queued work. Raises the error of a poisoned device."""
        return

    def timed(self, work: Callable[[], T]) -> tuple[T, float]:
        """Runs `work`; returns its result and its duration in seconds, with the device synchronised at both ends."""
        self.synchronize()
        began = perf_counter()
        result = work()
        self.synchronize()
        return result, perf_counter() - began

    def release(self) -> None:
        """Returns cached memory to the device."""
        return

    def counters(self) -> Counters:
        """Returns the allocator's event counters."""
        return Counters()

    def live_bytes(self) -> int | None:
        """Returns the bytes of this process's live tensors on the device; None if they are not counted."""
        return None

    def peaks(self) -> tuple[int, int] | None:
        """Returns the highest sums of live tensors and of reserved memory so far, in bytes; None if not counted."""
        return None

    def account(self) -> Account | None:
        """Returns the allocator that an estimate of memory imitates; None if memory can only be measured."""
        return None

    def ceilings(self) -> Ceilings | None:
        """Returns the peak speed of the device; None if unknown. May take a fraction of a second."""
        return None

    def limit(self, budget_bytes: int, static: Callable[[], int]) -> AbstractContextManager[None]:
        """Enforces the budget while the context is open, so that exceeding it raises a clean out-of-memory error."""
        return nullcontext()

    def budget(self, wanted: int | float | str | None, varies: bool) -> Budget:
        """Returns the memory budget for the user's `memory_budget`, with its arithmetic in words.

        Args:
            wanted: bytes, a text such as "20GiB", a fraction of the capacity (a float up to 1), or None for the
                available memory less the headroom.
            varies: whether batches have varying shapes.

        Raises:
            UsageError: `wanted` cannot be parsed, or is more than the device has.
        """
        capacity = self.capacity_bytes()
        if wanted is None:
            return default_budget(self.available_bytes(), varies)
        if isinstance(wanted, float) and 0 < wanted <= 1:
            size = round(capacity * wanted)
            return Budget(memory_bytes=size, memory_note=f"{wanted:.0%} of the capacity {format_bytes(capacity)}")
        if isinstance(wanted, float) and not wanted.is_integer():
            raise UsageError(f'memory_budget is {wanted}; expected a fraction up to 1, bytes, or a text like "20GiB".')
        size = parse_budget(wanted if isinstance(wanted, str) else int(wanted))
        if size > capacity:
            raise UsageError(
                f"the memory budget {format_bytes(size)} is more than the {format_bytes(capacity)} of {self.name()}; "
                "pass at most that, or leave it out."
            )
        return Budget(memory_bytes=size, memory_note=f"{format_bytes(size)} as requested")
