"""Estimating: what a workload's training will need on a device, from traces alone. Nothing runs there.

Never loads torch: the command line runs it in a process that does not know the user's code.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from autofit.chips import StandIn, find
from autofit.core.briefing import Briefing
from autofit.core.budget import Clock
from autofit.core.errors import Untraceable, UsageError, UserCodeError
from autofit.core.units import format_bytes
from autofit.estimation.advice import shortfall as shortfall_of
from autofit.estimation.advice import unchecked_precisions, untraceable_advice, with_accelerator_hint
from autofit.estimation.estimation import Estimation
from autofit.estimation.outlook import PRECISION, Outlook
from autofit.estimation.records import EstimatedPlan, Row
from autofit.estimators import ShortRuns, Tracer, small_sizes
from autofit.memory.breakdown import Breakdown, Part
from autofit.probing.remote.bench import RemoteBench, Target


def described(device: str | None, memory: object) -> StandIn:
    """Returns the device to stand in for.

    Args:
        device: a name of the catalogue, "cpu" for this machine, or None for any device of the given memory.
        memory: the memory budget that was asked for, or None.

    Raises:
        UsageError: there is no such device, or neither a device nor an amount of memory is given.
    """
    if device is not None:
        return StandIn(type="cpu") if device.strip().lower() == "cpu" else find(device).stand_in()
    if memory is None or (isinstance(memory, float) and memory <= 1):
        raise UsageError(
            f"found neither a device nor an amount of memory (memory: {memory}); expected one to estimate for. Give a "
            'device such as "H200", or memory such as "24GiB", or both; "cpu" is this machine.'
        )
    return StandIn()


def estimate_target(target: Target, beat: Callable[[str], None] = lambda phase: None) -> Estimation:
    """Returns the estimate for a factory, which runs in a child process that stands in for `target.stand_in`.

    Args:
        target: what the child opens.
        beat: called with each phase as it begins: "import", "open", then "trace" for each plan.

    Raises:
        Untraceable: the workload's own plan cannot be traced.
        AutofitError: what opening the target raised in the child.
    """
    clock = Clock()
    try:
        with RemoteBench(target, beat=beat) as bench:
            return estimate(bench.briefing, bench.trace, target.name, clock, NextBest(bench.record, bench.standing))
    except UserCodeError as error:
        raise with_accelerator_hint(error) from None


@dataclass(frozen=True, slots=True)
class NextBest:
    """What is known of a workload that cannot be traced.

    Attributes:
        record: runs a few steps of a plan on the host and returns their allocations.
        standing: returns what a step keeps whatever its batch.
    """

    record: Tracer
    standing: Callable[[], Sequence[Part]]


def estimate(
    briefing: Briefing,
    tracer: Tracer,
    target: str = "",
    clock: Clock | None = None,
    next_best: NextBest | None = None,
) -> Estimation:
    """Returns what the workload of `briefing` will need, by plans that `tracer` traces.

    On the host a workload that cannot be traced runs a few short steps instead, and a caveat says so.

    Raises:
        Untraceable: the user's own plan cannot be traced, nor run here; the message says what is known all the same.
    """
    clock, account = clock or Clock(), briefing.account
    assert account is not None, "a bench that traces has an account"
    outlook, (own, parts, notes) = _looked_at(briefing, tracer, target, next_best)
    rows = outlook.rows()
    shortfall = ""
    if not any(_fits(row) for row in rows):
        least = outlook.least()
        if least.fits:
            notes = (
                *notes,
                f"your own micro batch fits with no number of blocks, but {least.plan} does: {_peak(least)}",
            )
        else:
            shortfall = shortfall_of(least, parts, account.outside_bytes, outlook.limit_bytes)
    return Estimation(
        target=target,
        environment=briefing.environment,
        budget=briefing.budget,
        account=account,
        ran=outlook.ran,
        own=own,
        breakdown=parts,
        rows=rows,
        shortfall=shortfall,
        caveats=tuple(dict.fromkeys([*briefing.caveats, *notes, *unchecked_precisions(rows)])),
        refused=tuple(r for r in briefing.space.refused if r.name.startswith((PRECISION, "checkpointing"))),
        duration_s=round(clock.elapsed_s, 2),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _looked_at(
    briefing: Briefing, tracer: Tracer, target: str, next_best: NextBest | None
) -> tuple["Outlook", tuple[EstimatedPlan, Breakdown, tuple[str, ...]]]:
    """Returns an outlook that has looked at the user's own plan, and what it saw."""
    outlook = Outlook(briefing, tracer)
    try:
        return outlook, outlook.look_at_own()
    except Untraceable as error:
        if next_best is None:
            raise
        stopped = error
    if briefing.account is not None and briefing.account.allocator == "host":
        sizes = small_sizes(briefing.space.sizes, briefing.space.baseline.micro_batch_size)
        short = ShortRuns(next_best.record, sizes)
        outlook = Outlook(briefing, short, short.reach, sizes)
        with suppress(Untraceable):  # what stopped the trace says more
            own, parts, notes = outlook.look_at_own()
            why = f"this workload cannot be traced: {stopped.reason}"
            return outlook, (own, parts, (*notes, f"{why}; short real steps gave the sizes of its allocations"))
    raise Untraceable(stopped.reason, stopped.where, untraceable_advice(next_best.standing(), target)) from stopped


def _fits(row: Row) -> bool:
    return row.largest is not None or any(need.blocks is not None for need in row.needs)


def _peak(estimated: EstimatedPlan) -> str:
    return f"its peak is {format_bytes(estimated.peak.value_bytes)}"
