"""Surrogate: what is believed of every plan from the few that ran, with how sure that is. A Gaussian process.

A quantity (log throughput, log memory) of a combination at a micro batch is taken to be a sum of independent parts: a
level; a smooth curve over the size; what one size has of its own; for each knob what a value changes against its
default, the same at every size, and how that changes with the size; what two knobs change only together; what one
combination has of its own. Each part has a usual size, in `Scales`. So a probe of one plan says something of all that
share a part with it, and where nothing was seen the uncertainty is that of the parts (Rasmussen and Williams, Gaussian
Processes for Machine Learning, 2006, sections 2.2 and 4.2.4 on sums of kernels).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from autofit.core.knob import Knob
from autofit.core.plan import KnobValue, Plan

Array = NDArray[np.float64]

LONE_OCTAVES = 0.25
"""A size has all that a size has of its own when no other is closer than this; 32 and 40 are 0.32 apart."""
LEAST_VARIANCE = 1e-12
"""Of a plan; where rounding leaves less."""
BLOCK = 2**18
"""So many covariances are worked with at a time (2 MiB), however many plans there are."""
STRAIGHT = 0.85
"""Share of what a knob of numbers changes that grows with the number; the rest is each number's own."""


@dataclass(frozen=True, slots=True)
class Scales:
    """Standard deviations of the parts, as logarithms (0.1 is about 10 %).

    Attributes:
        curve: of the smooth curve over the size; it changes over `octaves` doublings.
        knob: of what a value changes. slope: of how that changes with a doubling of the size.
        pair: of what two knobs change only together.
        own: of what a combination has of its own, a curve too.
        size: of what one size has of its own, whatever the combination: its tiles are full, or a cache overflows. Less
            where others are close: of many such sizes one would always promise more.
        kinship: correlation of what two values of a knob change, neither of them the default: bf16 says something of
            fp16.
    """

    curve: float
    knob: float
    slope: float
    pair: float
    own: float
    size: float = 0.0
    octaves: float = 1.5
    kinship: float = 0.5


@dataclass(frozen=True, slots=True)
class Points:
    """Plans as numbers.

    Attributes:
        values: place of each knob's value in its domain, [plans, knobs].
        octaves: log2 of the micro batch over the user's own, [plans].
        lone: how far the next size is, in octaves over `LONE_OCTAVES`, 1 at most, [plans].
        combinations: number of the combination, [plans].
    """

    values: NDArray[np.int64]
    octaves: Array
    lone: Array
    combinations: NDArray[np.int64]

    def of(self, chosen: Sequence[int] | NDArray[np.int64]) -> Self:
        """Returns some of the plans."""
        index = np.asarray(chosen, dtype=np.int64)
        return type(self)(self.values[index], self.octaves[index], self.lone[index], self.combinations[index])


class Kernel:
    """How much two plans have in common.

    Args:
        knobs: of the space.
        scales: usual sizes of the parts.
        known: for each knob by what its part is smaller than usual, because something is known of it; () for none.
    """

    def __init__(self, knobs: Sequence[Knob], scales: Scales, known: Sequence[float] = ()) -> None:
        self._scales = scales
        ratios = known or [1.0] * len(knobs)
        self._alike = [ratio**2 * _alike(knob, scales.kinship) for ratio, knob in zip(ratios, knobs, strict=True)]

    def __call__(self, ours: Points, theirs: Points) -> Array:
        """Returns the covariance of every one of our plans with every one of theirs, without the level."""
        s = self._scales
        apart = ours.octaves[:, None] - theirs.octaves[None, :]
        smooth = np.exp(-0.5 * (apart / s.octaves) ** 2)
        shared = [a[ours.values[:, i][:, None], theirs.values[:, i][None, :]] for i, a in enumerate(self._alike)]
        total = np.sum(shared, axis=0) if shared else np.zeros_like(smooth)
        pairs = (total**2 - np.sum([one**2 for one in shared], axis=0)) / 2 if shared else total
        same = ours.combinations[:, None] == theirs.combinations[None, :]
        slopes = s.slope**2 * total * np.outer(ours.octaves, theirs.octaves)
        sizes = s.curve**2 * smooth + s.size**2 * (apart == 0) * np.outer(ours.lone, theirs.lone)
        return np.asarray(
            sizes + s.knob**2 * total + slopes + s.pair**2 * pairs + s.own**2 * same * smooth, dtype=np.float64
        )

    def variances(self, points: Points) -> Array:
        """Returns the covariance of each plan with itself."""
        s = self._scales
        own = [a[points.values[:, i], points.values[:, i]] for i, a in enumerate(self._alike)]
        total = np.sum(own, axis=0) if own else np.zeros_like(points.octaves)
        pairs = (total**2 - np.sum([one**2 for one in own], axis=0)) / 2 if own else total
        slopes = s.slope**2 * total * points.octaves**2
        sizes = s.curve**2 + (s.size * points.lone) ** 2
        return np.asarray(sizes + s.knob**2 * total + slopes + s.pair**2 * pairs + s.own**2, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Belief:
    """Mean and standard deviation of each plan asked for."""

    mean: Array
    deviation: Array


class Covariances:
    """How much each plan of a space has in common with those asked for; worked out once for each.

    Args:
        kernel: how much two plans have in common.
        points: every plan of the space.

    Attributes:
        variances: of each plan, [plans].
    """

    def __init__(self, kernel: Kernel, points: Points) -> None:
        self._kernel, self._points = kernel, points
        self._rows: dict[int, Array] = {}
        self.variances = kernel.variances(points)

    def of(self, places: Sequence[int]) -> Array:
        """Returns the covariances of these plans with all, [places, plans]."""
        if new := [place for place in places if place not in self._rows]:
            self._rows |= zip(new, self._kernel(self._points.of(new), self._points), strict=True)
        return np.array([self._rows[place] for place in places])


class Surrogate:
    """A Gaussian process of some plans that ran.

    Several versions of what was told cost hardly more than one: `values` has one per plan in a column for each version,
    [told, versions]. So do several models of how large the parts and the noise are: what is returned has a first axis
    for them where they were given.

    Args:
        covariances: of the plans of a space.
        told: places of those that ran.
        noise: standard deviation of what is told of each, [told] or [models, told].
        level: standard deviation of what all plans have in common.
        amplitude: how many times as large as usual all parts are; one, or [models].
    """

    def __init__(
        self, covariances: Covariances, told: Sequence[int], noise: Array, level: float, amplitude: float | Array = 1.0
    ) -> None:
        self._rows, self._variances = covariances.of(told), covariances.variances
        self._scale, self._level = np.asarray(amplitude, dtype=np.float64)[..., None] ** 2, level**2
        among = self._scale[..., None] * self._rows[:, told] + self._level
        self._factor = np.linalg.cholesky(among + noise[..., None] ** 2 * np.eye(len(told)))

    def evidence(self, values: Array) -> Array:
        """Returns the log likelihood of what was told, less what is expected without having seen any, [versions]."""
        sizes = np.log(np.diagonal(self._factor, axis1=-2, axis2=-1)).sum(axis=-1)
        likelihood = -0.5 * np.sum(self._whitened(values) ** 2, axis=-2) - sizes[..., None]
        return np.asarray(likelihood, dtype=np.float64)

    def believe(self, values: Array) -> Belief:
        """Returns what is believed of every plan; the means of each version, [plans, versions], have one deviation."""
        whitened, means, variances = self._whitened(values), [], []
        step = max(BLOCK // self._factor[..., 0].size, 1)
        for block in (slice(start, start + step) for start in range(0, len(self._variances), step)):
            cross = self._scale[..., None] * self._rows[:, block] + self._level
            solved = np.linalg.solve(self._factor, cross)
            means.append(solved.swapaxes(-2, -1) @ whitened)
            variances.append(self._scale * self._variances[block] + self._level - np.sum(solved**2, axis=-2))
        deviation = np.sqrt(np.maximum(np.concatenate(variances, axis=-1), LEAST_VARIANCE))
        return Belief(np.concatenate(means, axis=-2), deviation)

    def _whitened(self, values: Array) -> Array:
        each = np.broadcast_to(values, (*self._factor.shape[:-2], *values.shape))
        return np.asarray(np.linalg.solve(self._factor, each), dtype=np.float64)


def points_of(knobs: Sequence[Knob], plans: Sequence[Plan], own_size: int) -> Points:
    """Returns plans as numbers; `own_size` is the user's own micro batch."""
    places = [{_typed(value): place for place, value in enumerate(knob.values)} for knob in knobs]
    rows = [tuple(at[_typed(plan.values[k.name])] for at, k in zip(places, knobs, strict=True)) for plan in plans]
    numbers: dict[tuple[int, ...], int] = {}
    octaves = np.log2(np.array([plan.micro_batch_size for plan in plans], dtype=np.float64) / own_size)
    return Points(
        values=np.array(rows, dtype=np.int64).reshape(len(plans), len(knobs)),
        octaves=octaves,
        lone=np.minimum(_to_the_next(octaves) / LONE_OCTAVES, 1.0),
        combinations=np.array([numbers.setdefault(row, len(numbers)) for row in rows], dtype=np.int64),
    )


def _to_the_next(octaves: Array) -> Array:
    """Returns how far the nearest other size is."""
    sizes, places = np.unique(octaves, return_inverse=True)
    gaps = np.concatenate(([np.inf], np.diff(sizes), [np.inf]))
    return np.asarray(np.minimum(gaps[:-1], gaps[1:])[places], dtype=np.float64)


def expected_of(knobs: Sequence[Knob], points: Points, name: Literal["expected", "growth"]) -> tuple[Array, list[bool]]:
    """Returns the logarithm of what theory expects of plans, and of which knobs it says anything.

    Args:
        knobs: of the space.
        points: the plans.
        name: "expected" for throughput, "growth" for the part of the peak that grows.
    """
    total, said = np.zeros(len(points.octaves)), []
    for index, knob in enumerate(knobs):
        ratios = knob.expected if name == "expected" else knob.growth
        said.append(bool(ratios))
        if ratios:
            total += np.log(np.array(ratios))[points.values[:, index]]
    return total, said


def _typed(value: KnobValue) -> tuple[type, KnobValue]:
    return type(value), value


def _alike(knob: Knob, kinship: float) -> Array:
    """Returns the correlation of what two values of a knob change; nothing is changed by the default."""
    count = len(knob.values)
    if all(type(value) is int for value in knob.values):
        numbers = np.array([float(value) for value in knob.values])
        away = numbers - float(knob.default)
        reach = np.abs(away).max() or 1.0
        u = away / reach
        return np.asarray(STRAIGHT * np.outer(u, u) + (1 - STRAIGHT) * np.diag(u**2), dtype=np.float64)
    changed = np.array([_typed(value) != _typed(knob.default) for value in knob.values], dtype=np.float64)
    return np.asarray(np.outer(changed, changed) * (kinship + (1 - kinship) * np.eye(count)), dtype=np.float64)
