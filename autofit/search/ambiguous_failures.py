"""Ambiguous failures, resolved by what the same combination showed at other micro batches."""

from collections.abc import Iterable

from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Trial


def settled(trials: Iterable[Trial], plan: Plan, outcome: Outcome) -> Outcome:
    """Returns an ambiguous outcome as an out-of-memory if the same combination ran at a smaller size."""
    smaller = [t.plan for t in trials if t.outcome.measured and t.plan.micro_batch_size < plan.micro_batch_size]
    ran = any(small.combination == plan.combination for small in smaller)
    if outcome.status is not Status.AMBIGUOUS or not ran:
        return outcome
    reason = f"failed twice where a smaller micro batch ran, so taken as too large: {outcome.reason}"
    return outcome.model_copy(update={"status": Status.OUT_OF_MEMORY, "reason": reason})
