"""Gain per second: which plan promises the most of it, among those that are likely to fit.

Plans are looked at in the order of their gain per second, a few at first and then ever more at once, until no other can
be better. So a small space costs few estimates of memory, and a large one few steps.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autofit.feasibility import Feasibility
from autofit.feasibility.plan_features import Array

WORTH_A_LOOK = 0.1
"""Probability of fitting from which a plan is looked at, where plans can be estimated before they run."""
RISKY_PROBABILITY, RISKY_GAIN = 0.3, 0.02
"""A plan that is unlikely to fit may run at the end, if it fits with at least this probability and promises at least
`RISKY_GAIN`."""
LEAST_HOPE, HOPEFUL_GAIN = 0.001, 0.005
"""A plan is looked at, once nothing else is worth a probe, if it fits with at least this probability and promises at
least `HOPEFUL_GAIN`. Such a probability comes from plans that share a part with it, and is often too low where several
changes that save memory meet."""
STEP_GAIN, STEP_PROBABILITY = 0.02, 0.15
"""Expected gain of a larger size that justifies a step towards it, and the lower bound on the probability that it fits,
as used for the worth of the step."""
EQUAL_RATIO = 1e-9
"""Rates that differ by at most this share are equal. Processors round differently, and the search must not depend on
it."""
FIRST = 8
"""Number of plans that are looked at first. It doubles each time."""
MOST_TARGETS = 256
"""Maximum number of plans at a time for which a step is looked for, the most promising."""

_ERFC = np.frompyfunc(math.erfc, 1, 1)


def expected_gains(means: Array, deviations: Array) -> Array:
    """Returns the expected gain of each plan; see `autofit.core.statistics.expected_gain`."""
    z = means / deviations
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    below = 0.5 * np.asarray(_ERFC(-z / math.sqrt(2)), dtype=np.float64)
    return np.asarray(deviations * density + means * below, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A plan and its worth: expected log ratio per second of probing."""

    rate: float = 0.0
    place: int | None = None

    def or_better(self, rate: float, place: int) -> "Proposal":
        """Returns the better of this proposal and another; of equal ones that of the plan which is listed first."""
        first = self.place is not None and place < self.place and rate > (1 - EQUAL_RATIO) * self.rate
        return Proposal(float(rate), place) if first or rate > (1 + EQUAL_RATIO) * self.rate else self

    def or_best(self, rates: Array, places: NDArray[np.int64]) -> "Proposal":
        """Returns the best of this proposal and others; of equal ones that of the plan which is listed first."""
        if not len(rates):
            return self
        equal = rates >= (1 - EQUAL_RATIO) * rates.max()
        at = int(np.argmin(np.where(equal, places, np.iinfo(np.int64).max)))
        return self.or_better(float(rates[at]), int(places[at]))


@dataclass(frozen=True, slots=True)
class Candidates:
    """The plans of a space, and what probing them promises.

    Attributes:
        gains: expected gain of each plan over the best that ran, if it fits, as a log ratio, [plans].
        seconds: estimated duration of a probe, [plans].
        least_gain: expected gain that is worth a probe.
        tried: places of the plans that were tried.
        looked: places of the plans that were looked at.
        feasibility: answers whether a plan fits.
    """

    gains: Array
    seconds: Array
    least_gain: float
    tried: Collection[int]
    looked: Collection[int]
    feasibility: Feasibility

    def proposals(self, may_step: bool) -> tuple[Proposal, Proposal, Proposal, Proposal]:
        """Returns the best plan that is likely to fit, the best step towards a larger one, the best risk and hope.

        A hope is a plan that is unlikely to fit by the model alone, and can be estimated before it runs.

        Args:
            may_step: whether a step is wanted.
        """
        rates, required = self.gains / self.seconds, self.feasibility.required_probability
        worthy = np.flatnonzero(self.gains >= self.least_gain)
        order = worthy[np.argsort(-rates[worthy], kind="stable")]
        sure = step = risk = hope = Proposal()
        begin, count = 0, FIRST
        while begin < len(order) and rates[order[begin]] >= (1 - EQUAL_RATIO) * sure.rate:
            places = order[begin : begin + count]
            begin, count = begin + count, 2 * count
            fits, gains = self.feasibility.probabilities(places), self.gains[places]
            waiting = self._wait_for_a_look(places)
            likely = fits >= np.where(waiting, WORTH_A_LOOK, required)
            worth = fits * gains / (self.seconds[places] + np.where(waiting, self.feasibility.look_s, 0.0))
            promises = fits * gains
            chosen = likely & (promises >= self.least_gain)
            sure = sure.or_best(worth[chosen], places[chosen])
            risky = (fits >= RISKY_PROBABILITY) & (fits < required) & (promises >= RISKY_GAIN)
            risk = risk.or_best(worth[risky], places[risky])
            hoped = waiting & ~likely & (fits >= LEAST_HOPE) & (gains >= HOPEFUL_GAIN)
            hope = hope.or_best(worth[hoped], places[hoped])
            if may_step:
                targets = ~likely & (gains >= STEP_GAIN)
                step = self._step(step, places[targets], fits[targets], sure.rate)
        return sure, step, risk, hope

    def _wait_for_a_look(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns which plans are to be looked at before they are judged."""
        if not self.feasibility.baseline_is_estimated:
            return np.zeros(len(places), dtype=np.bool_)
        waiting = ~np.isin(places, list(self.looked))
        plans = self.feasibility.plans.plans
        for at in np.flatnonzero(waiting & ~self.feasibility.only_modelled(places)):
            waiting[at] = not self.feasibility.is_estimated(plans[places[at]])
        return waiting

    def _step(self, best: Proposal, targets: NDArray[np.int64], fits: Array, least_rate: float) -> Proposal:
        """Returns the best of a proposal and the steps towards some plans, which are worth more than `least_rate`."""
        worth = np.maximum(fits, STEP_PROBABILITY) * self.gains[targets]
        bounds = worth / (self.seconds[targets] + self.seconds.min())
        for at in np.argsort(-bounds, kind="stable")[:MOST_TARGETS]:
            if bounds[at] < (1 - EQUAL_RATIO) * max(best.rate, least_rate):
                break
            target = int(targets[at])
            place = self._below(target)
            if place is not None:
                best = best.or_better(worth[at] / (self.seconds[place] + self.seconds[target]), place)
        return best

    def _below(self, target: int) -> int | None:
        """Returns the largest size below a plan that is likely to fit, to show how its memory grows, or None."""
        plans, octaves = self.feasibility.plans, self.feasibility.plans.points.octaves
        smaller = (place for place in plans.with_combination_of(target) if octaves[place] < octaves[target])
        for place in sorted(smaller, key=lambda place: -octaves[place]):
            if place in self.tried:
                return None  # the next size is the target itself, which is unlikely to fit
            plan = plans.plans[place]
            if self.feasibility.has_refused_value(plan):
                return None
            if self.feasibility.is_likely(plan):
                return place
        return None
