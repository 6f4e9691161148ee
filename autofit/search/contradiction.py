"""Contradiction: two measurements of one plan whose difference noise cannot explain: something has changed."""

import math
from collections.abc import Sequence
from statistics import median

from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.units import format_bytes, short_number
from autofit.search.choice import quotient

SPEED_RATIO = 1.5
"""Ratio up to which two whole runs differ on a shared machine, beyond the spread of their steps."""
MEMORY_RATIO, MEMORY_BYTES = 1.25, 64 * 2**10
"""Ratio and bytes up to which the live tensors of one plan differ: by workspaces that a library chooses and tables that
are made once. Everything else is repeatable."""
NEAR_RATIO = 0.9
"""Share of the budget above which a plan may fit at one time and not at another."""


def contradiction(
    then: Outcome, now: Outcome, objective: Objective, memory_bytes: int, blocks: Sequence[Measurement] = ()
) -> str:
    """Returns the difference beyond the noise, in words; "" if there is none, or if the two cannot be compared.

    The outcomes are those of a plan in the study and in this run, under one budget. Of the `blocks` of a race, of which
    `now` is the last, the median counts. The peak of live tensors is not compared (`other_peak`).
    """
    old, new = then.measurement, now.measurement
    if old is None or new is None:
        return _fits_no_more(then, now, memory_bytes)
    old, new = (found.model_copy(update={"new_shape_s": 0.0}) for found in (old, new))  # a block has none
    objective = objective.model_copy(update={"planned_samples": None})  # steady steps only, without the warm-up
    middle = median(objective.score(block) for block in blocks) if blocks else objective.score(new)
    ratio = quotient(new, old, objective)
    value, noise = middle / objective.score(old), ratio.high / ratio.value
    if abs(math.log(value)) <= math.log(noise * SPEED_RATIO):
        return ""
    return f"{short_number(middle)} {objective.unit}/s, was {short_number(objective.score(old))}"


def proof_contradicts(proof: Measurement, proven_per_s: float, shown_per_s: float) -> bool:
    """Returns whether the throughput of a proof contradicts the one that is shown for its plan.

    A proof that ran the worst batch only is not compared.
    """
    low, high = sorted((shown_per_s, proven_per_s))
    return high > SPEED_RATIO * low and not proof.of_worst_batch


def other_peak(then: Outcome, now: Outcome) -> str:
    """Returns the difference of the peaks of live tensors, in words; "" if there is none.

    They do not depend on what else the machine does: with another peak, it is another workload.
    """
    if then.measurement is None or now.measurement is None:
        return ""
    was, found = then.measurement.memory.allocated_bytes, now.measurement.memory.allocated_bytes
    if abs(found - was) <= MEMORY_BYTES or max(found, was) <= MEMORY_RATIO * min(found, was):
        return ""
    return f"a peak of {format_bytes(found)} of live tensors, was {format_bytes(was)}"


def _fits_no_more(then: Outcome, now: Outcome, memory_bytes: int) -> str:
    """Returns that a plan fits now and did not before, or the other way round, unless it is close to the budget."""
    ran, other = (then, now) if then.status is Status.MEASURED else (now, then)
    if ran.measurement is None or ran.status is not Status.MEASURED or not other.status.does_not_fit:
        return ""
    if ran.measurement.memory.judged_bytes > NEAR_RATIO * memory_bytes:
        return ""
    return f"{now.status.value}, was {then.status.value}"
