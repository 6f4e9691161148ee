"""Throughput: the estimated throughput of every plan, from those that ran.

A surrogate models the log throughput relative to what is expected of the size and of the knobs. Four things are not
known beforehand: the fixed part of a step, the magnitude of the effects on this workload, how far effects depend on
each other and on the size, and the noise of this machine. The posterior is therefore the mean over a grid of these,
weighted by their likelihood. The most likely values alone would be overconfident: a few probes at small sizes leave
open both the fixed part and the effect of half precision at large sizes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from autofit.core.knob import Knob
from autofit.core.measurement import Measurement
from autofit.feasibility.plan_features import Array, Points, expected_of
from autofit.feasibility.surrogate import MIN_VARIANCE, Belief, Covariances, Kernel, Scales, Surrogate

SPEED = Scales(curve=0.10, knob=0.25, slope=0.06, pair=0.08, alone=0.03, size=0.06, kinship=0.5)
"""Usual magnitudes of the effects on log throughput; chosen by hand, scored by scripts/bench/search. A kinship of
0.7 gives slightly better searches on its tables and clearly worse ones on random problems."""
LEVEL = 2.0
"""Standard deviation of the level of log throughput, which the first probe gives."""
NOISES = (0.02, 0.08)
"""Standard deviation between probes of one plan, beyond the spread of their own steps: on a calm machine
(reference/reliability.md 9), and on a shared one. Both have the same prior probability; how well plans with common
parts agree decides between them. Scored by scripts/bench/search, against 0.02 alone, 0.06 and 0.12 instead of 0.08,
an additional 0.04, and a prior that makes a calm machine four times as likely."""
EXPECTED_RATIO = 0.35
"""Magnitude of a knob's effect beyond what theory says of it (`Knob.expected`), relative to a knob without theory."""
OVERHEADS = np.exp2(np.arange(-5.0, 5.0))
"""Candidates for the fixed part of a step, in samples of the baseline's micro batch: throughput is
b / (b + overhead)."""
USUAL_OVERHEAD, OVERHEAD_OCTAVES = 0.5, 2.0
"""Prior of the fixed part before a second size ran: its mean, and its standard deviation in doublings."""
AMPLITUDES = (0.5, 1.0, 2.0)
"""Candidates for the factor on the usual magnitude of all effects."""
DEPARTURES = (0.2, 0.5, 1.0)
"""Candidates for the factor on the magnitude of what makes effects depend on each other: joint effects of two knobs,
changes of an effect with the size, and effects of one combination alone. The smaller it is, the sooner a value is
settled that is slow in one combination. Scored by scripts/bench/search, against 1 alone, and against a factor that
leaves out the changes with the size."""

LEAST_WEIGHT = 1e-6
"""Models that are less likely than this are left out: they change no estimate by more than a millionth or so."""


class Throughput:
    """Estimates the throughput of plans.

    Args:
        knobs: knobs of the space.
        points: every plan of the space.
    """

    def __init__(self, knobs: Sequence[Knob], points: Points) -> None:
        expected, covered = expected_of(knobs, points, "expected")
        ratios = [EXPECTED_RATIO if known else 1.0 for known in covered]
        fixed = np.log1p(OVERHEADS / np.exp2(points.octaves)[:, None])  # [plans, overheads]
        self._expected = expected[:, None] - fixed
        self._prior_penalties = (np.log2(OVERHEADS / USUAL_OVERHEAD) / OVERHEAD_OCTAVES) ** 2 / 2
        self._covariances = [Covariances(Kernel(knobs, _departing(factor), ratios), points) for factor in DEPARTURES]

    def believe(self, scores: Mapping[int, float], measurements: Mapping[int, Measurement]) -> Belief:
        """Returns the posterior mean and standard deviation of the log throughput of every plan.

        Args:
            scores: throughput of the plans that ran, by place; at least one.
            measurements: measurements of at least the same plans, by place.
        """
        observed = sorted(scores)
        spreads = np.array([measurements[place].spread_ratio for place in observed])
        rest = np.log([scores[place] for place in observed])[:, None] - self._expected[observed]
        levels = rest.mean(axis=0)
        amplitudes, noises = np.array(list(product(AMPLITUDES, NOISES))).T
        noise = np.hypot(noises[:, None], spreads)
        families = [Surrogate(each, observed, noise, LEVEL, amplitudes) for each in self._covariances]
        evidence = np.stack([models.evidence(rest - levels) for models in families])
        evidence -= self._prior_penalties + np.log(amplitudes)[:, None] ** 2
        weights = np.exp(evidence - evidence.max())  # [families, models, overheads]
        return self._mixed(families, weights / weights.sum(), rest - levels, levels)

    def _mixed(self, families: Sequence[Surrogate], weights: Array, values: Array, levels: Array) -> Belief:
        """Returns the mean over all models and overheads.

        Args:
            families: several models for each of `DEPARTURES`.
            weights: their weights, [families, models, overheads].
            values: what they were conditioned on, [observed, overheads].
            levels: mean level for each overhead.
        """
        usual, middle = weights.max(axis=(0, 1)) > LEAST_WEIGHT, float(levels.mean())
        mean, square = np.zeros(len(self._expected)), np.zeros(len(self._expected))
        for models, each in zip(families, weights, strict=True):
            likely = each.max(axis=1) > LEAST_WEIGHT
            if not likely.any():
                continue
            weight = each[np.ix_(likely, usual)]
            for block, belief in models.only(likely).in_blocks(values[:, usual]):
                means = belief.mean
                means += (self._expected[block] + levels)[:, usual] - middle
                mean[block] += np.einsum("mpo,mo->p", means, weight)
                means *= means
                square[block] += np.einsum("mpo,mo->p", means, weight) + weight.sum(axis=1) @ belief.deviation**2
        return Belief(mean + middle, np.sqrt(np.maximum(square - mean**2, MIN_VARIANCE)))


def _departing(factor: float) -> Scales:
    """Returns the usual magnitudes, with this factor on those of departures from independent effects."""
    return replace(SPEED, slope=factor * SPEED.slope, pair=factor * SPEED.pair, alone=factor * SPEED.alone)
