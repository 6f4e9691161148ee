"""Plan features: plans as numbers, for the models of memory and of throughput."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from autofit.core.knob import Knob
from autofit.core.plan import MICRO_BATCH_SIZE, KnobValue, Plan
from autofit.core.space import MAX_PLANS, SearchSpace

Array = NDArray[np.float64]

MOST_MADE = 2**14
"""Maximum number of plans that are kept once they were made, and of places once they were found."""
ISOLATED_OCTAVES = 0.25
"""A size counts as fully isolated when no other size is closer than this; 32 and 40 are 0.32 octaves apart."""


@dataclass(frozen=True, slots=True)
class Points:
    """Plans as numbers.

    Attributes:
        values: index of each knob's value in its domain, [plans, knobs].
        octaves: log2 of the micro batch over the baseline's, [plans].
        isolation: distance to the nearest other size in octaves over `ISOLATED_OCTAVES`, at most 1, [plans].
        combinations: number of the combination, [plans].
    """

    values: NDArray[np.int16]
    octaves: Array
    isolation: Array
    combinations: NDArray[np.int64]

    def of(self, chosen: Sequence[int] | NDArray[np.int64]) -> Self:
        """Returns some of the plans."""
        index = np.asarray(chosen, dtype=np.int64)
        return type(self)(self.values[index], self.octaves[index], self.isolation[index], self.combinations[index])


class PlanList:
    """The plans of a space in order, the baseline first, with their place in the list and as numbers.

    Plans are made when they are asked for: a large space has hundreds of thousands, of which a search runs a dozen.

    Only the first `MAX_PLANS` plans of a space are listed.

    Attributes:
        plans: the plans, in the order of `SearchSpace.plans`.
        points: the same plans as numbers.
        sizes: micro batch of each plan, [plans].
        samples: samples of each plan in an optimizer step, [plans].
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space, self._sizes = space, {size: place for place, size in enumerate(space.sizes)}
        first = space.baseline.combination
        self._of_baseline = [space.baseline, *(p for s in space.sizes if (p := space.at(first, s)) != space.baseline)]
        self._value_places = [{typed(value): place for place, value in enumerate(k.values)} for k in space.facts.knobs]
        self._rows = _rows(space, self._value_places)
        self._found = lru_cache(MOST_MADE)(self._find)
        self._made = lru_cache(MOST_MADE)(self._make)
        others, count = len(self._rows) - 1, len(self._of_baseline)
        first_sizes = [plan.micro_batch_size for plan in self._of_baseline]
        self.sizes = np.concatenate([first_sizes, np.tile(space.sizes, others)]).astype(np.int64)[:MAX_PLANS]
        total = space.facts.global_batch_size
        self.samples = self.sizes.copy() if total is None else np.full_like(self.sizes, total)
        self.samples[:count] = [plan.global_batch_size for plan in self._of_baseline[:MAX_PLANS]]
        numbers = np.repeat(np.arange(1, others + 1), len(self._sizes))
        combinations = np.concatenate([np.zeros(count, dtype=np.int64), numbers])[:MAX_PLANS]
        self.points = numbered(self._rows, combinations, self.sizes, space.baseline.micro_batch_size)
        self.plans: Sequence[Plan] = _Plans(self._made, len(self.sizes))

    def place(self, plan: Plan) -> int | None:
        """Returns the index of a plan in the list, or None."""
        return self._found(plan)

    @property
    def combinations(self) -> int:
        """How many combinations the plans have."""
        return int(self.points.combinations[-1]) + 1

    def number(self, plan: Plan) -> int | None:
        """Returns the number of a plan's combination; None if it is not in the list."""
        if plan.combination == self._of_baseline[0].combination:
            return 0
        given = zip(self._space.facts.knobs, self._value_places, strict=True)
        row = [places.get(typed(plan.values[k.name])) if k.name in plan.values else None for k, places in given]
        if None in row:
            return None
        count = self.combinations
        number = bisect_left(range(count), row, lo=1, key=lambda at: self._rows[at].tolist())
        return number if number < count and self._rows[number].tolist() == row else None

    def first_of(self, combination: int) -> int:
        """Returns the place of the first plan of a combination; the others follow it, in ascending size."""
        return len(self._of_baseline) + (combination - 1) * len(self._sizes) if combination else 0

    def with_combination_of(self, place: int) -> range:
        """Returns the places of all plans with the combination of the plan at a place."""
        combination = int(self.points.combinations[place])
        return range(self.first_of(combination), min(self.first_of(combination + 1), len(self.plans)))

    def barred(self) -> NDArray[np.bool_]:
        """Returns which plans may not be recommended, [plans].

        A pinned knob has another value, or a value that does not admit accumulation, or needs it, meets several steps
        of it, or one. Such plans are listed because they are informative: they share values with others.
        """
        accumulate = self.samples > self.sizes
        found = np.zeros(len(self.plans), dtype=np.bool_)
        for name, value in self._space.facts.pinned.items():
            if name == MICRO_BATCH_SIZE:
                found |= self.sizes != value
        for column, knob in enumerate(self._space.facts.knobs):
            if knob.name in self._space.facts.pinned:
                pinned = self._value_places[column].get(typed(self._space.facts.pinned[knob.name]), -1)
                found |= self.points.values[:, column] != pinned
            for values, misfit in ((knob.one_pass, accumulate), (knob.accumulated, ~accumulate)):
                for value in values:
                    found |= (self.points.values[:, column] == self._value_places[column][typed(value)]) & misfit
        return found

    def _find(self, plan: Plan) -> int | None:
        if plan.combination == self._of_baseline[0].combination:
            mine = self._of_baseline[: len(self.plans)]
            return mine.index(plan) if plan in mine else None
        number, size = self.number(plan), self._sizes.get(plan.micro_batch_size)
        if number is None or size is None:
            return None
        place = self.first_of(number) + size
        return place if place < len(self.plans) and self.plans[place] == plan else None

    def _make(self, place: int) -> Plan:
        if place < len(self._of_baseline):
            return self._of_baseline[place]
        number, size = divmod(place - len(self._of_baseline), len(self._sizes))
        values = zip(self._space.facts.knobs, self._rows[number + 1], strict=True)
        return self._space.at(Plan(values={k.name: k.values[at] for k, at in values}), self._space.sizes[size])


class _Plans(Sequence[Plan]):
    """Plans that are made when they are asked for."""

    def __init__(self, make: Callable[[int], Plan], count: int) -> None:
        self._make, self._count = make, count

    def __getitem__(self, place: Any) -> Any:  # an index or a slice
        found = range(self._count)[place]
        return [self._make(one) for one in found] if isinstance(found, range) else self._make(found)

    def __len__(self) -> int:
        return self._count


def _rows(space: SearchSpace, places: Sequence[Mapping[tuple[type, KnobValue], int]]) -> NDArray[np.int16]:
    """Returns the index of each knob's value, [combinations, knobs]; the baseline's first, the others ascending."""
    knobs, most = space.facts.knobs, MAX_PLANS // len(space.sizes) + 1
    combinations = islice(space.combinations(), most)
    indices = np.fromiter(
        (at[typed(plan.values[k.name])] for plan in combinations for k, at in zip(knobs, places, strict=True)),
        dtype=np.int16,
    )
    return indices.reshape(-1, len(knobs)) if knobs else np.zeros((1, 0), dtype=np.int16)


def numbered(
    rows: NDArray[np.int16], combinations: NDArray[np.int64], sizes: NDArray[np.int64], baseline_size: int
) -> Points:
    """Returns plans as numbers, from the values of each combination and the combination of each plan."""
    octaves = np.log2(sizes.astype(np.float64) / baseline_size)
    each, places = np.unique(octaves, return_inverse=True)
    gaps = np.concatenate(([np.inf], np.diff(each), [np.inf]))
    isolation = np.minimum(np.minimum(gaps[:-1], gaps[1:])[places] / ISOLATED_OCTAVES, 1.0)
    return Points(rows[combinations], octaves, isolation, combinations)


def expected_of(knobs: Sequence[Knob], points: Points, name: Literal["expected", "growth"]) -> tuple[Array, list[bool]]:
    """Returns the logarithm of the effect that theory gives each plan, and which knobs theory covers.

    `name` is "expected" for throughput, "growth" for the part of the peak that grows with the micro batch.
    """
    total, covered = np.zeros(len(points.octaves)), []
    for index, knob in enumerate(knobs):
        ratios = knob.expected if name == "expected" else knob.growth
        covered.append(bool(ratios))
        if ratios:
            total += np.log(np.array(ratios))[points.values[:, index]]
    return total, covered


def typed(value: KnobValue) -> tuple[type, KnobValue]:
    """Returns a value with its type, so that `1` and `True` are different keys."""
    return type(value), value
