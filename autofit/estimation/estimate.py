"""Estimates the memory that a workload's training will need on a device, from traces alone. Nothing runs on the device.

Never loads torch: the command line runs it in a process that does not load the user's code.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

from autofit.chips import StandIn, stand_in_for
from autofit.core.briefing import Briefing
from autofit.core.budget import Clock
from autofit.core.errors import Untraceable, UsageError, UserCodeError
from autofit.core.plan import MICRO_BATCH_SIZE
from autofit.core.units import format_bytes
from autofit.estimation.advice import shortfall as shortfall_of
from autofit.estimation.advice import unchecked, untraceable_advice, with_accelerator_hint
from autofit.estimation.choices import traded
from autofit.estimation.estimation import Estimation
from autofit.estimation.largest_batches import LargestBatches
from autofit.estimation.records import CHECKPOINTED, EstimatedPlan, Row, TradedKnob
from autofit.estimation.what_if import AtLength, peak_laws
from autofit.estimators import Tracer
from autofit.memory.breakdown import Part
from autofit.probing.remote.bench import RemoteBench, Target


def described(device: str | None, memory: object) -> StandIn:
    """Returns the device to stand in for.

    Args:
        device: a name from the catalogue, "cpu" for this machine, or None for any device with the given memory.
        memory: the requested memory budget, or None.

    Raises:
        UsageError: the device is unknown, or neither a device nor an amount of memory is given.
    """
    if device is not None:
        return stand_in_for(device)
    if memory is None or (isinstance(memory, float) and memory <= 1):
        raise UsageError(
            f"found neither a device nor an amount of memory (memory: {memory}); expected at least one of the two. "
            'Give a device such as "H200", memory such as "24GiB", or both; "cpu" is this machine.'
        )
    return StandIn()


def estimate_target(
    target: Target, beat: Callable[[str], None] = lambda phase: None, *, with_laws: bool = False
) -> Estimation:
    """Returns the estimate for a factory, which runs in a child process that stands in for `target.stand_in`.

    Args:
        target: what the child opens.
        beat: called with each phase as it begins: "import", "open", then "trace" for each plan.
        with_laws: whether the peaks for the what-if page are computed too (`Estimation.laws`).

    Raises:
        Untraceable: the baseline cannot be traced.
        AutofitError: opening the target raised it in the child.
    """
    clock = Clock()
    try:
        with RemoteBench(target, beat=beat) as bench:
            return estimate(
                bench.briefing,
                bench.trace,
                target.name,
                clock,
                bench.fixed_parts,
                with_laws=with_laws,
                at_length=lambda length: partial(bench.trace, length=length),
            )
    except UserCodeError as error:
        raise with_accelerator_hint(error) from None


def estimate(
    briefing: Briefing,
    tracer: Tracer,
    target: str = "",
    clock: Clock | None = None,
    fixed_parts: Callable[[], Sequence[Part]] = tuple,
    *,
    with_laws: bool = False,
    at_length: AtLength | None = None,
) -> Estimation:
    """Returns the estimate for the workload of `briefing`.

    Args:
        briefing: what is known about the workload.
        tracer: traces its plans.
        target: name of the workload, or "".
        clock: clock that runs since the call began.
        fixed_parts: returns the memory that a step keeps at any batch size, for a workload that cannot be traced.
        with_laws: see `estimate_target`.
        at_length: see `peak_laws`.

    Raises:
        Untraceable: the baseline cannot be traced. The message says what is known nevertheless.
    """
    clock, account = clock or Clock(), briefing.account
    assert account is not None, "a bench that traces has an account"
    largest = LargestBatches(briefing, tracer)
    try:
        baseline, parts, notes = largest.estimate_baseline()
    except Untraceable as error:
        raise Untraceable(error.reason, error.where, untraceable_advice(fixed_parts(), target)) from error
    rows = largest.rows()
    shortfall = ""
    if not any(_fits(row) for row in rows):
        least = largest.least()
        if least.fits:
            notes = (
                *notes,
                f"the micro batch of the baseline does not fit with any of these choices, but {least.plan} fits: "
                f"{_peak(least)}",
            )
        else:
            shortfall = shortfall_of(least, parts, account.outside_bytes, largest.limit_bytes)
    return Estimation(
        target=target,
        environment=briefing.environment,
        budget=briefing.budget,
        account=account,
        own=baseline,
        breakdown=parts,
        traded=_traded(briefing),
        rows=rows,
        shortfall=shortfall,
        sequence_length=briefing.sequence_length,
        laws=peak_laws(briefing, tracer, largest.worthwhile(rows), at_length) if with_laws else (),
        caveats=tuple(dict.fromkeys([*briefing.caveats, *notes, *unchecked(rows, briefing.space)])),
        refused=tuple(r for r in briefing.space.refused if r.name != MICRO_BATCH_SIZE),
        duration_s=round(clock.elapsed_s, 2),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _traded(briefing: Briefing) -> TradedKnob:
    knob = traded(briefing.space.knobs)
    if knob is None or knob.trades_memory is None:
        return CHECKPOINTED  # of which nothing will be shown
    trade = knob.trades_memory
    return TradedKnob(knob=knob.name, technique=trade.technique, counted=trade.counted)


def _fits(row: Row) -> bool:
    return row.largest is not None or any(need.blocks is not None for need in row.needs)


def _peak(estimated: EstimatedPlan) -> str:
    return f"its peak is {format_bytes(estimated.peak.value_bytes)}"
