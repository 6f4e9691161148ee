"""Throughput: the estimated throughput of every plan, from those that ran.

A surrogate models the log throughput relative to what is expected of the size and of the knobs. Three things are not
known beforehand: the fixed part of a step, the magnitude of the effects on this workload, and the noise of this
machine. The posterior is therefore the mean over a grid of these, weighted by their likelihood. The most likely values
alone would be overconfident: a few probes at small sizes leave open both the fixed part and the effect of half
precision at large sizes.

Usual plans: what an expert writes at once on an accelerator, which runs before the model decides.

Plainer: the same plan without what trades time for memory, which goes first where it is likely to fit.

A search knows the cost of recomputation roughly before it has probed any. A plan with recomputation that promises as
much as the same plan without it would otherwise run in its place, and show less.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

from autofit.core.knob import Knob
from autofit.core.measurement import Measurement
from autofit.core.plan import KnobValue, Plan
from autofit.core.space import SearchSpace, SpaceFacts
from autofit.feasibility.plan_features import Array, Points, expected_of
from autofit.feasibility.surrogate import MIN_VARIANCE, Belief, Covariances, Kernel, Scales, Surrogate

SPEED = Scales(curve=0.10, knob=0.25, slope=0.06, pair=0.08, alone=0.03, size=0.06, kinship=0.5, joint_kinship=0.8)
"""Usual magnitudes of the effects on log throughput; chosen by hand, scored by scripts/bench/search. With a lower joint
kinship, every pair of sibling values is measured in a large space."""
LEVEL = 2.0
"""Standard deviation of the level of log throughput, which the first probe gives."""
NOISES = (0.02, 0.08)
"""Standard deviation between probes of one plan, beyond the spread of their own steps: on a calm machine
(reference/reliability.md 9), and on a shared one. Both have the same prior probability; how well plans with common
parts agree decides between them. Scored by scripts/bench/search."""
EXPECTED_RATIO = 0.35
"""Magnitude of a knob's effect beyond what theory says of it (`Knob.expected`), relative to a knob without theory."""
PLAUSIBLE_DEVIATIONS = 4.0
"""Number of standard deviations from the expected to the largest plausible throughput of a value (`Knob.ceiling`). A
knob whose values are expected to pay and may pay much more is one of which theory says little."""
NEAR_KINSHIP = 0.8
"""Kinship of the values of such a knob: what it does to a model is unknown, and much the same for all of them. On an
H100, four layers of GPT-2 became 1.06 times as fast with compiled blocks and 1.07 times compiled as a whole, 2.2 times
in bf16 and 2.1 times in TF32 and fp16."""
OVERHEADS = np.exp2(np.arange(-5.0, 5.0))
"""Candidates for the fixed part of a step, in samples of the baseline's micro batch: throughput is
b / (b + overhead)."""
USUAL_OVERHEAD, OVERHEAD_OCTAVES = 0.5, 2.0
"""Prior of the fixed part before a second size ran: its mean, and its standard deviation in doublings."""
AMPLITUDES = (0.5, 1.0, 2.0)
"""Candidates for the factor on the usual magnitude of all effects. Another factor, on joint effects and on changes with
the size, loses more on the tables of scripts/bench/search than it saves in large spaces."""
LEAST_WEIGHT = 1e-12
"""Models that are less likely than this are left out: they change no estimate beyond rounding."""


class Throughput:
    """Estimates the throughput of every plan of a space."""

    def __init__(self, knobs: Sequence[Knob], points: Points) -> None:
        expected, covered = expected_of(knobs, points, "expected")
        ratios = [_ratio(knob) if known else 1.0 for knob, known in zip(knobs, covered, strict=True)]
        kinships = [NEAR_KINSHIP if _above(knob) else 0.0 for knob in knobs]
        fixed = np.log1p(OVERHEADS / np.exp2(points.octaves)[:, None])  # [plans, overheads]
        self._expected = expected[:, None] - fixed
        self._prior_penalties = (np.log2(OVERHEADS / USUAL_OVERHEAD) / OVERHEAD_OCTAVES) ** 2 / 2
        self._covariances = Covariances(Kernel(knobs, SPEED, ratios, kinships), points)

    def believe(self, scores: Mapping[int, float], measurements: Mapping[int, Measurement]) -> Belief:
        """Returns the posterior mean and standard deviation of the log throughput of every plan.

        At least one plan ran; `measurements` has at least those with a score.
        """
        observed = sorted(scores)
        spreads = np.array([measurements[place].spread_ratio for place in observed])
        rest = np.log([scores[place] for place in observed])[:, None] - self._expected[observed]
        levels = rest.mean(axis=0)
        amplitudes, noises = np.array(list(product(AMPLITUDES, NOISES))).T
        models = Surrogate(self._covariances, observed, np.hypot(noises[:, None], spreads), LEVEL, amplitudes)
        evidence = models.evidence(rest - levels) - self._prior_penalties - np.log(amplitudes)[:, None] ** 2
        weights = np.exp(evidence - evidence.max())  # [models, overheads]
        weights /= weights.sum()
        likely, usual = weights.max(axis=1) > LEAST_WEIGHT, weights.max(axis=0) > LEAST_WEIGHT
        return self._mixed(
            models.only(likely), weights[np.ix_(likely, usual)], (rest - levels)[:, usual], levels, usual
        )

    def _mixed(
        self, models: Surrogate, weights: Array, values: Array, levels: Array, overheads: NDArray[np.bool_]
    ) -> Belief:
        """Returns the mean over models and some of all overheads, by their weights, [models, overheads]."""
        mean, deviation = np.empty(len(self._expected)), np.empty(len(self._expected))
        for block, belief in models.in_blocks(values):
            means = belief.mean
            means += (self._expected[block] + levels)[:, overheads]
            mean[block] = np.einsum("mpo,mo->p", means, weights)
            means -= mean[block, None]
            means *= means
            within = weights.sum(axis=1) @ belief.deviation**2
            between = np.einsum("mpo,mo->p", means, weights)
            deviation[block] = np.sqrt(np.maximum(within + between, MIN_VARIANCE))
        return Belief(mean, deviation)


def _ratio(knob: Knob) -> float:
    """Returns the magnitude of the effect of a knob with an expected throughput, relative to one without."""
    return min(max(EXPECTED_RATIO, max(_above(knob), default=0.0) / PLAUSIBLE_DEVIATIONS / SPEED.knob), 1.0)


def _above(knob: Knob) -> list[float]:
    """Returns for each value that is expected to pay how far its largest plausible throughput is above that."""
    return [math.log(most / usual) for most, usual in zip(knob.ceiling, knob.expected, strict=False) if usual > 1]


LARGER = 4
"""The usual values run at the largest size of up to this many times the user's micro batch, then at that size."""


def usual_plans(space: SearchSpace) -> list[list[Plan]]:
    """Returns groups of the baseline with the usual value of each knob (`Knob.usual`); of each, one plan is run.

    Each group has these values at a larger micro batch, then at the baseline's. The first leaves out what must warm up:
    it is an answer within seconds, while compiling an unknown model may take longer than the time budget (on an H100,
    the blocks of ConvNeXt-T took 33 s and those of Swin-T 76 s). No group is without a plan.
    """
    knobs = [knob for knob in space.facts.knobs if knob.usual is not None and knob.name not in space.facts.pinned]
    every: dict[str, KnobValue] = {knob.name: knob.usual for knob in knobs if knob.usual is not None}
    quick = {knob.name: every[knob.name] for knob in knobs if not knob.warm_up_s}
    groups = [list(_at_sizes(space, values)) for values in ([quick, every] if quick != every else [every]) if values]
    return [group for group in groups if group]


def _at_sizes(space: SearchSpace, values: dict[str, KnobValue]) -> Iterator[Plan]:
    """Yields the plan with these values at a larger micro batch and at the baseline's, if they are in the space."""
    micro = space.baseline.micro_batch_size
    combination = space.baseline.replace(**values).combination
    for size in dict.fromkeys((max(size for size in space.sizes if size <= LARGER * micro), micro)):
        plan = space.at(combination, size)
        if space.violation(plan) is None and plan != space.baseline:
            yield plan


def plainer(space: SpaceFacts, plan: Plan) -> Plan | None:
    """Returns the plan with every technique that trades time for memory left out; None if it has none."""
    traded = {knob.name for knob in space.knobs if knob.trades_memory and plan.values[knob.name] != knob.default}
    left_out = {name for record in space.strategies if traded.intersection(record.knobs) for name in record.knobs}
    values: dict[str, KnobValue] = {knob.name: knob.default for knob in space.knobs if knob.name in traded | left_out}
    return plan.replace(**values) if traded else None
