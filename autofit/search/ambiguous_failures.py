"""Ambiguous failures, resolved by a second run and by what the same combination showed at other micro batches."""

from collections.abc import Iterable

from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.core.units import format_bytes
from autofit.search.contradiction import NEAR_RATIO


def settled(trials: Iterable[Trial], plan: Plan, outcome: Outcome) -> Outcome:
    """Returns an ambiguous outcome as an out-of-memory if the same combination ran at a smaller size."""
    smaller = [t for t in _ran(trials, plan) if t.plan.micro_batch_size < plan.micro_batch_size]
    if outcome.status is not Status.AMBIGUOUS or not smaller:
        return outcome
    reason = f"failed twice where a smaller micro batch ran, so taken as too large: {outcome.reason}"
    return outcome.model_copy(update={"status": Status.OUT_OF_MEMORY, "reason": reason})


def doubted(trials: Iterable[Trial], plan: Plan, outcome: Outcome, memory_bytes: int) -> Outcome:
    """Returns a lack of memory as ambiguous if the plan may not be its cause, so that the plan runs once more.

    Another process may have taken the memory for a moment. A peak above the budget is never in doubt.

    Args:
        trials: the trials that are valid; a larger micro batch of the same combination that ran is evidence.
        plan: what ran.
        outcome: its outcome.
        memory_bytes: the budget.
    """
    memory = None if outcome.measurement is None else outcome.measurement.memory
    above = memory is not None and not (memory.allocator_retries or memory.swallowed_ooms)
    if not outcome.status.does_not_fit or above:
        return outcome
    larger = [t for t in _ran(trials, plan) if t.plan.micro_batch_size > plan.micro_batch_size]
    if larger:
        why = f"a micro batch of {larger[0].plan.micro_batch_size} ran"
    elif memory is not None and memory.judged_bytes <= NEAR_RATIO * memory_bytes:
        why = f"its peak of {format_bytes(memory.judged_bytes)} is far below the budget of {format_bytes(memory_bytes)}"
    else:
        return outcome
    reason = f"{outcome.reason}; but {why}, so something else may have taken the memory for a moment"
    return outcome.model_copy(update={"status": Status.AMBIGUOUS, "reason": reason, "measurement": None})


def _ran(trials: Iterable[Trial], plan: Plan) -> list[Trial]:
    return [t for t in trials if t.outcome.measured and t.plan.combination == plan.combination]
