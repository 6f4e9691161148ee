"""Pareto front: the measured plans that are worth their memory."""

from collections.abc import Iterable
from typing import NamedTuple

from autofit.search.choice import SAME_MEMORY_RATIO


class FrontPoint(NamedTuple):
    """A measured plan, as the front sees it.

    Attributes:
        key: of the plan.
        speed: throughput, in one unit for all points.
        memory_bytes: the peak that is held against the budget.
    """

    key: str
    speed: float
    memory_bytes: int


def front(points: Iterable[FrontPoint], tie_ratio: float) -> list[FrontPoint]:
    """Returns the points that no other one is as good as, lightest first; each is faster than all before it.

    Every plan left out has one on the front that is as fast within the tie margin and needs no more memory, where peaks
    within `SAME_MEMORY_RATIO` are the same. Plans are compared with those that stay, not pair by pair: of ten, each a
    little slower and lighter than the one before, pairs would leave the slowest alone.

    Args:
        points: one for each plan.
        tie_ratio: relative difference in speed that is noise.
    """
    distinct: list[FrontPoint] = []  # none has a faster one of the same memory or less
    for point in sorted(points, key=lambda point: (-point.speed, point.memory_bytes, point.key)):
        if all(point.memory_bytes * (1 + SAME_MEMORY_RATIO) < faster.memory_bytes for faster in distinct):
            distinct.append(point)
    kept: list[FrontPoint] = []
    for point in reversed(distinct):
        if not kept or point.speed > kept[-1].speed * (1 + tie_ratio):
            kept.append(point)
    return kept
