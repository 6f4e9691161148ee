"""Representative batches: a few of one size that together are like all batches of that size that the data gives.

Where lengths vary, a few batches drawn at random are not: of eight texts the mean length is easily a quarter off, and a
size whose texts happen to be short looks faster than it is. So many draws are made, and the one is taken whose batches
have the useful and the padded elements of each field that the data gives on average.
"""

import math
import random
from collections.abc import Sequence
from statistics import fmean

from autofit.workloads.lengths import Lengths

DRAWN = 8192
"""All draws together have this many samples. Of texts of 8 to 96 tokens, four batches of 2, 4, 8 and 16 are then within
2 % of the mean in useful and in padded elements (tests/workloads/test_representative.py)."""


def representative(lengths: Lengths, size: int, count: int, chance: random.Random) -> list[list[int]] | None:
    """Returns the positions of the samples of `count` batches of `size`, or None when too few were scanned.

    No sample comes twice. The batches are in an order in which the first few are like all of them.
    """
    fields = [(values, fmean(values), expected_largest(values, size)) for values in lengths.sizes.values()]
    total = len(lengths.positions)
    if size * count > total or not fields:
        return None

    def off(batches: Sequence[Sequence[int]]) -> float:
        return sum(
            _apart(fmean(values[at] for batch in batches for at in batch), useful)
            + _apart(fmean(max(values[at] for at in batch) for batch in batches), padded)
            for values, useful, padded in fields
        )

    def draw() -> list[list[int]]:
        chosen = chance.sample(range(total), size * count)
        return [chosen[start : start + size] for start in range(0, size * count, size)]

    best = min((draw() for _ in range(max(DRAWN // (size * count), 1))), key=off)
    ordered = _balanced(best, [sum(max(values[at] for at in batch) for values, *_ in fields) for batch in best])
    return [[lengths.positions[at] for at in batch] for batch in ordered]


Costs = Sequence[tuple[float, float]]
"""Useful and padded elements of a sample, for each field."""


def alike(costs: Sequence[Costs], wanted: Costs, count: int, chance: random.Random) -> list[int]:
    """Returns which `count` of given batches have, on average, what is wanted, in an order as of `representative`.

    Args:
        costs: what the samples of each batch have.
        wanted: what those of the data have.
        count: how many, at most as many as there are.
        chance: draws.
    """

    def off(batches: Sequence[int]) -> float:
        return sum(
            _apart(fmean(costs[at][field][side] for at in batches), mean[side])
            for field, mean in enumerate(wanted)
            for side in (0, 1)
        )

    draws = max(DRAWN // (8 * count), 1)
    best = min((chance.sample(range(len(costs)), count) for _ in range(draws)), key=off)
    order = _balanced([[at] for at in best], [sum(padded for _, padded in costs[at]) for at in best])
    return [at for (at,) in order]


def expected_largest(values: Sequence[int], size: int) -> float:
    """Returns the mean of the largest of `size` different ones of `values`, over all choices.

    The i-th smallest of n is the largest of a choice with probability C(i - 1, size - 1) / C(n, size).
    """
    n, mean = len(values), 0.0
    probability = size / n
    for rank, value in zip(range(n, size - 1, -1), sorted(values, reverse=True), strict=False):
        mean += probability * value
        probability *= (rank - size) / (rank - 1) if rank > 1 else 0.0
    return mean


def _apart(ours: float, theirs: float) -> float:
    return abs(math.log(max(ours, 1) / max(theirs, 1)))


def _balanced(batches: list[list[int]], costs: Sequence[float]) -> list[list[int]]:
    """Returns the batches in an order in which each next one keeps the mean cost of those so far near that of all."""
    mean, left, order = fmean(costs), set(range(len(batches))), list[int]()
    while left:
        spent = sum(costs[at] for at in order)
        nearest = min(left, key=lambda at: (abs((spent + costs[at]) / (len(order) + 1) - mean), at))
        left.remove(nearest)
        order.append(nearest)
    return [batches[at] for at in order]
