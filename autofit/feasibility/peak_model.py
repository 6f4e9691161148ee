"""PeakModel: the probability that a plan fits, from estimates and measured peaks.

An estimate with bounds is taken as it is, corrected by the observed error of such estimates. A plan surely fits if the
straight line from the static memory through a smaller size of its combination does; the line through two such sizes
gives a probability that is known from recorded peaks (`TriedSizes`). For any other plan, the part of the peak that
grows with the batch starts from that of the baseline's combination where it is estimated at every size, and else from
a power of the micro batch. Each change multiplies it by a factor. A surrogate learns the factors from the peaks of the
plans that ran: a change has about the same effect at another size and in combination with other changes.
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from statistics import median

import numpy as np
from numpy.typing import NDArray

from autofit.core.estimate import Estimate
from autofit.core.knob import Knob
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.statistics import below
from autofit.feasibility.plan_features import Array, PlanList, expected_of
from autofit.feasibility.surrogate import Belief, Covariances, Kernel, Scales, Surrogate

EQUAL_RATIO = 0.01
"""Peaks that differ by less than this share count as equal."""
MAX_REACH = 2.0
"""Maximum extrapolation of a line through two sizes, as a multiple of the larger size."""
BELOW_LINE, ABOVE_LINE, BEND = 0.05, 0.25, 0.15
"""Share of recorded peaks below such a line, share above it, and their mean excess as a share of the line's increase.
Measured over the recorded tables, 741 plans (tests/feasibility/test_tried_sizes.py)."""
MANY_OUT_OF_MEMORY = 3
"""After this many out-of-memory errors a search is more careful: one refusal at a size counts where two did before,
and a value that was only ever refused takes no part in steps towards a larger size."""


class TriedSizes:
    """Outcomes of the plans that were tried, by combination and size.

    Attributes:
        outcomes: outcome of each plan that was tried, by its place in the list of plans.
    """

    def __init__(self, plans: PlanList, limit_bytes: int) -> None:
        self._sizes, self._points, self._limit_bytes = plans.sizes, plans.points, limit_bytes
        self._by_combination: dict[int, dict[int, Outcome]] = {}  # combination -> size -> outcome
        self.outcomes: dict[int, Outcome] = {}

    def tell(self, place: int, outcome: Outcome) -> None:
        """Adds the outcome of a plan."""
        self.outcomes[place] = outcome
        self._by_combination.setdefault(self.combination(place), {})[self._size(place)] = outcome

    def has_refused_value(self, place: int) -> bool:
        """Returns whether a plan has a value that was refused and never ran: it may need memory at any size.

        Always False before `MANY_OUT_OF_MEMORY` errors.
        """
        if not self._many_failed:
            return False
        of_plan, values = self._points.values[place], self._points.values
        refused = [other for other, outcome in self.outcomes.items() if outcome.status.does_not_fit]
        ran = [other for other, outcome in self.outcomes.items() if outcome.measurement is not None]
        return bool(((values[refused] == of_plan).any(axis=0) & ~(values[ran] == of_plan).any(axis=0)).any())

    def upper_bound_bytes(self, place: int) -> float:
        """Returns an upper bound on the peak from the smaller sizes that ran, in bytes; infinity if none did.

        No phase of a step needs less than the static memory, and each phase is affine in the batch.
        """
        size, bound = self._size(place), math.inf
        for ran, outcome in self._sizes_tried(place).items():
            memory = None if outcome.measurement is None else outcome.measurement.memory
            if memory is not None and memory.static_bytes and ran <= size:
                static = memory.static_bytes
                bound = min(bound, static + (memory.judged_bytes - static) * size / ran)
        return bound

    def line_probability(self, place: int) -> float | None:
        """Returns the probability that a plan fits by the line through two smaller sizes; None without a line.

        A peak is the maximum over phases that are each affine in the batch, so it may bend upwards.
        """
        size, peaks, limit = self._size(place), self._peaks(place), self._limit_bytes
        ran = sorted(each for each in peaks if each < size)[-2:]
        if len(ran) < 2 or size > MAX_REACH * ran[1]:
            return None
        first, last = (peaks[each] for each in ran)
        if last <= (1 + EQUAL_RATIO) * first:
            return None
        increase = (last - first) * (size - ran[1]) / (ran[1] - ran[0])
        room = (limit - last - increase) / increase
        return BELOW_LINE if room < 0 else 1 - ABOVE_LINE * math.exp(-room / BEND)

    def max_probability_at_size(self, place: int) -> float:
        """Returns an upper bound on the probability that a plan fits, from the plans of the same size.

        It is 1 until two of them did not fit; one is enough after `MANY_OUT_OF_MEMORY` errors. From then on it follows
        Laplace's rule of succession: a library may need memory at one size only, whatever the combination.
        """
        size = self._size(place)
        same = [tried[size] for tried in self._by_combination.values() if size in tried]
        refused, ran = sum(each.status.does_not_fit for each in same), sum(each.measured for each in same)
        return 1.0 if refused < (1 if self._many_failed else 2) else (ran + 1) / (ran + refused + 2)

    def max_probability_below_refused(self, place: int) -> float:
        """Returns an upper bound on the probability that a plan fits, from the sizes of its combination.

        The largest size that fits is uniformly distributed between the largest that ran and the smallest refused.
        """
        size, tried = self._size(place), self._sizes_tried(place)
        refused = min((s for s, outcome in tried.items() if was_refused(outcome)), default=None)
        if refused is None:
            return 1.0
        ran = max((s for s, outcome in tried.items() if outcome.measured and s < refused), default=0)
        return max(1 - (size - ran) / (refused - ran), 0.0)

    def peak_may_be_fixed(self, place: int) -> bool:
        """Returns whether the peak of a plan may come from a phase that does not grow.

        It may if the peak equals that of another size, or that of the baseline's combination at the same size.
        """
        baseline, mine = self._peaks(0), self._peaks(place)
        size = self._size(place)
        peak = mine[size]
        if any(s != size and _equal(p, peak) for s, p in (baseline | mine).items()):
            return True
        changed = self.combination(place) != self.combination(0)
        same = size in baseline and _equal(peak, baseline[size])
        return changed and same and not any(s < size and p < peak for s, p in baseline.items())

    def _size(self, place: int) -> int:
        return int(self._sizes[place])

    def combination(self, place: int) -> int:
        """Returns the number of a plan's combination."""
        return int(self._points.combinations[place])

    def _peaks(self, place: int) -> dict[int, int]:
        """Returns the measured peaks of a plan's combination by size."""
        sizes = self._sizes_tried(place).items()
        return {size: o.measurement.memory.judged_bytes for size, o in sizes if o.measurement is not None}

    @property
    def _many_failed(self) -> bool:
        failed = sum(each.status is Status.OUT_OF_MEMORY for each in self.outcomes.values())
        return failed >= MANY_OUT_OF_MEMORY

    def _sizes_tried(self, place: int) -> dict[int, Outcome]:
        """Returns the outcomes of a plan's combination by size."""
        return self._by_combination.get(self.combination(place), {})


def _equal(a: int, b: int) -> bool:
    return abs(a / b - 1) < EQUAL_RATIO


def was_refused(outcome: Outcome) -> bool:
    """Returns whether a plan does not fit, or was skipped for that reason."""
    return outcome.status.does_not_fit or outcome.status is Status.SKIPPED


ESTIMATED = Scales(curve=0.05, knob=0.30, slope=0.03, pair=0.07, alone=0.02, kinship=0.2, joint_kinship=0.2)
PROPORTIONAL = Scales(
    curve=0.35, knob=0.30, slope=0.03, pair=0.05, alone=0.04, octaves=2.5, kinship=0.2, joint_kinship=0.2
)
"""Usual magnitudes of the effects on the log of the growing part (see `surrogate`): around an estimate of the
baseline's combination, and around a power of the size, which a peak does not follow where a fixed phase makes it. The
kinship is lower than for speed: a foreach optimizer needs memory, a fused one does not. At a `pair` of 0.05, plans in
which two changes save less together than alone seem not to fit; at 0.10, searches of the trap `static_memory` lose
3 %."""
POWER = 0.75
"""Exponent of the micro batch in the growing part where it is not estimated. It is below 1, a straight line, because
some of what the model counts as growing is fixed."""
GROWTH_RATIO = 0.6
"""Magnitude of a knob's effect beyond what theory says of it (`Knob.growth`), relative to a knob without theory."""
ONE_SIDED = 0.05
"""Standard deviation of an observation that is only a lower bound."""
ESTIMATED_LEVEL, PROPORTIONAL_LEVEL = 0.05, 2.0
"""Standard deviation of the level that all plans share: an estimate gives it, and otherwise the first probe does."""
NOISE = 0.01
"""Standard deviation of the log of a measured peak."""
MIN_GROWING_RATIO = 0.01
"""Lower bound on the growing part of a peak, as a share of the static memory."""
FIXED_PEAK_LOG = 0.7
"""Where a fixed phase makes the peak, the log of the growing part is lower by this much, with a standard deviation of
the same size."""
OVER, SURPRISE = 1.05, 0.2
"""A plan that ran out of memory counts as an observation of `OVER` times the budget if it was expected to need less.
Its standard deviation is `SURPRISE` times the shortfall of that expectation: the more it contradicts plans that ran,
the less it says of plans that share a part with it."""
NARROW_RATIO = 1.03
"""Bounds whose ratio is at most this need no correction."""
MIN_DEVIATION = 0.004
"""Lower bound on the standard deviation of the log of an estimate with bounds."""
_BELOW = np.frompyfunc(below, 1, 1)


class PeakModel:
    """Gives the probability that a plan fits. `estimate` estimates the peak of a plan, and is cheap.

    Attributes:
        tried: outcomes of the plans that were tried.
        freed_bytes: static memory that each plan is expected to need less than the baseline, [plans].
    """

    def __init__(
        self,
        plans: PlanList,
        knobs: Sequence[Knob],
        memory_bytes: int,
        estimate: Callable[[Plan], Estimate | None],
    ) -> None:
        self._plans, self._points, self._memory_bytes = plans.plans, plans.points, memory_bytes
        self._estimate_of = estimate
        self._sizes, self._size_places = np.unique(plans.sizes, return_inverse=True)
        self._changes, covered = expected_of(knobs, self._points, "growth")
        indices = zip(knobs, self._points.values.T, strict=True)
        freed = (np.array(knob.frees_bytes)[index] for knob, index in indices if knob.frees_bytes)
        self.freed_bytes: Array = sum(freed, start=np.zeros(len(plans.sizes)))
        ratios = [GROWTH_RATIO if known else 1.0 for known in covered]
        self._with_estimates = Covariances(Kernel(knobs, ESTIMATED, ratios), self._points)
        self._without = Covariances(Kernel(knobs, PROPORTIONAL, ratios), self._points)
        self.tried = TriedSizes(plans, memory_bytes)
        changed = (self._points.values != self._points.values[:1]).sum(axis=1)
        self._single_changes = [int(place) for place in np.flatnonzero(changed == 1)]
        self._static_bytes = 0.0
        self._expected: dict[int, int] = {}
        self._errors: list[float] = []  # log of measured over estimated peak

    def tell(self, place: int, outcome: Outcome) -> None:
        """Learns the outcome of a plan."""
        self.tried.tell(place, outcome)
        self.forget()
        expected, measurement = self._expected.pop(place, None), outcome.measurement
        if expected is not None and measurement is not None:
            self._errors.append(math.log(measurement.memory.judged_bytes / expected))

    def forget(self) -> None:
        """Drops the posterior, because an estimate has changed."""
        vars(self).pop("_posterior", None)

    def expect(self, place: int) -> None:
        """Keeps the estimate of a plan that is about to run, to learn the error of such estimates."""
        estimate = self._with_bounds(place)
        if estimate is not None and not _narrow(estimate):
            self._expected[place] = _original_bytes(estimate)

    def probability(self, place: int) -> float:
        """Returns the probability that a plan fits."""
        estimate, limit = self._estimate_of(self._plans[place]), self._memory_bytes
        if estimate is not None and is_two_sided(estimate):
            return self.bounded_probability(estimate)
        if estimate is not None and not estimate.worst_case and (estimate.lower_bytes or 0) > limit:
            return 0.0
        below_refused = self.tried.max_probability_below_refused(place)
        if self.tried.upper_bound_bytes(place) <= limit:
            return below_refused
        by_line = self.tried.line_probability(place)
        fits = float(self._by_posterior(np.array([place]))[0]) if by_line is None else by_line
        return min(fits, below_refused, self.tried.max_probability_at_size(place))

    def expected_bytes(self, place: int) -> int | None:
        """Returns the peak that is expected of a plan, by theory and by the plans that ran; None if none did."""
        if not any(outcome.measurement for outcome in self.tried.outcomes.values()):
            return None
        return round(float(self._static_of(place)) + math.exp(float(self._posterior.mean[place])))

    def probabilities(self, places: NDArray[np.int64]) -> Array:
        """Returns the probability that each of some plans fits, by the plans that share a part with it.

        None of their combinations was tried or has an estimate with a bound.
        """
        sizes = self._size_places[places]
        each, first = np.unique(sizes, return_index=True)
        most = np.ones(len(self._sizes))
        most[each] = [self.tried.max_probability_at_size(int(place)) for place in places[first]]
        return np.minimum(self._by_posterior(places), most[sizes])

    def bounded_probability(self, estimate: Estimate) -> float:
        """Returns the probability that a peak with these bounds fits; they are taken as two standard deviations.

        Wide bounds are corrected by the observed error of such estimates, which is the more certain the more of them
        ran. Where the bound of another estimator has moved the value, the correction applies to the original value.
        """
        limit = self._memory_bytes
        lower, upper = estimate.lower_bytes or 0, estimate.upper_bytes or 0
        mean = math.log(max(estimate.value_bytes, 1))
        deviation = max(math.log(upper / max(lower, 1)) / 4, MIN_DEVIATION)
        if self._errors and not _narrow(estimate):
            shift = median(self._errors)
            original = max(min(_original_bytes(estimate), estimate.value_bytes), 1)
            mean = max(math.log(original) + shift, math.log(max(lower, 1)))
            spread = 1.5 * median(abs(error - shift) for error in self._errors)
            deviation = max(spread, NOISE / math.sqrt(len(self._errors)), MIN_DEVIATION)
        elif upper <= limit or lower > limit:
            return float(upper <= limit)
        return below((math.log(limit) - mean) / deviation)

    def _by_posterior(self, places: NDArray[np.int64]) -> Array:
        """Returns the probability that plans fit by the posterior of their growing bytes alone."""
        belief = self._posterior
        room = np.log(np.maximum(self._memory_bytes - self._static_of(places), 1.0))
        return np.asarray(_BELOW((room - belief.mean[places]) / belief.deviation[places]), dtype=np.float64)

    def _with_bounds(self, place: int) -> Estimate | None:
        estimate = self._estimate_of(self._plans[place])
        return estimate if estimate is not None and is_two_sided(estimate) else None

    @cached_property
    def _posterior(self) -> Belief:
        """Posterior of the log of the growing bytes of every plan, valid until something is learned."""
        baseline = self.baseline_peaks()
        measured = [
            (o.measurement.memory.static_bytes or 0) + self.freed_bytes[place]
            for place, o in self.tried.outcomes.items() if o.measurement is not None
        ]  # fmt: skip
        self._static_bytes = 0.98 * min(measured, default=0.0)
        if baseline is None:
            model, level = self._without, PROPORTIONAL_LEVEL
            grows = POWER * self._points.octaves * math.log(2)
        else:
            model, level = self._with_estimates, ESTIMATED_LEVEL
            grows = np.array([self._log(baseline[int(size)]) for size in self._sizes])[self._size_places]
        grows = grows + self._changes
        observed = self._observed(baseline is not None)
        if not observed:
            return Belief(grows, np.sqrt(model.variances + level**2))
        if baseline is None:
            grows = grows + float(np.mean([log - grows[place] for place, (log, _) in observed.items()]))
        belief = self._fitted(model, level, grows, observed)
        refused = self._refused(observed, belief)
        return self._fitted(model, level, grows, observed | refused) if refused else belief

    def _observed(self, baseline_is_estimated: bool) -> dict[int, tuple[float, float]]:
        """Returns the log of the growing bytes and its standard deviation, of each plan where they are known."""
        observed, tried = dict[int, tuple[float, float]](), self.tried.outcomes
        # An estimate of a single change informs all plans with that change.
        untried = [place for place in self._single_changes if place not in tried] if baseline_is_estimated else []
        for place in (*tried, *untried):
            outcome = tried.get(place)
            if outcome is not None and outcome.measurement is not None:
                log = self._log(outcome.measurement.memory.judged_bytes, place)
                known = baseline_is_estimated and self.tried.combination(place) == self.tried.combination(0)
                fixed = not known and self.tried.peak_may_be_fixed(place)
                observed[place] = (log - FIXED_PEAK_LOG, FIXED_PEAK_LOG) if fixed else (log, NOISE)
            elif (outcome is None or not outcome.status.does_not_fit) and (estimate := self._with_bounds(place)):
                observed[place] = (self._log(estimate.value_bytes, place), NOISE)
        return observed

    def _refused(self, observed: dict[int, tuple[float, float]], belief: Belief) -> dict[int, tuple[float, float]]:
        """Returns observations for the plans that were refused though they were expected to fit."""
        found = {}
        for place, outcome in self.tried.outcomes.items():
            if place in observed or not was_refused(outcome):
                continue
            least = math.log(max(OVER * self._memory_bytes - float(self._static_of(place)), 1.0))
            if (short := least - float(belief.mean[place])) > 0:
                found[place] = (least, max(ONE_SIDED, SURPRISE * short if outcome.status.does_not_fit else 0.0))
        return found

    def _fitted(
        self, model: Covariances, level: float, expected: Array, observed: dict[int, tuple[float, float]]
    ) -> Belief:
        places = sorted(observed)
        values = np.array([observed[place][0] for place in places]) - expected[places]
        noise = np.array([observed[place][1] for place in places])
        believed = Surrogate(model, places, noise, level).believe(values[:, None])
        return Belief(believed.mean[:, 0] + expected, believed.deviation)

    def baseline_peaks(self) -> dict[int, int] | None:
        """Returns the peaks of the baseline's combination by size, where all of them are estimated with bounds."""
        found: dict[int, int] = {}
        for place in np.flatnonzero(self._points.combinations == self._points.combinations[0]):
            estimate = self._with_bounds(int(place))
            if estimate is None:
                return None
            found[self._plans[int(place)].micro_batch_size] = estimate.value_bytes
        return found

    def _log(self, peak: float, place: int = 0) -> float:
        """Returns the log of what a peak holds beyond the static memory of a plan, the baseline by default."""
        static = float(self._static_of(place))
        return math.log(max(peak - static, MIN_GROWING_RATIO * static, 1.0))

    def _static_of(self, places: int | NDArray[np.int64]) -> Array:
        """Returns the static memory of plans, given by their places."""
        return np.maximum(self._static_bytes - self.freed_bytes[places], 0.0)


def is_two_sided(estimate: Estimate) -> bool:
    """Returns whether an estimate has a lower and an upper bound, and is not a worst case."""
    return estimate.lower_bytes is not None and estimate.upper_bytes is not None and not estimate.worst_case


def _original_bytes(estimate: Estimate) -> int:
    """Returns the value before the bounds of another estimator moved it."""
    return max(estimate.value_bytes if estimate.said_bytes is None else estimate.said_bytes, 1)


def _narrow(estimate: Estimate) -> bool:
    """Returns whether the bounds are so narrow that the error of the estimate needs no correction."""
    return (estimate.upper_bytes or 0) <= NARROW_RATIO * (estimate.lower_bytes or 0)
