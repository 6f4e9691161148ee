"""Feasibility: whether a plan fits into the memory budget."""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import zip_longest
from statistics import median
from time import monotonic

import numpy as np
from numpy.typing import NDArray

from autofit.core.estimate import Estimate
from autofit.core.knob import Knob
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.core.trial import Purpose, Trial
from autofit.core.units import format_bytes
from autofit.estimators.base import Estimator
from autofit.feasibility.peak_model import PeakModel, is_two_sided
from autofit.feasibility.plan_features import Array, PlanList, expected_of

SCARCE_RATIO = 0.5
"""Memory is not scarce if the baseline's combination needs less than this share of the budget at every size."""


def plans_to_estimate(space: SearchSpace, estimate: Callable[[Plan], Estimate | None], memory_bytes: int) -> list[Plan]:
    """Returns the plans to estimate before any plan runs, the most informative first.

    These are the baseline's combination around the size at which it ceases to fit, and each single change of it at the
    smallest micro batch that is not expected to fit with the change. At smaller sizes, the static memory and the
    optimizer update make the peak, and a change that saves activations has no effect there. The effect of a change at
    this size carries over to other sizes and to combinations with other changes (`autofit.feasibility.peak_model`).
    There are none where the baseline's combination has no estimate at some size.
    """
    baseline = [space.at(space.baseline.combination, size) for size in space.sizes]
    peaks = {plan.micro_batch_size: e.value_bytes for plan in baseline if (e := estimate(plan)) is not None}
    if len(peaks) < max(len(baseline), 2) or max(peaks.values()) <= SCARCE_RATIO * memory_bytes:
        return []
    low, high = sorted(peaks)[-2:]
    slope = (peaks[high] - peaks[low]) / (high - low)
    fixed = max(peaks[high] - slope * high, 0.0)

    def changed(knob: Knob) -> Iterator[Plan]:
        """Yields the baseline with each other value of a knob, at the smallest size that is too large with it."""
        for value, growth in reversed(list(zip(knob.values, knob.growth or (1.0,) * len(knob.values), strict=True))):
            too_large = (size for size in space.sizes if fixed + growth * (peaks[size] - fixed) > memory_bytes)
            if (plan := space.baseline.replace(**{knob.name: value})) != space.baseline:
                yield space.at(plan.combination, min(too_large, default=high))

    turns = zip_longest(*map(changed, space.facts.knobs))
    plans = [plan for turn in turns for plan in turn if plan is not None and space.violation(plan) is None]
    over = [plan for plan in baseline if peaks[plan.micro_batch_size] > memory_bytes]
    within = [plan for plan in baseline if peaks[plan.micro_batch_size] <= memory_bytes]
    return [*within[-1:], *over[:1], *plans]


SAFE_RATIO = 0.5
"""A plan whose peak is guessed below this share of the budget is not looked at more closely."""
LOOSE_RATIO = 0.95
"""A lower bound below this share of the value is loose: it is borrowed, or drawn through one size."""
GUESS_RATIO = 1.5
"""Under `cautious`, a loose estimate refuses a plan only above this multiple of the budget."""
LIKELY, CAREFUL = 0.85, 0.9
"""Probability of fitting that a plan needs to be run; the second where the search is careful."""
UNKNOWN = 0.5
"""Probability of fitting for a plan that is neither modelled nor estimated with bounds."""
FREE_RATIO, CAUTIOUS_RATIO = 0.85, 0.5
"""Share of the budget that a combination which never ran may fill without an estimate; the second where exceeding the
budget harms the machine."""
AMPLE_RATIO = 0.1
"""Share of the budget below which the same guess is as good as sure: its error would have to be tenfold."""
SURE = 0.999
"""Probability of fitting for a size whose peak, in proportion to a smaller size that ran, is inside the budget."""


class Feasibility:
    """Answers whether plans fit. Screening and searchers ask the same object.

    Made once per search, in the process that runs the loop. The loop tells it every trial before it tells the
    searcher. Answers change only after `tell`, `begin` and `look`. `begin` and `look` may take seconds, and everything
    else is cheap.

    Args:
        estimators: estimate memory, the one with the most trusted value first.
        cautious: whether exceeding the budget harms the machine, and not only the trial.
        hurried: whether time is limited: the baseline then first runs without an estimate, because it is an answer.
        light: whether other plans also run without an estimate where that would cost more than it saves.
        now: returns the time in seconds, by which the duration of estimates is measured.

    Attributes:
        looked_at: latest estimate of each plan that was looked at, by the plan's key.
    """

    def __init__(
        self,
        space: SearchSpace,
        memory_bytes: int,
        estimators: Sequence[Estimator] = (),
        cautious: bool = False,
        hurried: bool = False,
        light: bool = False,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._space, self._memory_bytes, self._cautious = space, memory_bytes, cautious
        self.hurried, self.light = hurried, light
        self._begun, self._now = False, now
        self._looks_s: list[float] = []
        self._estimators = estimators
        self._estimates: dict[str, Estimate | None] = {}  # valid until an estimator learns more
        self._trials: dict[str, Trial] = {}
        self._survey_is_due = False
        self._current: set[str] = set()  # plans that were looked at since the last trial
        self._probabilities: dict[str, float] = {}  # valid until something is learned
        self.looked_at: dict[str, Estimate] = {}

    @cached_property
    def plans(self) -> PlanList:
        """The plans of the space, as the models of memory and throughput see them."""
        return PlanList(self._space)

    @cached_property
    def _model(self) -> PeakModel:
        return PeakModel(self.plans, self._space.facts.knobs, self._memory_bytes, self.estimate)

    def tell(self, trial: Trial) -> None:
        """Learns from a trial. The peak model ignores blocks of a race and interrupted trials."""
        self._teach(lambda each: each.tell(trial))
        self._current.clear()
        if trial.purpose is Purpose.BLOCK or trial.outcome.status is Status.INTERRUPTED:
            return
        self._trials[trial.plan.key] = trial
        if (place := self.plans.place(trial.plan)) is not None:
            self._model.tell(place, trial.outcome)

    def begin(self) -> None:
        """Has the baseline's combination estimated at all sizes, when first called.

        That is before a search or, with `light`, at the first look.

        Raises:
            DevicePoisoned: the device was in an error state when its memory was to be estimated.
        """
        if self._begun:
            return
        self._begun, space = True, self._space
        self._refine(space.baseline, [space.at(space.baseline.combination, size) for size in space.sizes])
        self._survey_is_due = True

    @property
    def look_s(self) -> float:
        """Seconds that estimating a plan takes: the median so far; before the first as many as a run of a plan takes.

        On an H100, traces of two models took 4 to 17 s, and probes 3 to 16 s. 0 where time is not limited.
        """
        took_s = self._looks_s or [trial.outcome.duration_s for trial in self._trials.values()]
        return median(took_s) if self.light and took_s else 0.0

    def look(self, plan: Plan, alone: bool = False, at_stake_s: float | None = None) -> None:
        """Has a plan estimated more closely, unless its memory is known well enough or nothing was learned since.

        It is known well enough if the plan surely has room to spare, or has close bounds on one side of the budget, or
        if the run that might be lost costs less than the estimate.

        Args:
            plan: a plan that is about to be screened.
            alone: whether only this plan is estimated. Otherwise the first look of a search also estimates the plans
                that are most informative about the others, see `plans_to_estimate`.
            at_stake_s: seconds that the plan's run is expected to take, which are lost if it does not fit; None if
                unknown.

        Raises:
            DevicePoisoned: the device was in an error state when its memory was to be estimated.
        """
        if self._is_light(plan) or self._costs_less_to_run(plan, at_stake_s):
            return
        if self.light:
            self.begin()
        if self._survey_is_due and not alone and not self.light:
            self._survey_is_due = False
            plans = plans_to_estimate(self._space, self.estimate, self._memory_bytes)
            self._teach(lambda each: each.refine_all(plans))
        if plan.key in self._current:
            return
        known, limit = self.estimate(plan), self._memory_bytes
        if (
            known is None
            or (known.lower_bytes or 0) <= limit < (known.upper_bytes or 0)
            or (_is_rough(known) and known.value_bytes > SAFE_RATIO * limit)
        ):
            self._refine(plan)
        self._current.add(plan.key)
        if (estimate := self.estimate(plan)) is not None:
            self.looked_at[plan.key] = estimate.model_copy(update={"said_bytes": None})  # internal to this package
        if (place := self.plans.place(plan)) is not None:
            self._model.expect(place)

    def _costs_less_to_run(self, plan: Plan, at_stake_s: float | None) -> bool:
        """Returns whether a plan is likely to fit, and losing its run costs less, on average, than an estimate."""
        if not self.light or self._cautious or at_stake_s is None or not self.is_likely(plan):
            return False
        return (1 - self.probability(plan)) * at_stake_s < self.look_s

    def _is_light(self, plan: Plan) -> bool:
        """Returns whether a plan runs without an estimate: the baseline at first, and what most likely has room."""
        if self.hurried and plan == self._space.baseline and plan.key not in self._trials:
            return True
        place = self.plans.place(plan) if self.light else None
        return place is not None and bool(self._room[place] >= self.required_probability)

    @cached_property
    def _room(self) -> Array:
        """Probability that each plan has room by the plans that ran, [plans]; 0 where they do not tell."""
        # A peak grows at most in proportion to the micro batch. So a combination that ran surely has room at a size
        # whose proportional peak is inside the budget. Another combination most likely has, if its proportional peak,
        # with the growth that its knobs expect, leaves some of the budget.
        limit, plans, tried = self._memory_bytes, self.plans, list[tuple[int, Outcome]]()
        for trial in self._trials.values():
            if (place := plans.place(trial.plan)) is not None:
                tried.append((place, trial.outcome))
        room, combinations = np.zeros(len(plans.sizes)), plans.points.combinations
        for place, outcome in tried:
            if outcome.measurement is not None:
                times = plans.sizes / plans.sizes[place] * np.exp(self._log_growth - self._log_growth[place])
                most = np.maximum(times, 1.0) * outcome.measurement.memory.judged_bytes
                likely = most < (CAUTIOUS_RATIO if self._cautious else FREE_RATIO) * limit
                other = np.where(most < AMPLE_RATIO * limit, SURE, np.where(likely, LIKELY, 0.0))
                same = np.where(most < limit, SURE, 0.0)
                room = np.maximum(room, np.where(combinations == combinations[place], same, other))
        for place, outcome in tried:
            if outcome.status.does_not_fit:
                room[(combinations == combinations[place]) & (plans.sizes >= plans.sizes[place])] = 0.0
        return room

    @cached_property
    def _log_growth(self) -> Array:
        return expected_of(self._space.facts.knobs, self.plans.points, "growth")[0]

    def estimate(self, plan: Plan) -> Estimate | None:
        """Returns what all estimators say together; None where no estimator has an estimate."""
        if plan.key not in self._estimates:
            self._estimates[plan.key] = self._combined(plan)
        return self._estimates[plan.key]

    def _combined(self, plan: Plan) -> Estimate | None:
        """Returns the tightest bounds of all estimates, and the first value that comes with a bound."""
        estimates = [e for estimator in self._estimators if (e := estimator.estimate(plan)) is not None]
        if len(estimates) < 2:
            return estimates[0] if estimates else None
        first = next((e for e in estimates if e.is_bounded and not e.worst_case), estimates[0])
        lower = max((e.lower_bytes for e in estimates if e.lower_bytes is not None), default=None)
        upper = min((e.upper_bytes for e in estimates if e.upper_bytes is not None), default=None)
        value = first.value_bytes if upper is None else min(first.value_bytes, upper)
        value = value if lower is None else max(value, lower)
        moved = first.value_bytes if value != first.value_bytes else None
        if (value, lower, upper) == (first.value_bytes, first.lower_bytes, first.upper_bytes):
            return first
        bounds = {"value_bytes": value, "lower_bytes": lower, "upper_bytes": upper}
        return first.model_copy(update=bounds | {"said_bytes": moved})

    def probability(self, plan: Plan) -> float:
        """Returns the probability that a plan fits."""
        if plan.key not in self._probabilities:
            self._probabilities[plan.key] = self._probability(plan)
        return self._probabilities[plan.key]

    def probabilities(self, places: NDArray[np.int64]) -> Array:
        """Returns the probability that each of some plans fits; they are given by their places in `plans`."""
        found, modelled = np.empty(len(places)), self.only_modelled(places)
        if modelled.any():
            found[modelled] = self._model.probabilities(places[modelled])
        found[~modelled] = [self.probability(self.plans.plans[place]) for place in places[~modelled]]
        return np.maximum(found, self._room[places]) if self.light else found

    def only_modelled(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns which plans have a combination that was neither tried nor has an estimate with a bound.

        The probability that they fit follows from the plans that share a part with them, for all at once.
        """
        return ~self._known_combinations[self.plans.points.combinations[places]]

    @cached_property
    def _known_combinations(self) -> NDArray[np.bool_]:
        """Which combinations were tried or may have an estimate with a bound, [combinations]."""
        bounded = [estimator.bounded() for estimator in self._estimators]  # None: any combination
        known = np.full(self.plans.combinations, None in bounded)
        keys = {trial.plan.combination.key for trial in self._trials.values()}.union(*(each or () for each in bounded))
        numbers = (self.plans.number(Plan(values=json.loads(key))) for key in keys)
        known[[number for number in numbers if number is not None]] = True
        return known

    @property
    def required_probability(self) -> float:
        """Probability of fitting that a plan needs to be run. Each plan that did not fit halves the accepted risk."""
        refused = sum(outcome.status.does_not_fit for outcome in self._model.tried.outcomes.values())
        risk = 1 - (CAREFUL if self.is_careful else LIKELY)
        return 1 - risk * 0.5**refused

    def is_likely(self, plan: Plan) -> bool:
        """Returns whether a plan is likely enough to fit to be run."""
        return self.probability(plan) >= self.required_probability

    @property
    def some_are_likely(self) -> bool:
        """Whether any plan that may be recommended is likely enough to fit."""
        places = np.flatnonzero(~self.plans.barred())
        return bool((self.probabilities(places) >= self.required_probability).any())

    def is_estimated(self, plan: Plan) -> bool:
        """Returns whether a plan has an estimate with bounds, so that the peaks of other plans add nothing."""
        estimate = self.estimate(plan)
        return estimate is not None and is_two_sided(estimate)

    @cached_property
    def baseline_is_estimated(self) -> bool:
        """Whether the baseline's combination is estimated at every size. Then any plan can be, before it runs."""
        return self._model.baseline_peaks() is not None

    @property
    def is_careful(self) -> bool:
        """Whether a plan that does not fit harms the machine, and plans cannot be estimated before they run."""
        return self._cautious and not self.baseline_is_estimated

    def has_refused_value(self, plan: Plan) -> bool:
        """Returns whether a plan has a value that was refused and never ran, once many plans ran out of memory."""
        place = self.plans.place(plan)
        return place is not None and self._model.tried.has_refused_value(place)

    def refused_size(self, plan: Plan) -> int | None:
        """Returns the smallest size below the plan's at which its combination did not fit, or None."""
        refused = (t.plan for t in self._trials.values() if t.outcome.status.does_not_fit)
        sizes = [other.micro_batch_size for other in refused if other.combination == plan.combination]
        return min((size for size in sizes if size < plan.micro_batch_size), default=None)

    def refusal(self, plan: Plan) -> str | None:
        """Returns why a plan is not run because of its memory, or None.

        A plan is refused if its lower bound is above the budget. Under `cautious`, it is also refused if a smaller size
        of its combination did not fit, or if its estimate is above the budget and the observed error of such estimates
        does not make it likely to fit.
        """
        if self._cautious and (size := self.refused_size(plan)) is not None:
            return f"the same combination did not fit at micro batch {size}"
        estimate = self.estimate(plan)
        if estimate is None:
            return None
        limit = self._memory_bytes
        against = f"the budget of {format_bytes(limit)} ({estimate.basis})"
        if estimate.lower_bytes is not None and estimate.lower_bytes > limit:
            return f"needs at least {format_bytes(estimate.lower_bytes)}, above {against}"
        is_loose = _is_rough(estimate) and estimate.upper_bytes is None
        allowed = limit * (GUESS_RATIO if is_loose else 1)
        needed = estimate.value_bytes if estimate.is_bounded else self._guessed_bytes(plan, estimate)
        above = not estimate.worst_case and needed > allowed
        if self._cautious and above and not (self.is_estimated(plan) and self.is_likely(plan)):
            how = "estimated" if estimate.is_bounded else "guessed"
            return f"is {how} to need {format_bytes(needed)}, above {against}"
        return None

    def _guessed_bytes(self, plan: Plan, estimate: Estimate) -> int:
        """Returns the guessed peak of a plan, less the static memory that its changes are expected to free."""
        # The estimate is the peak of a similar plan as it is. While nothing has fitted, what the changes are expected
        # to save of the growing part counts too: otherwise the plans that may fit would all be refused.
        if (place := self.plans.place(plan)) is None:
            return estimate.value_bytes
        guessed = estimate.value_bytes - int(self._model.freed_bytes[place])
        if any(trial.outcome.measured for trial in self._trials.values()):
            return guessed
        return min(guessed, self._model.expected_bytes(place) or guessed)

    def _probability(self, plan: Plan) -> float:
        if (place := self.plans.place(plan)) is not None:
            return max(self._model.probability(place), float(self._room[place]) if self.light else 0.0)
        estimate = self.estimate(plan)  # of a plan beyond those that are modelled
        return UNKNOWN if estimate is None or not is_two_sided(estimate) else self._model.bounded_probability(estimate)

    def _refine(self, plan: Plan, along: Sequence[Plan] = ()) -> None:
        began_s = self._now()
        try:
            self._teach(lambda each: each.refine(plan, along))
        finally:
            self._looks_s.append(self._now() - began_s)

    def _teach(self, teach: Callable[[Estimator], None]) -> None:
        """Calls `teach` with each estimator, and drops what was derived from the estimates."""
        try:
            for estimator in self._estimators:
                teach(estimator)
        finally:
            self._estimates.clear()
            self._probabilities.clear()
            for derived in ("baseline_is_estimated", "_known_combinations", "_room"):
                vars(self).pop(derived, None)
            self._model.forget()


def _is_rough(estimate: Estimate) -> bool:
    """Returns whether an estimate has no close lower bound."""
    return estimate.lower_bytes is None or estimate.lower_bytes < LOOSE_RATIO * estimate.value_bytes
