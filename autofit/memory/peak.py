"""Memory: what a plan takes, from its trace: the peak that the device will count, by phase, and what makes it up."""

from dataclasses import dataclass

from autofit.core.account import Account
from autofit.memory.allocator.settings import Settings
from autofit.memory.replay import PhasePeak, Room, peaks, replay
from autofit.memory.trace import MOST_PARTS, Kind, Trace

STATIC = (Kind.PARAMETER, Kind.BUFFER, Kind.OPTIMIZER_STATE)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What a plan takes.

    Attributes:
        micro_batch_size: samples of a micro batch.
        allocated_bytes: peak of live tensors.
        reserved_bytes: peak of the caching allocator's segments; None on a host, which has none.
        outside_bytes: what the process holds on the device outside the allocator.
        phases: the peaks phase by phase, in order.
        static_bytes: parameters, buffers and optimizer state, which stay between two steps.
        exact: whether every size was traced at this micro batch, or follows a law that was checked; False where some
            were drawn between traced sizes.
        answered: how many results that depend on data were answered with their largest size.
        waiting_bytes: of the peak, the step's batches beyond those that were traced: a host holds them all from the
            beginning.
    """

    micro_batch_size: int
    allocated_bytes: int
    reserved_bytes: int | None
    outside_bytes: int
    phases: tuple[PhasePeak, ...]
    static_bytes: int
    exact: bool = True
    answered: int = 0
    waiting_bytes: int = 0

    @property
    def peak(self) -> PhasePeak:
        """The phase in which live tensors peak."""
        return max(self.phases, key=lambda phase: phase.allocated_bytes)

    @property
    def judged_bytes(self) -> int:
        """The peak in the reading that a budget is held against: the footprint, or live tensors on a host."""
        return (self.allocated_bytes if self.reserved_bytes is None else self.reserved_bytes) + self.outside_bytes


def memory_use(
    trace: Trace,
    account: Account,
    limit_bytes: int | None = None,
    exact: bool = True,
    accumulation_steps: int = 1,
) -> MemoryUse:
    """Returns what `trace` takes on a device that keeps account of memory as `account` says.

    Args:
        trace: a few training steps.
        account: the allocator and its options.
        limit_bytes: the budget on the footprint, for options that give memory back near a limit; None: no limit.
        exact: see `MemoryUse`.
        accumulation_steps: micro batches of a step; a trace has `MOST_PARTS` of them at most.

    Raises:
        UsageError: the allocator's options cannot be read.
    """
    phases = peaks(trace) if account.allocator == "host" else _served(trace, account, limit_bytes)
    tensors = trace.tensors
    on_host, waiting = account.allocator == "host", 0
    if on_host and accumulation_steps > MOST_PARTS:
        waiting = trace.batch_bytes() * (accumulation_steps - MOST_PARTS) // MOST_PARTS
    return MemoryUse(
        micro_batch_size=trace.micro_batch_size,
        allocated_bytes=max(phase.allocated_bytes for phase in phases) + waiting,
        reserved_bytes=None if on_host else max(phase.reserved_bytes for phase in phases),
        outside_bytes=account.outside_bytes,
        phases=phases,
        static_bytes=sum(tensors.sizes[h] for h in trace.alive(len(trace.events)) if tensors.kinds[h] in STATIC),
        exact=exact,
        answered=trace.answered,
        waiting_bytes=waiting,
    )


def _served(trace: Trace, account: Account, limit_bytes: int | None) -> tuple[PhasePeak, ...]:
    """Returns the phases with all requests served: within the limit where that changes what is cached, else freely."""
    settings = Settings.parse(account.settings)
    if settings.gc_threshold_ratio and limit_bytes is not None:
        # Old segments are given back from a share of the limit on: less is reserved than with room to spare.
        within = replay(trace, Room(settings, limit_bytes=max(limit_bytes - account.outside_bytes, 1)))
        if within.fits_without_retries:
            return within.phases
    return replay(trace, Room(settings)).phases
