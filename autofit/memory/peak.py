"""Memory use of a plan, computed from its trace: the peak that the device will report, by phase."""

from dataclasses import dataclass

from autofit.core.account import Account
from autofit.memory.allocator.settings import Settings
from autofit.memory.allocator.simulator import CachingAllocator
from autofit.memory.replay import PhasePeak, peaks, replay
from autofit.memory.trace import MOST_PARTS, Kind, Trace

STATIC = (Kind.PARAMETER, Kind.BUFFER, Kind.OPTIMIZER_STATE)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory use of a plan.

    Attributes:
        micro_batch_size: samples per micro batch.
        allocated_bytes: peak of live tensors.
        reserved_bytes: peak of the caching allocator's segments. None on a host, which has none.
        outside_bytes: memory of the process on the device outside the allocator.
        phases: the peaks of the phases, in order.
        static_bytes: parameters, buffers and optimizer state, which are kept between steps.
        exact: whether every size was traced at this micro batch, or follows a linear law that was checked. False if
            some were interpolated between traced sizes.
        answered: number of data-dependent results that were assumed to have their largest size.
        waiting_bytes: the part of the peak for micro batches beyond those traced. A host holds all micro batches of a
            step from its beginning.
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
        """The peak that is compared with a budget: the footprint, or live tensors on a host."""
        return (self.allocated_bytes if self.reserved_bytes is None else self.reserved_bytes) + self.outside_bytes


def memory_use(
    trace: Trace,
    account: Account,
    limit_bytes: int | None = None,
    exact: bool = True,
    accumulation_steps: int = 1,
) -> MemoryUse:
    """Returns the memory use of `trace` on a device whose memory is accounted for as in `account`.

    Args:
        trace: trace of a few training steps.
        account: the allocator and its options.
        limit_bytes: budget on the footprint, for options that release memory near a limit. None is unlimited.
        exact: see `MemoryUse`.
        accumulation_steps: micro batches per step. A trace has at most `MOST_PARTS` of them.

    Raises:
        UsageError: the allocator's options cannot be parsed.
    """
    tensors, on_host, waiting = trace.tensors, account.allocator == "host", 0
    phases = peaks(trace) if on_host else _served(trace, account, limit_bytes)
    if on_host and accumulation_steps > MOST_PARTS:
        batches = max(trace.live_bytes(Kind.BATCH), default=0)  # on a host, all micro batches of a step are live
        waiting = batches * (accumulation_steps - MOST_PARTS) // MOST_PARTS
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
    """Returns the phases with all requests served, within the limit if the limit affects caching."""
    settings = Settings.parse(account.settings)
    if settings.gc_threshold_ratio and limit_bytes is not None:
        # Above a share of the limit, old segments are released: less is reserved than without a limit.
        within = replay(trace, CachingAllocator(settings, limit_bytes=max(limit_bytes - account.outside_bytes, 1)))
        if within.fits_without_retries:
            return within.phases
    return replay(trace, CachingAllocator(settings)).phases
