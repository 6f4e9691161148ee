"""Plan features: plans as numbers, for the models of memory and of throughput."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from autofit.core.knob import Knob
from autofit.core.plan import KnobValue, Plan
from autofit.core.space import SearchSpace

Array = NDArray[np.float64]

MAX_PLANS = 20_000
"""Maximum number of plans that are modelled, so that a search of a huge space stays fast."""
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

    values: NDArray[np.int64]
    octaves: Array
    isolation: Array
    combinations: NDArray[np.int64]

    def of(self, chosen: Sequence[int] | NDArray[np.int64]) -> Self:
        """Returns some of the plans."""
        index = np.asarray(chosen, dtype=np.int64)
        return type(self)(self.values[index], self.octaves[index], self.isolation[index], self.combinations[index])


@dataclass(frozen=True, slots=True)
class PlanList:
    """The plans of a space in order, the baseline first, with their place in the list and as numbers.

    Attributes:
        plans: the plans; the first `MAX_PLANS` of a larger space.
        points: the same plans as numbers.
    """

    plans: Sequence[Plan]
    points: Points
    _places: dict[str, int] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self._places.update({plan.key: place for place, plan in enumerate(self.plans)})

    @classmethod
    def of(cls, space: SearchSpace) -> Self:
        """Returns the plans of a space."""
        plans = list(islice(space.plans(), MAX_PLANS))
        return cls(plans, points_of(space.facts.knobs, plans, space.baseline.micro_batch_size))

    def place(self, plan: Plan) -> int | None:
        """Returns the index of a plan in the list, or None."""
        return self._places.get(plan.key)


def points_of(knobs: Sequence[Knob], plans: Sequence[Plan], baseline_size: int) -> Points:
    """Returns plans as numbers; `baseline_size` is the micro batch of the baseline."""
    places = [{typed(value): place for place, value in enumerate(knob.values)} for knob in knobs]
    rows = [tuple(at[typed(plan.values[k.name])] for at, k in zip(places, knobs, strict=True)) for plan in plans]
    numbers: dict[tuple[int, ...], int] = {}
    octaves = np.log2(np.array([plan.micro_batch_size for plan in plans], dtype=np.float64) / baseline_size)
    return Points(
        values=np.array(rows, dtype=np.int64).reshape(len(plans), len(knobs)),
        octaves=octaves,
        isolation=np.minimum(_distance_to_nearest(octaves) / ISOLATED_OCTAVES, 1.0),
        combinations=np.array([numbers.setdefault(row, len(numbers)) for row in rows], dtype=np.int64),
    )


def expected_of(knobs: Sequence[Knob], points: Points, name: Literal["expected", "growth"]) -> tuple[Array, list[bool]]:
    """Returns the logarithm of the effect that theory gives each plan, and which knobs theory covers.

    Args:
        knobs: knobs of the space.
        points: the plans.
        name: "expected" for throughput, "growth" for the part of the peak that grows with the micro batch.
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


def _distance_to_nearest(octaves: Array) -> Array:
    """Returns the distance of each size to the nearest other size, in octaves."""
    sizes, places = np.unique(octaves, return_inverse=True)
    gaps = np.concatenate(([np.inf], np.diff(sizes), [np.inf]))
    return np.asarray(np.minimum(gaps[:-1], gaps[1:])[places], dtype=np.float64)
