"""Estimates the memory that a workload's training will need on a device, from traces alone. Nothing runs on the device.

Never loads torch: the command line runs it in a process that does not load the user's code.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import get_args

from autofit.chips import StandIn, stand_in_for
from autofit.core.briefing import Briefing, Layout
from autofit.core.budget import Clock
from autofit.core.errors import SpaceError, Untraceable, UsageError, UserCodeError
from autofit.core.plan import MICRO_BATCH_SIZE, Plan, same_value
from autofit.core.space import SearchSpace, SpaceFacts
from autofit.core.units import format_bytes
from autofit.estimation.estimation import EstimatedPlan, Estimation, PeakLaw, Row, TradedKnob, plural
from autofit.estimation.largest_batches import LargestBatches, choices, traded
from autofit.estimators import Traced, Tracer
from autofit.memory.breakdown import OUTSIDE, Breakdown, Part
from autofit.memory.trace import Kind
from autofit.probing.remote.bench import RemoteBench, Target

AtLength = Callable[[int], Tracer]
"""Returns what traces plans at a sequence length."""
MOST_SIZES = 3
"""Maximum number of micro batch sizes that are traced for each choice. A trace takes a second or two."""
WANTS_ACCELERATOR = (
    "not compiled with CUDA",
    "No CUDA GPUs are available",
    "no NVIDIA driver",
    "No HIP GPUs",
    "on a CUDA device but torch.cuda.is_available()",
    "Cannot access accelerator device",
)
"""Parts of torch's error messages for code that needs an accelerator when there is none."""


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


def check_ranks(ranks: object, layout: object) -> None:
    """Checks the ranks of an estimate and their layout, before anything is opened.

    Raises:
        UsageError: one of them cannot be used.
    """
    if type(ranks) is not int or ranks < 1:
        raise UsageError(f"found ranks={ranks!r}; expected a whole number of at least 1. Give 8 for eight devices.")
    if layout is not None and layout not in get_args(Layout):
        known = ", ".join(get_args(Layout))
        raise UsageError(f"found the layout {layout!r}; expected one of {known}. Give one, or none to compare all.")
    if layout is not None and ranks == 1:
        raise UsageError(f"found the layout {layout!r} for one rank; expected several. Give their number, such as 8.")


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
                ranks=target.options.ranks,
            )
    except UserCodeError as error:
        if not any(sign in f"{error}{error.traceback_text}" for sign in WANTS_ACCELERATOR):
            raise
        raise UserCodeError(
            f"{str(error).rstrip('.')}. An estimate uses no accelerator: create the model and the data on the CPU, "
            "without .cuda() or .to(...). autofit moves them to the device.",
            error.traceback_text,
        ) from None


def estimate(
    briefing: Briefing,
    tracer: Tracer,
    target: str = "",
    clock: Clock | None = None,
    fixed_parts: Callable[[], Sequence[Part]] = tuple,
    *,
    with_laws: bool = False,
    at_length: AtLength | None = None,
    ranks: int = 1,
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
        ranks: number of ranks that train together. The plans and peaks are those of one.

    Raises:
        Untraceable: the baseline cannot be traced. The message says what is known nevertheless.
    """
    clock, account = clock or Clock(), briefing.account
    assert account is not None, "a bench that traces has an account"
    largest = LargestBatches(briefing, tracer, ranks)
    try:
        baseline, parts, notes = largest.estimate_baseline()
    except Untraceable as error:
        raise Untraceable(error.reason, error.where, _advice(fixed_parts(), target, ranks)) from error
    rows = largest.rows()
    missing = ""
    if not any(row.largest is not None or any(need.blocks is not None for need in row.needs) for row in rows):
        least = largest.least()
        if least.fits:
            notes = (
                *notes,
                f"the micro batch of the baseline does not fit with any of these choices, but {least.plan} fits: "
                f"its peak is {format_bytes(least.peak.value_bytes)}",
            )
        else:
            missing = _shortfall(least, parts, account.outside_bytes, largest.limit_bytes)
    knob = traded(briefing.space.knobs)
    return Estimation(
        target=target,
        environment=briefing.environment,
        budget=briefing.budget,
        ranks=ranks,
        account=account,
        own=baseline,
        breakdown=parts,
        traded=TradedKnob()
        if knob is None or knob.trades_memory is None
        else TradedKnob(knob=knob.name, technique=knob.trades_memory.technique, counted=knob.trades_memory.counted),
        rows=rows,
        shortfall=missing,
        sequence_length=briefing.sequence_length,
        laws=peak_laws(briefing, tracer, largest.worthwhile(rows), at_length) if with_laws else (),
        caveats=tuple(dict.fromkeys([*briefing.caveats, *notes, *_unchecked(rows, briefing.space, ranks)])),
        refused=tuple(r for r in briefing.space.refused if r.name != MICRO_BATCH_SIZE),
        duration_s=round(clock.elapsed_s, 2),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _advice(parts: Sequence[Part], target: str, ranks: int) -> str:
    """Returns what is known about a workload that cannot be traced, and what to do."""
    if ranks > 1:
        return "autofit cannot measure several ranks yet. Estimate one rank, or change what stopped the trace."
    todo = f"Run autofit tune {target} on the device".replace("  ", " ") + " to measure it."
    if not parts:
        return todo
    listed_parts = " + ".join(f"{plural(part.name)} {format_bytes(part.size_bytes)}" for part in parts)
    total = format_bytes(sum(part.size_bytes for part in parts))
    return f"At any batch size, it keeps {listed_parts} = {total}; the memory of activations is unknown. {todo}"


def _shortfall(least: EstimatedPlan, parts: Breakdown, outside_bytes: int, limit_bytes: int) -> str:
    """Returns how much memory is missing, and what would help."""
    floor = parts.fixed_bytes + outside_bytes
    if floor > limit_bytes:
        listed = ", ".join(f"{plural(part.name)} {format_bytes(part.size_bytes)}" for part in parts.standing)
        context = f", {OUTSIDE} {format_bytes(outside_bytes)}" if outside_bytes else ""
        state = next((part.size_bytes for part in parts.standing if part.name == Kind.OPTIMIZER_STATE), 0)
        less = f"an optimizer with less state (SGD without momentum: {format_bytes(state)} less), " if state else ""
        return (
            f"at any batch size, {listed}{context} add up to {format_bytes(floor)}: "
            f"{format_bytes(floor - limit_bytes)} more than the budget of {format_bytes(limit_bytes)}. No knob changes "
            f"that, including checkpointing and precision. What would help: {less}fewer trainable parameters, or more "
            "memory."
        )
    peak = least.peak.value_bytes
    return (
        f"the smallest plan, {least.plan}, needs {format_bytes(peak)}: {format_bytes(peak - limit_bytes)} more "
        f"than the budget of {format_bytes(limit_bytes)}. What would help: shorter or smaller samples, an optimizer "
        "with less state, or more memory."
    )


def _unchecked(rows: Sequence[Row], space: SpaceFacts, ranks: int) -> list[str]:
    """Returns the caveat that the choices of these rows were not checked; [] if they keep the arithmetic."""
    inexact = {knob for each in space.strategies if each.effect != "exact" for knob in each.knobs}
    baseline = space.baseline.values
    names = [row.name for row in rows if row.knob in inexact and not same_value(row.value, baseline.get(row.knob))]
    if not names:
        return []
    checks = "; autofit tune checks it on the device" if ranks == 1 else ""
    return [f"whether {', '.join(names)} keeps this model's gradient was not checked{checks}"]


def peak_laws(
    briefing: Briefing, tracer: Tracer, sizes: Sequence[int], at_length: AtLength | None = None
) -> tuple[PeakLaw, ...]:
    """Returns the peaks of each choice with memory of its own, for the first and the last value of the traded knob.

    Args:
        briefing: what is known about the workload.
        tracer: traces its plans.
        sizes: possible micro batch sizes, ascending.
        at_length: returns what traces its plans at another sequence length. Half and twice the loader's are traced, at
            the first and the last size; a length at which the step of the baseline fails is left out.
    """
    assert briefing.account is not None, "a bench that traces has an account"
    account, limit_bytes, length = briefing.account, briefing.budget.memory_bytes, briefing.sequence_length
    laws = [*_laws(briefing, Traced(tracer, account, limit_bytes), spaced(sizes, MOST_SIZES))]
    if at_length is not None and length is not None and length > 1:
        for other in (length // 2, 2 * length):
            traced = Traced(at_length(other), account, limit_bytes)
            if _parts(briefing, traced, briefing.space.baseline, sizes[:1]):
                laws += _laws(briefing, traced, spaced(sizes, MOST_SIZES - 1), other)
    return tuple(laws)


def spaced(values: Sequence[int], most: int) -> tuple[int, ...]:
    """Returns the first and the last of ascending values, and at most `most` in all, by ratio as evenly as possible."""
    if len(values) <= most:
        return tuple(values)
    growth = (values[-1] / max(values[0], 1)) ** (1 / (most - 1))
    wanted = [values[0] * growth**place for place in range(most)]
    return tuple(sorted({min(values, key=lambda value: abs(value - near)) for near in wanted}))


def _laws(
    briefing: Briefing, traced_plans: Traced, sizes: Sequence[int], length: int | None = None
) -> Iterator[PeakLaw]:
    knob = traded(briefing.space.knobs)
    for choice in choices(briefing.space.knobs):
        if choice.same_memory and not choice.is_baseline:
            continue
        for count in (0,) if knob is None else (int(knob.values[0]), int(knob.values[-1])):
            combination = choice.of(briefing.space.baseline).replace(**({} if knob is None else {knob.name: count}))
            if parts := _parts(briefing, traced_plans, combination, sizes):
                yield PeakLaw(
                    knob=choice.knob, value=choice.value, traded=count, length=length, sizes=tuple(sizes), parts=parts
                )


def _parts(briefing: Briefing, traced: Traced, combination: Plan, sizes: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Returns the parts of the peak at each size; {} if the combination conflicts or cannot be traced."""
    space = SearchSpace(briefing.space)
    if space.conflict(combination):
        return {}
    found = list[dict[str, int]]()
    for size in sizes:
        try:
            plan = space.at(combination, size)
        except SpaceError:
            return {}
        traced.show(plan)
        if (profile := traced.profile(plan)) is None:
            return {}
        found.append({part.name: part.size_bytes for part in profile.breakdown.kinds})
    names = {name: None for each in found for name in each}
    return {name: tuple(each.get(name, 0) for each in found) for name in names}
