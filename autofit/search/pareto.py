"""Pareto front: the measured plans for which no other is both as fast and as light."""

from collections.abc import Iterable
from typing import NamedTuple

from autofit.search.choice import SAME_MEMORY_RATIO


class FrontPoint(NamedTuple):
    """A measured plan, as the front sees it.

    Attributes:
        key: the plan's key.
        speed: throughput, in one unit for all points.
        memory_bytes: peak that is compared with the budget.
    """

    key: str
    speed: float
    memory_bytes: int


def front(points: Iterable[FrontPoint], tie_ratio: float) -> list[FrontPoint]:
    """Returns the points that no other dominates, lightest first; each is faster than all before it.

    For every plan left out, one on the front is as fast within the tie margin and needs no more memory, where peaks
    within `SAME_MEMORY_RATIO` are equal. Plans are compared with those that stay, not pair by pair: of ten plans, each
    a little slower and lighter than the one before, pairs would leave only the slowest.

    Args:
        points: one point for each plan.
        tie_ratio: relative difference in speed that counts as a tie.
    """
    distinct: list[FrontPoint] = []  # for none, a faster plan needs the same memory or less
    for point in sorted(points, key=lambda point: (-point.speed, point.memory_bytes, point.key)):
        if all(point.memory_bytes * (1 + SAME_MEMORY_RATIO) < faster.memory_bytes for faster in distinct):
            distinct.append(point)
    kept: list[FrontPoint] = []
    for point in reversed(distinct):
        if not kept or point.speed > kept[-1].speed * (1 + tie_ratio):
            kept.append(point)
    return kept
