"""Surrogate: a Gaussian process that estimates every plan, with its uncertainty, from the few plans that ran.

The modelled quantity (log throughput, log memory) of a combination at a micro batch is a sum of independent parts: a
level; a smooth curve over the size; an effect of that size alone; for each knob the effect of a value against the
default, the same at every size, and its change with the size; the joint effect of two knobs; an effect of that
combination alone. `Scales` holds the usual magnitude of each part. A probe of one plan therefore informs all plans that
share a part with it. Where nothing was observed, the uncertainty is that of the parts (Rasmussen and Williams, Gaussian
Processes for Machine Learning, 2006, sections 2.2 and 4.2.4 on sums of kernels).
"""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from autofit.core.knob import Knob
from autofit.feasibility.plan_features import Array, Points, typed

MIN_VARIANCE = 1e-12
"""Lower bound on the variance of a plan, where rounding leaves less."""
BLOCK = 2**16
"""Maximum number of covariances processed at a time (512 KiB, which caches hold), whatever the number of plans."""
LINEAR_SHARE = 0.85
"""Share of a numeric knob's effect that is proportional to the number; the rest is specific to each number."""


@dataclass(frozen=True, slots=True)
class Scales:
    """Standard deviations of the parts, as logarithms (0.1 is about 10 %).

    Attributes:
        curve: smooth curve over the size, which varies over `octaves` doublings.
        knob: effect of a knob's value.
        slope: change of that effect with a doubling of the size.
        pair: joint effect of two knobs.
        alone: effect of one combination alone, also a curve over the size.
        size: effect of one size alone, whatever the combination: its tiles are full, or a cache overflows. Reduced
            where other sizes are close; otherwise one of many close sizes would always look promising.
        octaves: length scale of the curves, in doublings of the size.
        kinship: correlation between the effects of two values of a knob, neither of them the default: bf16 informs
            fp16.
        joint_kinship: the same correlation in joint effects of two knobs: what bf16 does to compilation, fp16 does too.
    """

    curve: float
    knob: float
    slope: float
    pair: float
    alone: float
    size: float = 0.0
    octaves: float = 1.5
    kinship: float = 0.5
    joint_kinship: float = 0.5


class Kernel:
    """Prior covariance of two plans.

    Args:
        ratios: for each knob the factor on the magnitude of its effect, below 1 where theory covers part of it.
        kinships: for each knob the least kinship of its values, above that of the scales where they are known to do
            much the same.
    """

    def __init__(
        self, knobs: Sequence[Knob], scales: Scales, ratios: Sequence[float] = (), kinships: Sequence[float] = ()
    ) -> None:
        self._scales = scales
        each = list(zip(ratios or [1.0] * len(knobs), kinships or [0.0] * len(knobs), knobs, strict=True))
        self._values, self._joint = (
            [ratio**2 * _value_correlation(knob, max(kinship, least)) for ratio, least, knob in each]
            for kinship in (scales.kinship, scales.joint_kinship)
        )

    def of_values(self, first: NDArray[np.int16], second: NDArray[np.int16]) -> tuple[Array, Array]:
        """Returns the parts that depend on values: the similarity of all values together, and that of their pairs.

        Each is [first, second], of values given by their indices, [combinations, knobs].
        """
        if not self._values:
            return np.zeros((len(first), len(second))), np.zeros((len(first), len(second)))
        alike, joint = (
            np.array([v[first[:, i][:, None], second[:, i][None, :]] for i, v in enumerate(values)])
            for values in (self._values, self._joint)
        )
        pairs = (joint.sum(axis=0) ** 2 - (joint**2).sum(axis=0)) / 2
        return alike.sum(axis=0), self._scales.pair**2 * pairs

    def of_sizes(self, first: Points, second: Points) -> tuple[Array, Array, Array]:
        """Returns the part of the sizes, the factor on the similarity of all values, and the part of a combination."""
        s = self._scales
        apart = first.octaves[:, None] - second.octaves[None, :]
        smooth = np.exp(-0.5 * (apart / s.octaves) ** 2)
        curve = s.curve**2 * smooth + s.size**2 * (apart == 0) * np.outer(first.isolation, second.isolation)
        slope = s.knob**2 + s.slope**2 * np.outer(first.octaves, second.octaves)
        return curve, slope, s.alone**2 * smooth

    def variances(self, points: Points) -> Array:
        """Returns the covariance of each plan with itself."""
        s = self._scales
        by_knob = [v[points.values[:, i], points.values[:, i]] for i, v in enumerate(self._values)]
        total = np.sum(by_knob, axis=0) if by_knob else np.zeros_like(points.octaves)
        pairs = (total**2 - np.sum([one**2 for one in by_knob], axis=0)) / 2 if by_knob else total
        slopes = s.slope**2 * total * points.octaves**2
        sizes = s.curve**2 + (s.size * points.isolation) ** 2
        return np.asarray(sizes + s.knob**2 * total + slopes + s.pair**2 * pairs + s.alone**2, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Belief:
    """Posterior mean and standard deviation of each plan."""

    mean: Array
    deviation: Array


class Covariances:
    """Covariances of single plans with all plans of a space, in parts of which there are far fewer than plans.

    `variances` is the variance of each plan, [plans].
    """

    def __init__(self, kernel: Kernel, points: Points) -> None:
        self._kernel, self._points = kernel, points
        _, first, self._combinations = np.unique(points.combinations, return_index=True, return_inverse=True)
        self._each_combination = points.values[first]
        _, first, self._sizes = np.unique(points.octaves, return_index=True, return_inverse=True)
        self._each_size = points.of(first)
        self._rows: dict[int, tuple[Array, ...]] = {}
        self.variances = kernel.variances(points)

    def of(self, places: Sequence[int]) -> Callable[[slice | Sequence[int]], Array]:
        """Returns a function that gives the covariances of some plans with any part of all plans, [places, part]."""
        for place in places:
            if place not in self._rows:
                here = self._points.of([place])
                total, pairs = self._kernel.of_values(here.values, self._each_combination)
                curve, slope, alone = self._kernel.of_sizes(here, self._each_size)
                self._rows[place] = total[0], pairs[0], curve[0], slope[0], alone[0]
        # The first two depend on values, [places, combinations], the others on sizes, [places, sizes].
        total, pairs, curve, slope, alone = map(np.array, zip(*(self._rows[place] for place in places), strict=True))
        their_combinations = self._combinations[list(places)]

        def within(part: slice | Sequence[int]) -> Array:
            combinations, sizes = self._combinations[part], self._sizes[part]
            found = slope[:, sizes]
            found *= total[:, combinations]
            found += curve[:, sizes]
            found += pairs[:, combinations]
            first, second = np.nonzero(combinations[None, :] == their_combinations[:, None])
            found[first, second] += alone[first, sizes[second]]
            return np.asarray(found, dtype=np.float64)

        return within


class Surrogate:
    """A Gaussian process, conditioned on some plans.

    Several versions of the observations cost hardly more than one: `values` has a column for each version,
    [observed, versions]. The same holds for several models of the magnitudes and of the noise: where several are given,
    results have a first axis for them.

    Args:
        observed: places of the observed plans.
        noise: standard deviation of each observation, [observed] or [models, observed].
        level: standard deviation of the level that all plans share.
        amplitude: factor on the usual magnitude of all parts; one, or [models].
    """

    def __init__(
        self,
        covariances: Covariances,
        observed: Sequence[int],
        noise: Array,
        level: float,
        amplitude: float | Array = 1.0,
    ) -> None:
        self._covariances, self._variances = covariances.of(observed), covariances.variances
        self._scale, self._level = np.asarray(amplitude, dtype=np.float64)[..., None] ** 2, level**2
        among = self._scale[..., None] * self._covariances(observed) + self._level
        self._factor = np.linalg.cholesky(among + noise[..., None] ** 2 * np.eye(len(observed)))
        self._inverse = np.linalg.inv(self._factor)

    def evidence(self, values: Array) -> Array:
        """Returns the log likelihood of the observations, less their prior mean, up to a constant, [versions]."""
        sizes = np.log(np.diagonal(self._factor, axis1=-2, axis2=-1)).sum(axis=-1)
        likelihood = -0.5 * np.sum((self._inverse @ values) ** 2, axis=-2) - sizes[..., None]
        return np.asarray(likelihood, dtype=np.float64)

    def only(self, models: NDArray[np.bool_]) -> Self:
        """Returns the surrogate of some of several models."""
        found = copy(self)
        found._scale, found._factor, found._inverse = self._scale[models], self._factor[models], self._inverse[models]
        return found

    def believe(self, values: Array) -> Belief:
        """Returns the posterior of every plan: a mean for each version, [plans, versions], and one deviation."""
        parts = [belief for _, belief in self.in_blocks(values)]
        return Belief(
            np.concatenate([belief.mean for belief in parts], axis=-2),
            np.concatenate([belief.deviation for belief in parts], axis=-1),
        )

    def in_blocks(self, values: Array) -> Iterator[tuple[slice, Belief]]:
        """Yields the posterior of a few plans after another, so that a large space needs little memory."""
        whitened = self._inverse @ values
        scale, level = self._scale[..., None], self._level * self._inverse.sum(axis=-1)[..., None]
        step = max(BLOCK // self._factor[..., 0].size, 1)
        for block in (slice(start, start + step) for start in range(0, len(self._variances), step)):
            solved = self._inverse @ self._covariances(block)
            solved *= scale
            solved += level
            explained = np.einsum("...np,...np->...p", solved, solved)
            variance = self._scale * self._variances[block] + self._level - explained
            yield block, Belief(solved.swapaxes(-2, -1) @ whitened, np.sqrt(np.maximum(variance, MIN_VARIANCE)))


def _value_correlation(knob: Knob, kinship: float) -> Array:
    """Returns the correlation between the effects of two values of a knob; the default has no effect."""
    count = len(knob.values)
    if all(type(value) is int for value in knob.values):
        numbers = np.array([float(value) for value in knob.values])
        away = numbers - float(knob.default)
        reach = np.abs(away).max() or 1.0
        u = away / reach
        return np.asarray(LINEAR_SHARE * np.outer(u, u) + (1 - LINEAR_SHARE) * np.diag(u**2), dtype=np.float64)
    changed = np.array([typed(value) != typed(knob.default) for value in knob.values], dtype=np.float64)
    return np.asarray(np.outer(changed, changed) * (kinship + (1 - kinship) * np.eye(count)), dtype=np.float64)
