"""Stopping: when no plan is worth another probe, so that the search ends before its time is used up.

A plan is worth a probe if its expected gain is at least `least_gain`. When no plan is, each value of a knob that was
tried at small sizes only is tried once near the size of the best plan (`SMALL_RATIO`). Then the search ends.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autofit.feasibility.plan_features import Array, Points

MIN_GAIN, MAX_MIN_GAIN = 0.002, 0.01
"""Expected gain that is worth a probe, as a log ratio: at first, and at most."""
MANY_MEASURED = 10
"""From this number of measured plans on, the gain that is worth a probe grows with its square where memory is
estimated: what the model still promises then comes from plans that hardly differ. Scored by scripts/bench/search: a
search takes at most 20 probes instead of 28 in spaces of 2,000 plans, and at most 23 instead of 42 on the other tables.
The mean regret grows by at most 0.05 %. From 8 plans on, it would grow by 0.5 % in spaces of 2,000 plans. Without
estimates, plans also run to show their memory, and the mean regret would double."""
SMALL_RATIO, MAX_SLOWDOWN = 8, 2.0
"""A value that was tried only at sizes this many times smaller than the best plan's is not settled: fixed costs of a
step, such as casts, hide its benefit there. It is settled if the plan is estimated to be slower by `MAX_SLOWDOWN`."""
DIGITS = 9
"""Logarithms that agree to this many digits are equal. Processors round differently, and the search must not depend on
it."""


def least_gain(measured: int, estimated: bool) -> float:
    """Returns the expected gain that is worth a probe, as a log ratio.

    Args:
        measured: number of plans that were measured.
        estimated: whether the memory of any plan can be estimated before it runs.
    """
    many = max(measured / MANY_MEASURED, 1.0) if estimated else 1.0
    return min(MIN_GAIN * many**2, MAX_MIN_GAIN)


@dataclass(frozen=True, slots=True)
class TriedPlans:
    """All plans of a search, by their place in the list of plans.

    Attributes:
        points: plans as numbers.
        sizes: micro batch of each plan, [plans].
        means: estimated log throughput of each plan, [plans].
        tried: places of the plans that were tried.
        ran: places of the plans that were measured within the budget, at least one.
        excluded: which plans are not run, [plans].
    """

    points: Points
    sizes: NDArray[np.int_]
    means: Array
    tried: Sequence[int]
    ran: Sequence[int]
    excluded: NDArray[np.bool_]


def unsettled(plans: TriedPlans, is_likely: Callable[[int], bool]) -> int | None:
    """Returns the best plan with a value that was tried at small sizes only, near the size of the best plan, or None.

    Args:
        plans: what was tried and what is left.
        is_likely: returns whether the plan at a place is likely to fit.
    """
    points, sizes, tried = plans.points, plans.sizes, list(plans.tried)
    best = max(plans.ran, key=lambda place: float(plans.means[place]))
    excluded = plans.excluded | (plans.means < plans.means[best] - math.log(MAX_SLOWDOWN))
    apart, means = np.abs(points.octaves - points.octaves[best]).round(DIGITS), plans.means.round(DIGITS)
    found: list[int] = []
    for knob, current in enumerate(points.values[best]):
        for value in set(points.values[tried, knob].tolist()) - {current}:
            largest = max(sizes[place] for place in tried if points.values[place, knob] == value)
            if SMALL_RATIO * largest > sizes[best]:
                continue
            changed = points.values[best].copy()
            changed[knob] = value
            same = np.flatnonzero((points.values == changed).all(axis=1) & (sizes > largest) & ~excluded)
            fitting = [int(place) for place in same if is_likely(int(place))]
            found += sorted(fitting, key=lambda place: apart[place])[:1]
    return max(found, key=lambda place: (means[place], -place), default=None)
