"""Feasibility: how likely a plan is to fit, from what the estimators say and from the peaks that were seen.

An estimate with bounds is believed, corrected by how much such estimates were off. A plan surely fits where a straight
line from what stays between steps through a smaller size of its combination says so; how likely it is to fit by the
line through two such sizes is known from recorded peaks. Of any other plan the part of the peak that grows with the
batch is believed to be that of the user's own combination, where it is estimated for every size, or else proportional
to the micro batch; times a factor for each change. The factors are learned from the peaks of the plans that ran, by a
surrogate, which knows that a change does about the same at another size and beside others.
"""

import math
from collections.abc import Sequence
from statistics import median

import numpy as np

from autofit.core.estimate import Estimate
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.statistics import below
from autofit.searchers.base import Problem
from autofit.searchers.guided.surrogate import (
    Array,
    Belief,
    Covariances,
    Kernel,
    Points,
    Scales,
    Surrogate,
    expected_of,
)
from autofit.searchers.guided.tried_sizes import TriedSizes, was_refused

ESTIMATED = Scales(curve=0.05, knob=0.30, slope=0.03, pair=0.05, own=0.02, kinship=0.2)
PROPORTIONAL = Scales(curve=0.35, knob=0.30, slope=0.03, pair=0.05, own=0.04, octaves=2.5, kinship=0.2)
"""Usual sizes of what changes the logarithm of the part of a peak that grows (see `surrogate`): beside an estimate for
the user's own combination, and beside a straight line, which a peak does not follow where something else makes it. That
one value needs room says less of another than speed does: a foreach optimizer takes some, a fused one none."""
POWER = 0.75
"""Of the micro batch, that the part which grows is taken to follow where it is not estimated: 1 would be a straight
line, but some of what is taken for it does not grow."""
GROWTH_RATIO = 0.6
"""What a knob changes beside what theory says of it (`Knob.growth`), as a share of what others change."""
ONE_SIDED = 0.05
"""Standard deviation of what is only known to be no less than something."""
ESTIMATED_LEVEL, PROPORTIONAL_LEVEL = 0.05, 2.0
"""Of what all plans have in common: an estimate knows it, and told by the first probe of a line."""
NOISE = 0.01
LEAST = 0.01
"""The part of a peak that grows is taken to be at least this share of what stays."""
HIDDEN = 0.7
"""A peak that something else makes says only that what grows is less: by so much, give or take as much."""
OVER, SURPRISE = 1.05, 0.2
"""A plan that ran out of memory is taken to need the first multiple of the budget, if less was believed, give or take
this share of how much less: the more it contradicts plans that ran, the less of it need be what it shares with them."""
NARROW = 1.03
"""Bounds that are no further apart than this ratio are believed as they are."""
TIGHT = 0.004
"""Standard deviation of an estimate with bounds, at least."""


class Feasibility:
    """Says how likely plans are to fit.

    Args:
        problem: what the searcher was given.
        plans: every plan of the space.
        points: the same as numbers.
    """

    def __init__(self, problem: Problem, plans: Sequence[Plan], points: Points) -> None:
        self._problem, self._plans, self._points = problem, plans, points
        self._sizes, self._size_places = np.unique([plan.micro_batch_size for plan in plans], return_inverse=True)
        self._changes, said = expected_of(problem.space.facts.knobs, points, "growth")
        knobs, known = problem.space.facts.knobs, [GROWTH_RATIO if known else 1.0 for known in said]
        self._with_estimates = Covariances(Kernel(knobs, ESTIMATED, known), points)
        self._without = Covariances(Kernel(knobs, PROPORTIONAL, known), points)
        self.tried = TriedSizes(plans, points, problem.memory_bytes)
        changed = (points.values != points.values[:1]).sum(axis=1)
        self._singles = [int(place) for place in np.flatnonzero(changed == 1)]
        self._belief: Belief | None = None
        self._chances: dict[int, float] = {}  # until something is told
        self._stays = 0.0
        self._expected: dict[int, int] = {}
        self._misses: list[float] = []

    def tell(self, place: int, outcome: Outcome) -> None:
        """Learns what a plan needed."""
        self.tried.tell(place, outcome)
        self.look_again()
        expected, measurement = self._expected.pop(place, None), outcome.measurement
        if expected is not None and measurement is not None:
            self._misses.append(math.log(measurement.memory.judged_bytes / expected))

    def look_again(self) -> None:
        """Forgets what was believed: more is known now."""
        self._belief = None
        self._chances.clear()

    def expect(self, place: int) -> None:
        """Remembers the estimate of a plan that is about to run, to learn by how much such figures are off."""
        estimate = self._with_bounds(place)
        if estimate is not None and not _narrow(estimate):
            self._expected[place] = _said(estimate)

    def is_estimated(self, place: int) -> bool:
        """Says whether an estimate with bounds is there, so that no other plan's peak could tell more."""
        return self._with_bounds(place) is not None

    @property
    def all_estimated(self) -> bool:
        """Whether the user's own combination is estimated at every size: then any plan is, before it runs."""
        return self._own_peaks() is not None

    def likely(self, place: int) -> float:
        """Returns the probability that a plan fits."""
        if place not in self._chances:
            self._chances[place] = self._chance(place)
        return self._chances[place]

    def _chance(self, place: int) -> float:
        estimate, limit = self._estimate(place), self._problem.memory_bytes
        if estimate is not None and _bounded(estimate):
            return self._surely(estimate)
        if estimate is not None and not estimate.worst_case and (estimate.lower_bytes or 0) > limit:
            return 0.0
        if self.tried.most(place) <= limit:
            return self.tried.below_refused(place)
        fits = self.tried.along(place)
        if fits is None:
            if self._belief is None:
                self._belief = self._believe()
            room = math.log(max(limit - self._stays, 1.0))
            fits = below((room - self._belief.mean[place]) / self._belief.deviation[place])
        return min(fits, self.tried.below_refused(place), self.tried.among_its_size(place))

    def _estimate(self, place: int) -> Estimate | None:
        return self._problem.estimate(self._plans[place])

    def _with_bounds(self, place: int) -> Estimate | None:
        estimate = self._estimate(place)
        return estimate if estimate is not None and _bounded(estimate) else None

    def _surely(self, estimate: Estimate) -> float:
        """Returns the probability that a peak with these bounds is within the limit; they are taken for two deviations.

        Wide bounds are corrected by how much figures with such bounds were off, the surer the more of them ran. Where
        others raised the guess to what a plan needs at least, what was said before is corrected.
        """
        limit = self._problem.memory_bytes
        lower, upper = estimate.lower_bytes or 0, estimate.upper_bytes or 0
        mean, deviation = math.log(max(estimate.value_bytes, 1)), max(math.log(upper / max(lower, 1)) / 4, TIGHT)
        if self._misses and not _narrow(estimate):
            shift = median(self._misses)
            said = max(min(_said(estimate), estimate.value_bytes), 1)
            mean = max(math.log(said) + shift, math.log(max(lower, 1)))
            spread = 1.5 * median(abs(miss - shift) for miss in self._misses)
            deviation = max(spread, NOISE / math.sqrt(len(self._misses)), TIGHT)
        elif upper <= limit or lower > limit:
            return float(upper <= limit)
        return below((math.log(limit) - mean) / deviation)

    def _believe(self) -> Belief:
        """Returns what is believed of the logarithm of the bytes that grow, for every plan."""
        own = self._own_peaks()
        measured = [o.measurement.memory for o in self.tried.outcomes.values() if o.measurement is not None]
        self._stays = 0.98 * min((memory.static_bytes or 0 for memory in measured), default=0)
        known, guessed = (self._with_estimates, ESTIMATED_LEVEL), (self._without, PROPORTIONAL_LEVEL)
        model, level = guessed if own is None else known
        grows = POWER * self._points.octaves * math.log(2) if own is None else self._logs(own)
        grows = grows + self._changes
        told = {place: seen for place in self.tried.outcomes if (seen := self._seen(place, own is not None))}
        if own is not None:  # what is estimated of a single change says something of all that have it
            ahead = (place for place in self._singles if place not in self.tried.outcomes)
            told |= {place: (self._log(e.value_bytes), NOISE) for place in ahead if (e := self._with_bounds(place))}
        if not told:
            return Belief(grows, np.sqrt(model.variances + level**2))
        centre = 0.0 if own is not None else float(np.mean([log - grows[place] for place, (log, _) in told.items()]))
        belief = self._fitted(model, level, grows + centre, told)
        least = math.log(max(OVER * self._problem.memory_bytes - self._stays, 1.0))
        refused = {
            place: (least, max(ONE_SIDED, SURPRISE * short if outcome.status.does_not_fit else 0.0))
            for place, outcome in self.tried.outcomes.items()
            if place not in told and was_refused(outcome) and (short := least - float(belief.mean[place])) > 0
        }
        return self._fitted(model, level, grows + centre, told | refused) if refused else belief

    def _fitted(
        self, model: Covariances, level: float, expected: Array, told: dict[int, tuple[float, float]]
    ) -> Belief:
        places = sorted(told)
        values = np.array([told[place][0] for place in places]) - expected[places]
        noise = np.array([told[place][1] for place in places])
        believed = Surrogate(model, places, noise, level).believe(values[:, None])
        return Belief(believed.mean[:, 0] + expected, believed.deviation)

    def _seen(self, place: int, own: bool) -> tuple[float, float] | None:
        """Returns the logarithm of the bytes that grow, if a plan ran or is estimated, and how far that may be off."""
        measurement = self.tried.outcomes[place].measurement
        if measurement is not None:
            log = self._log(measurement.memory.judged_bytes)
            known = own and self.tried.combination(place) == self.tried.combination(0)
            return (log - HIDDEN, HIDDEN) if not known and self.tried.hidden(place) else (log, NOISE)
        estimate = None if self.tried.outcomes[place].status.does_not_fit else self._with_bounds(place)
        return None if estimate is None else (self._log(estimate.value_bytes), NOISE)

    def _own_peaks(self) -> dict[int, int] | None:
        """Returns the peaks of the user's own combination by size, where all of them are estimated with bounds."""
        found: dict[int, int] = {}
        for place in np.flatnonzero(self._points.combinations == self._points.combinations[0]):
            estimate = self._with_bounds(int(place))
            if estimate is None:
                return None
            found[self._plans[int(place)].micro_batch_size] = estimate.value_bytes
        return found

    def _logs(self, peaks: dict[int, int]) -> Array:
        return np.array([self._log(peaks[int(size)]) for size in self._sizes])[self._size_places]

    def _log(self, peak: float) -> float:
        return math.log(max(peak - self._stays, LEAST * self._stays, 1.0))


def _bounded(estimate: Estimate) -> bool:
    return estimate.lower_bytes is not None and estimate.upper_bytes is not None and not estimate.worst_case


def _said(estimate: Estimate) -> int:
    """Returns the best guess as it was before what ran moved it."""
    return max(estimate.value_bytes if estimate.said_bytes is None else estimate.said_bytes, 1)


def _narrow(estimate: Estimate) -> bool:
    """Whether an estimate has bounds so narrow that nothing is to be learned of it."""
    return (estimate.upper_bytes or 0) <= NARROW * (estimate.lower_bytes or 0)
