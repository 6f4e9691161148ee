"""Contradiction: two measurements of one plan that noise cannot explain, so that they are not of the same thing."""

import math
from collections.abc import Sequence
from statistics import median

from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.units import format_bytes
from autofit.search.choice import quotient

SPEED_RATIO = 1.5
"""On a machine that others share two runs differ by as much for their whole length, beyond what their steps show."""
MEMORY_RATIO, MEMORY_BYTES = 1.25, 64 * 2**10
"""Live tensors of one plan are repeatable but for the workspaces that a library chooses and tables made once."""
NEAR_RATIO = 0.9
"""From this share of the budget on a plan may fit at one time and not at another."""


def contradiction(
    then: Outcome, now: Outcome, objective: Objective, memory_bytes: int, blocks: Sequence[Measurement] = ()
) -> str:
    """Returns what differs beyond the noise, in words; "" where nothing does, or where the two cannot be compared.

    Args:
        then: what the study has of a plan.
        now: what became of the same plan in this run.
        objective: whose score is compared.
        memory_bytes: the budget that both are judged by.
        blocks: of a race, which tell speed alone: their median counts, and `now` is the last of them.
    """
    old, new = then.measurement, now.measurement
    if old is None or new is None:
        return _fits_no_more(then, now, memory_bytes)
    if not blocks and (memory := _memory(old, new)):
        return memory
    objective = objective.model_copy(update={"planned_samples": None})  # steady steps: what comes first is made once
    middle = median(objective.score(block) for block in blocks) if blocks else objective.score(new)
    ratio = quotient(new, old, objective)
    value, noise = middle / objective.score(old), ratio.high / ratio.value
    if abs(math.log(value)) <= math.log(noise * SPEED_RATIO):
        return ""
    return f"{middle:.4g} {objective.unit}/s, was {objective.score(old):.4g}"


def _memory(old: Measurement, new: Measurement) -> str:
    was, found = old.memory.allocated_bytes, new.memory.allocated_bytes
    if abs(found - was) <= MEMORY_BYTES or max(found, was) <= MEMORY_RATIO * min(found, was):
        return ""
    return f"a peak of {format_bytes(found)} of live tensors, was {format_bytes(was)}"


def _fits_no_more(then: Outcome, now: Outcome, memory_bytes: int) -> str:
    """Says that a plan fits now and did not, or the other way round, unless it is close to the budget."""
    ran, other = (then, now) if then.status is Status.MEASURED else (now, then)
    if ran.measurement is None or ran.status is not Status.MEASURED or not other.status.does_not_fit:
        return ""
    if ran.measurement.memory.judged_bytes > NEAR_RATIO * memory_bytes:
        return ""
    return f"{now.status.value}, was {then.status.value}"
