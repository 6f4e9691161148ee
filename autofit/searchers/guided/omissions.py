"""Omissions: why the guided search measured no plan of a combination."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autofit.core.omission import Basis, Omission
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.recommendation import Ratio
from autofit.core.statistics import DEVIATIONS_95
from autofit.core.units import format_bytes, format_duration
from autofit.feasibility import Feasibility
from autofit.feasibility.plan_features import Array, Points
from autofit.feasibility.surrogate import Belief
from autofit.searchers.guided.exclusions import Exclusion

MAX_EXPLAINED = 100
"""Maximum number of combinations explained, the fastest expected first: a note on a study may hold 64 KiB."""


@dataclass(frozen=True, slots=True)
class FinalBeliefs:
    """A space and what the search knows about it at its end.

    Attributes:
        plans: plans of the space.
        points: the same plans as numbers.
        outcomes: outcomes of the plans that were tried, by place.
        exclusions: plans that are not run whatever their speed.
        belief: posterior of the log throughput of each plan.
        fastest: log throughput of the fastest plan that ran.
        feasibility: answers whether a plan fits.
        memory_bytes: the budget.
        warm_ups_s: expected seconds of the warm-up of each plan, [plans].
    """

    plans: Sequence[Plan]
    points: Points
    outcomes: Mapping[int, Outcome]
    exclusions: Sequence[Exclusion]
    belief: Belief
    fastest: float
    feasibility: Feasibility
    memory_bytes: int
    warm_ups_s: Array


def omissions(result: FinalBeliefs) -> list[Omission]:
    """Returns for each combination without a measurement why it has none, the fastest expected first.

    Args:
        result: the space and what the search knows about it.
    """
    measured = [result.points.combinations[p] for p, outcome in result.outcomes.items() if outcome.measured]
    order = np.argsort(-result.belief.mean, kind="stable")
    numbers = result.points.combinations[order]
    without, first = np.unique(numbers[~np.isin(numbers, measured)], return_index=True)
    fastest = without[np.argsort(first)][:MAX_EXPLAINED]
    return [_omission(result, order[numbers == number].tolist()) for number in fastest]


def _omission(result: FinalBeliefs, places: Sequence[int]) -> Omission:
    """Returns why none of a combination's plans ran; `places` begins with the fastest expected."""
    tried = [place for place in places if place in result.outcomes]
    if tried:
        outcome = result.outcomes[tried[-1]]
        basis = Basis.ESTIMATED if outcome.status is Status.SKIPPED else Basis.MEASURED
        return Omission(plan=result.plans[tried[-1]], basis=basis, reason=f"{outcome.status.value}: {outcome.reason}")
    excluded = next((each for each in result.exclusions if each.mask[places].all()), None)
    if excluded is not None:
        return Omission(plan=result.plans[places[0]], basis=excluded.basis, reason=excluded.reason)
    fitting = next((place for place in places if result.feasibility.is_likely(result.plans[place])), None)
    return _too_slow(result, fitting) if fitting is not None else _too_large(result, places)


def _too_slow(result: FinalBeliefs, place: int) -> Omission:
    mean, deviation = (float(each[place]) for each in (result.belief.mean, result.belief.deviation))
    ratio, low, high = (math.exp(mean - result.fastest + z * DEVIATIONS_95 * deviation) for z in (0, -1, 1))
    expected = Ratio(value=ratio, low=low, high=high)
    reason = f"expected at {expected} of the fastest, by plans that share a part with it"
    if seconds := float(result.warm_ups_s[place]):
        reason += f"; its warm-up takes about {format_duration(seconds)}, in the search and again in the training"
    return Omission(plan=result.plans[place], basis=Basis.ASSUMED, reason=reason)


def _too_large(result: FinalBeliefs, places: Sequence[int]) -> Omission:
    """Returns that even the plan that is most likely to fit is not likely enough."""
    plan = max((result.plans[place] for place in places), key=result.feasibility.probability)
    estimate = result.feasibility.estimate(plan)
    if estimate is not None and (estimate.lower_bytes or 0) > result.memory_bytes:
        least = format_bytes(estimate.lower_bytes or 0)
        reason = f"needs at least {least}, above the budget of {format_bytes(result.memory_bytes)} ({estimate.basis})"
        return Omission(plan=plan, basis=Basis.ESTIMATED, reason=reason)
    probability = result.feasibility.probability(plan)
    reason = f"fits with a probability of {probability:.0%}, by the peaks of plans that share a part with it"
    return Omission(plan=plan, basis=Basis.ASSUMED, reason=reason)
