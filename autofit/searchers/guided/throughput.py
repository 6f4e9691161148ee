"""Throughput: how fast every plan is believed to be, from those that ran.

A surrogate models the logarithm, beside what is expected of the size and of the knobs. How long the fixed part of a
step takes, how large the effects of this workload are and how noisy this machine is, is not known: the belief is the
mean over all settings of these, each counted as likely as it makes what was seen. The likeliest alone would be too
sure: with a few probes of small sizes the fixed part may be anything, and so may what half precision brings at large
ones.
"""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from autofit.core.knob import Knob
from autofit.core.measurement import Measurement
from autofit.searchers.guided.surrogate import (
    LEAST_VARIANCE,
    Belief,
    Covariances,
    Kernel,
    Points,
    Scales,
    Surrogate,
    expected_of,
)

SPEED = Scales(curve=0.10, knob=0.25, slope=0.06, pair=0.08, own=0.03, size=0.06, kinship=0.5)
"""Usual sizes of what changes log throughput; chosen by hand, scored by scripts/bench/search. With a kinship of 0.7
its tables are searched a little better, and random problems clearly worse."""
LEVEL = 2.0
"""Of the level of log throughput, which the first probe tells."""
NOISES = (0.02, 0.08)
"""Of one probe against another of the same plan, beside what its own steps show: on a calm machine
(reference/reliability.md 9), and on one that others share; one is as likely as the other beforehand. Which it is shows
in how well plans that have much in common agree. Scored by scripts/bench/search, with 0.02 alone, 0.06 and 0.12
instead of 0.08, 0.04 between them, and a calm machine four times as likely."""
EXPECTED_RATIO = 0.35
"""What a knob changes beside what theory says of it (`Knob.expected`), as a share of what others change."""
OVERHEADS = np.exp2(np.arange(-5.0, 5.0))
"""The fixed part of a step, in samples of the user's own micro batch: throughput is b / (b + overhead)."""
USUAL_OVERHEAD, OVERHEAD_OCTAVES = 0.5, 2.0
"""What it is before a second size ran, and by how many doublings that may be wrong (one standard deviation)."""
AMPLITUDES = (0.5, 1.0, 2.0)
"""How much larger or smaller all effects of this workload may be than usual."""


class Throughput:
    """Says how fast plans are believed to be.

    Args:
        knobs: of the space.
        points: every plan of the space.
    """

    def __init__(self, knobs: Sequence[Knob], points: Points) -> None:
        expected, said = expected_of(knobs, points, "expected")
        known = [EXPECTED_RATIO if known else 1.0 for known in said]
        fixed = np.log1p(OVERHEADS / np.exp2(points.octaves)[:, None])  # [plans, overheads]
        self._expected = expected[:, None] - fixed
        self._doubts = (np.log2(OVERHEADS / USUAL_OVERHEAD) / OVERHEAD_OCTAVES) ** 2 / 2
        self._covariances = Covariances(Kernel(knobs, SPEED, known), points)

    def believe(self, scores: Mapping[int, float], measurements: Mapping[int, Measurement]) -> Belief:
        """Returns the mean and the deviation of the log throughput of every plan.

        Args:
            scores: throughput of the plans that ran, by place; one at least.
            measurements: of the same plans, and perhaps of others.
        """
        told = sorted(scores)
        spreads = np.array([measurements[place].spread_ratio for place in told])
        rest = np.log([scores[place] for place in told])[:, None] - self._expected[told]
        levels = rest.mean(axis=0)
        amplitudes, noises = np.array(list(product(AMPLITUDES, NOISES))).T
        models = Surrogate(self._covariances, told, np.hypot(noises[:, None], spreads), LEVEL, amplitudes)
        evidence = models.evidence(rest - levels) - self._doubts - np.log(amplitudes)[:, None] ** 2
        weights = np.exp(evidence - evidence.max())  # [models, overheads]
        weights /= weights.sum()
        believed = models.believe(rest - levels)
        means = believed.mean + self._expected + levels
        mean = np.einsum("mpo,mo->p", means, weights)
        within = np.einsum("mp,mo->p", believed.deviation**2, weights)
        between = np.einsum("mpo,mo->p", (means - mean[:, None]) ** 2, weights)
        return Belief(mean, np.sqrt(np.maximum(within + between, LEAST_VARIANCE)))
