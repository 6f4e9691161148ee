"""Omissions: why the guided search measured nothing of a combination."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autofit.core.estimate import Estimate
from autofit.core.omission import Basis, Omission
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.statistics import DEVIATIONS_95
from autofit.core.units import format_bytes
from autofit.searchers.guided.exclusions import Condemned
from autofit.searchers.guided.surrogate import Belief, Points

MOST = 100
"""So many combinations are explained, those that are expected to be fastest: a remark on a study may have 64 KiB."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the search knows when it ends.

    Attributes:
        plans: of the space. points: the same as numbers.
        outcomes: of those that were tried, by place.
        condemned: which are not to be run because others failed.
        belief: of the log throughput of each.
        fastest: log throughput of the fastest that ran.
        likely: the probability that a plan fits, by place.
        estimate: estimates a peak.
        memory_bytes: the budget.
    """

    plans: Sequence[Plan]
    points: Points
    outcomes: Mapping[int, Outcome]
    condemned: Sequence[Condemned]
    belief: Belief
    fastest: float
    likely: Callable[[int], float]
    estimate: Callable[[Plan], Estimate | None]
    memory_bytes: int


def omissions(known: Known, wanted: float) -> list[Omission]:
    """Returns why no plan of a combination was measured, for each of which none was, the fastest expected first.

    Args:
        known: what the search knows.
        wanted: how likely a plan had to be to fit.
    """
    measured = {int(known.points.combinations[p]) for p, outcome in known.outcomes.items() if outcome.measured}
    places: dict[int, list[int]] = {}
    for place in np.argsort(-known.belief.mean, kind="stable"):
        number = int(known.points.combinations[place])
        if number not in measured:
            places.setdefault(number, []).append(int(place))
    return [_omission(known, mine, wanted) for mine in list(places.values())[:MOST]]


def _omission(known: Known, places: Sequence[int], wanted: float) -> Omission:
    """Returns why none of a combination's plans ran; `places` begin with the fastest expected."""
    tried = [place for place in places if place in known.outcomes]
    if tried:
        outcome = known.outcomes[tried[-1]]
        basis = Basis.ESTIMATED if outcome.status is Status.SKIPPED else Basis.MEASURED
        return Omission(plan=known.plans[tried[-1]], basis=basis, reason=f"{outcome.status.value}: {outcome.reason}")
    guilty = next((each.reason for each in known.condemned if each.mask[places[0]]), None)
    if guilty is not None:
        return Omission(plan=known.plans[places[0]], basis=Basis.MEASURED, reason=guilty)
    fitting = next((place for place in places if known.likely(place) >= wanted), None)
    return _too_slow(known, fitting) if fitting is not None else _too_large(known, places)


def _too_slow(known: Known, place: int) -> Omission:
    mean, deviation = (float(each[place]) for each in (known.belief.mean, known.belief.deviation))
    ratio, low, high = (math.exp(mean - known.fastest + z * DEVIATIONS_95 * deviation) for z in (0, -1, 1))
    reason = f"expected at {ratio:.2f}x ({low:.2f} to {high:.2f}) of the fastest, by plans that share a part with it"
    return Omission(plan=known.plans[place], basis=Basis.ASSUMED, reason=reason)


def _too_large(known: Known, places: Sequence[int]) -> Omission:
    """Returns that even the plan that is most likely to fit is not likely enough."""
    nearest = max(places, key=known.likely)
    estimate = known.estimate(known.plans[nearest])
    if estimate is not None and (estimate.lower_bytes or 0) > known.memory_bytes:
        least = format_bytes(estimate.lower_bytes or 0)
        reason = f"needs at least {least}, above the budget of {format_bytes(known.memory_bytes)} ({estimate.basis})"
        return Omission(plan=known.plans[nearest], basis=Basis.ESTIMATED, reason=reason)
    reason = f"fits with a probability of {known.likely(nearest):.0%}, by the peaks of plans that share a part with it"
    return Omission(plan=known.plans[nearest], basis=Basis.ASSUMED, reason=reason)
