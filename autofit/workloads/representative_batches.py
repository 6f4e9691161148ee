"""Representative batches: a few batches of one size that together match the average batch of that size.

If lengths vary, a few random batches are not representative: the mean length of eight texts is easily off by a quarter.
Many draws are therefore made, and the draw is used whose useful and padded elements are closest to the expected values.
`Groups` chooses among the batches of the rebuilt loader, if its sampler decides which samples are batched together.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from statistics import fmean
from typing import Any

import torch
from torch.utils.data import BatchSampler, SequentialSampler

from autofit.workloads.lengths import Lengths, SampleLengths, evenly_spaced
from autofit.workloads.streams import undisturbed

DRAWN = 8192
"""Total number of samples in all draws. For texts of 8 to 96 tokens, four batches of 2, 4, 8 and 16 are then within 2 %
of the mean in useful and in padded elements (tests/workloads/test_representative_batches.py)."""

EXCHANGES, CANDIDATES = 2, 64
"""Number of times that each chosen batch is exchanged for a better one, and number of batches that are compared for it.
Batches of similar length differ so much that a draw alone is often 5 % off in one of the costs."""


def representative(lengths: Lengths, size: int, count: int, chance: random.Random) -> list[list[int]] | None:
    """Returns the positions of the samples of `count` batches of `size`, or None if too few were scanned.

    No sample is repeated. The batches are ordered so that the first few already match the average.
    """
    fields = [(values, fmean(values), expected_largest(values, size)) for values in lengths.sizes.values()]
    total = len(lengths.positions)
    if size * count > total or not fields:
        return None

    def distance(batches: Sequence[Sequence[int]]) -> float:
        return sum(
            _log_ratio(fmean(values[at] for batch in batches for at in batch), useful)
            + _log_ratio(fmean(max(values[at] for at in batch) for batch in batches), padded)
            for values, useful, padded in fields
        )

    def draw() -> list[list[int]]:
        chosen = chance.sample(range(total), size * count)
        return [chosen[start : start + size] for start in range(0, size * count, size)]

    best = min((draw() for _ in range(max(DRAWN // (size * count), 1))), key=distance)
    order = _balanced([sum(max(values[at] for at in batch) for values, *_ in fields) for batch in best])
    return [[lengths.positions[row] for row in best[at]] for at in order]


Costs = Sequence[tuple[float, float, float]]
"""Useful and padded elements per sample and the square of the latter, for each field. The square is that of the length
to which the batch is padded: attention costs as much, and batches of similar length differ much in it."""


def choose_representative(costs: Sequence[Costs], wanted: Costs, count: int, chance: random.Random) -> list[int]:
    """Chooses `count` of the given batches whose mean costs are close to `wanted`, ordered as in `representative`.

    Args:
        costs: costs per sample of each batch.
        wanted: mean costs per sample of the data.
        count: number of batches to choose, at most the number given.
        chance: random generator of the draws.
    """

    def distance(batches: Sequence[int]) -> float:
        return sum(
            _log_ratio(fmean(costs[at][field][side] for at in batches), mean[side])
            for field, mean in enumerate(wanted)
            for side in range(len(mean))
        )

    places = range(len(costs))
    best = min((chance.sample(places, count) for _ in range(max(DRAWN // (8 * count), 1))), key=distance)
    for at in [*range(count)] * EXCHANGES:
        others = chance.sample(places, min(CANDIDATES, len(costs)))
        best = min([best, *([*best[:at], one, *best[at + 1 :]] for one in others if one not in best)], key=distance)
    return [best[at] for at in _balanced([sum(padded for _, padded, _ in costs[at]) for at in best])]


def expected_largest(values: Sequence[int], size: int) -> float:
    """Returns the expected maximum of `size` of the `values`, drawn without replacement.

    The i-th smallest of n values is the maximum with probability C(i - 1, size - 1) / C(n, size).
    """
    n, mean = len(values), 0.0
    probability = size / n
    for rank, value in zip(range(n, size - 1, -1), sorted(values, reverse=True), strict=False):
        mean += probability * value
        probability *= (rank - size) / (rank - 1) if rank > 1 else 0.0
    return mean


def _log_ratio(one: float, other: float) -> float:
    return abs(math.log(max(one, 1) / max(other, 1)))


def _balanced(costs: Sequence[float]) -> list[int]:
    """Returns the places of costs in an order in which the mean of the first few stays close to the mean of all."""
    mean, left, order = fmean(costs), set(range(len(costs))), list[int]()
    while left:
        spent = sum(costs[at] for at in order)
        nearest = min(left, key=lambda at: (abs((spent + costs[at]) / (len(order) + 1) - mean), at))
        left.remove(nearest)
        order.append(nearest)
    return order


MOST_LISTS = 4096
"""Maximum number of lists considered if the lengths of all their samples were scanned."""
LISTS, MEASURED = 128, 2
"""Number of lists read, and number of samples measured in each, if not all lengths were scanned. A few are enough: a
sampler that groups by length has similar samples in a list, and one that does not makes similar lists."""
READ_KEYS = 200_000
"""Maximum number of keys read from one pass."""


class Groups:
    """Chooses batches among those that a loader makes.

    Args:
        lists: size -> the keys of each batch of the loader rebuilt at this size.
        known: lengths of the samples.
        lengths: result of the scan of the samples.
        read_keys: maximum number of keys read from one pass.
    """

    def __init__(
        self,
        lists: Callable[[int], Iterable[list[Any]]],
        known: SampleLengths,
        lengths: Lengths,
        read_keys: int = READ_KEYS,
    ) -> None:
        self._lists, self._known, self._read_keys = lists, known, read_keys
        self._useful = [fmean(values) for values in lengths.sizes.values()]

    def typical(self, size: int, count: int, chance: random.Random) -> list[list[Any]] | None:
        """Returns the keys of `count` batches of `size`, repeated if there are fewer. None if there is no such batch.

        Together they match the average batch of the loader, smaller batches included. If samples have no lengths, any
        batches do.
        """
        if not self._known.fields:
            full = self.full(size, chance)
            return [chance.choice(full) for _ in range(count)] if full else None
        lists = self._read(size, chance.random())
        known = all(key in self._known for keys in lists for key in keys)
        lists = [lists[at] for at in evenly_spaced(len(lists), MOST_LISTS if known else LISTS)]
        full = [keys for keys in lists if len(keys) == size]
        if not full:
            return None
        if len(full) <= count:
            return [full[at % len(full)] for at in range(count)]
        wanted, weights = list[tuple[float, float, float]](), list(map(len, lists))
        for field, seen in zip(zip(*map(self._costs, lists), strict=True), self._useful, strict=True):
            useful, padded, square = (fmean(side, weights) for side in zip(*field, strict=True))
            ratio = 1.0 if known else seen / max(useful, 1)  # without a complete scan, as many elements as it found
            wanted.append((useful * ratio, padded * ratio, square * ratio**2))
        return [full[at] for at in choose_representative([self._costs(keys) for keys in full], wanted, count, chance)]

    def full(self, size: int, chance: random.Random) -> list[list[Any]]:
        """Returns the keys of the batches of one pass that have `size` samples."""
        return [keys for keys in self._read(size, chance.random()) if len(keys) == size]

    def _read(self, size: int, seed: float) -> list[list[Any]]:
        """Returns the lists of one pass. They are the same in every process if the sampler uses a global generator."""
        lists = self._lists(size)
        if type(lists) is BatchSampler and isinstance(lists.sampler, (SequentialSampler, range)):
            return [
                list(range(at * size, at * size + size)) for at in evenly_spaced(len(lists.sampler) // size, MOST_LISTS)
            ]
        with undisturbed(lists):
            random.seed(seed)
            torch.manual_seed(int(seed * 2**32))
            return [list(keys) for keys in islice(lists, max(self._read_keys // size, 1))]

    def _costs(self, keys: Sequence[Any]) -> list[tuple[float, float, float]]:
        """Returns the useful and the padded elements per sample of a batch and the square of the latter, by field."""
        if not all(key in self._known for key in keys):
            keys = [keys[at] for at in evenly_spaced(len(keys), MEASURED)]
        columns = zip(*(self._known.of_fields(key) for key in keys), strict=True)
        return [(sum(column) / len(column), max(column), max(column) ** 2) for column in columns]
