"""Exclusions: plans that are not run, such as those whose values failed at any size in another plan.

If a failure has several possible causes, plans with one of them may still run, but with a lower probability. So the
next plan that is tried separates the causes, instead of failing for the same one. The micro batch is such a cause if
the user's code failed: a model may admit only the sizes that the user makes.

Omissions: why the guided search measured no plan of a combination.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from autofit.core.answer import Ratio
from autofit.core.knob import Knob
from autofit.core.outcome import LAST_BATCH, Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import Basis, Omission
from autofit.core.statistics import DEVIATIONS_95
from autofit.core.units import format_bytes, format_duration
from autofit.feasibility import Feasibility
from autofit.feasibility.plan_features import Array, Points
from autofit.feasibility.surrogate import Belief

MAX_AT_FAULT = 3
"""Maximum number of values that are held responsible for all failures together. If more are needed, none is."""
_SIZE = -1
"""Index of the micro batch among the knobs, as octaves from the baseline's."""
_Suspect = tuple[int, float, float]
"""A knob and the range of its values, as indices, that may be at fault."""


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Plans that share values because of which none of them is run.

    Attributes:
        mask: which plans they are, [plans].
        reason: the shared values, and how the plan failed or why it cannot pay.
        basis: what the reason rests on.
    """

    mask: NDArray[np.bool_]
    reason: str
    basis: Basis = Basis.MEASURED


def exclusions(
    knobs: Sequence[Knob], points: Points, outcomes: Mapping[int, Outcome], alive: Collection[int]
) -> list[Exclusion]:
    """Returns an exclusion for each plan whose failure is not about memory.

    The possible causes are the changed values that no plan that ran has, and the micro batch if the user's code failed.
    If there are several, one of them may be harmless, so only plans that have all of them are excluded. `points` has
    all plans, the baseline first; `alive` are the places of those that ran.
    """
    found = []
    for place, suspects in _suspects(points, outcomes, alive).items():
        mask = points.combinations == points.combinations[place]
        if suspects:
            mask = np.all([_has(points, each) for each in suspects], axis=0)
        row = points.values[place]
        shared = suspects or [(knob, float(row[knob]), float(row[knob])) for knob in range(len(knobs))]
        words, outcome = " ".join(_named(knobs, each) for each in shared), outcomes[place]
        found.append(Exclusion(np.asarray(mask), f"{words} failed: {outcome.status.value}, {outcome.reason}"))
    return found


def chances_to_run(points: Points, outcomes: Mapping[int, Outcome], alive: Collection[int]) -> Array:
    """Returns the probability that each plan does not fail for a reason other than memory, [plans].

    The failures are explained by as few values as possible. If several such sets of values explain them, each is
    equally likely, and a plan fails if it has a value of the set. Plans are assumed to run unless they share a value
    with a failure. The arguments are those of `exclusions`.
    """
    chances, failures = np.ones(len(points.combinations)), set[frozenset[_Suspect]]()
    by_place = _suspects(points, outcomes, alive)
    sizes = {each for suspects in by_place.values() for each in suspects if each[0] == _SIZE}
    for place, suspects in by_place.items():
        # The range of another failure may explain that of this one, too.
        ranges = sizes if any(each in sizes for each in suspects) else ()
        if suspects:
            failures.add(frozenset([*suspects, *(each for each in ranges if _has(points, each, [place]).all())]))
    suspected, explanations = sorted(set[_Suspect]().union(*failures)), list[tuple[_Suspect, ...]]()
    for count in range(1, MAX_AT_FAULT + 1):  # the fewest that suffice
        explanations = explanations or [
            each for each in combinations(suspected, count) if all(failure & set(each) for failure in failures)
        ]
    for explanation in explanations:
        chances -= np.any([_has(points, each) for each in explanation], axis=0) / len(explanations)
    return np.maximum(chances, 0.0)


def _suspects(points: Points, outcomes: Mapping[int, Outcome], alive: Collection[int]) -> dict[int, Sequence[_Suspect]]:
    """Returns for each plan whose failure is not about memory what may be its cause."""
    values, found = points.values, dict[int, Sequence[_Suspect]]()
    for place in sorted(place for place, outcome in outcomes.items() if outcome.status.at_any_size):
        row = values[place]
        changed = [(int(knob), float(row[knob]), float(row[knob])) for knob in np.flatnonzero(row != values[0])]
        sizes = _sizes_at_fault(points, place, outcomes[place], alive)
        found[place] = [each for each in (*changed, *sizes) if not _has(points, each, list(alive)).any()]
    return found


def _sizes_at_fault(points: Points, place: int, outcome: Outcome, alive: Collection[int]) -> Sequence[_Suspect]:
    """Returns the sizes that may be the cause of a failure: none, that of its plan, or from there on."""
    # A code that runs at the user's size and fails at another is taken to fail farther from the user's size, too, until
    # a plan runs there. An incomplete last batch of an epoch says nothing of other sizes.
    size = float(points.octaves[place])
    if not outcome.status.of_users_code or not size:
        return []
    beyond = (_SIZE, size, math.inf) if size > 0 else (_SIZE, -math.inf, size)
    works = outcome.phase != LAST_BATCH and _has(points, (_SIZE, 0.0, 0.0), list(alive)).any()
    return [beyond if works and not _has(points, beyond, list(alive)).any() else (_SIZE, size, size)]


def _has(points: Points, suspect: _Suspect, places: Sequence[int] | slice = slice(None)) -> NDArray[np.bool_]:
    """Returns which of the plans at some places have a value that may be at fault."""
    knob, low, high = suspect
    column = (points.octaves if knob == _SIZE else points.values[:, knob])[places]
    return np.asarray((column >= low) & (column <= high))


def _named(knobs: Sequence[Knob], suspect: _Suspect) -> str:
    knob, low, high = suspect
    if knob != _SIZE:
        return f"{knobs[knob].name}={knobs[knob].values[int(low)]}"
    beyond = "" if low == high else " or less" if math.isinf(low) else " or more"
    return f"{2 ** (high if math.isinf(low) else low):g} times the baseline's micro batch{beyond}"


MAX_EXPLAINED = 100
"""Maximum number of combinations explained, the fastest expected first: a note on a study may hold 64 KiB."""


@dataclass(frozen=True, slots=True)
class Omissions:
    """What the search knows about its space at its end, and why combinations were not measured.

    Attributes:
        feasibility: answers whether a plan fits.
        memory_bytes: the budget.
        outcomes: outcomes of the plans that were tried, by place.
        exclusions: plans that are not run whatever their speed.
        belief: posterior of the log throughput of each plan.
        fastest: log throughput of the fastest plan that ran.
        warm_ups_s: expected seconds of the warm-up of each plan, [plans].
    """

    feasibility: Feasibility
    memory_bytes: int
    outcomes: Mapping[int, Outcome]
    exclusions: Sequence[Exclusion]
    belief: Belief
    fastest: float
    warm_ups_s: Array

    def found(self) -> list[Omission]:
        """Returns for each combination without a measurement why it has none, the fastest expected first."""
        of_plans = self.feasibility.plans.points.combinations
        measured = [of_plans[place] for place, outcome in self.outcomes.items() if outcome.measured]
        order = np.argsort(-self.belief.mean, kind="stable")
        numbers = of_plans[order]
        without, first = np.unique(numbers[~np.isin(numbers, measured)], return_index=True)
        fastest = without[np.argsort(first)][:MAX_EXPLAINED]
        return [self._omission(order[numbers == number].tolist()) for number in fastest]

    def _omission(self, places: Sequence[int]) -> Omission:
        """Returns why none of a combination's plans ran; `places` begins with the fastest expected."""
        plans = self.feasibility.plans.plans
        tried = [place for place in places if place in self.outcomes]
        if tried:
            outcome = self.outcomes[tried[-1]]
            basis = Basis.ESTIMATED if outcome.status is Status.SKIPPED else Basis.MEASURED
            return Omission(plan=plans[tried[-1]], basis=basis, reason=f"{outcome.status.value}: {outcome.reason}")
        excluded = next((each for each in self.exclusions if each.mask[places].all()), None)
        if excluded is not None:
            return Omission(plan=plans[places[0]], basis=excluded.basis, reason=excluded.reason)
        fitting = next((place for place in places if self.feasibility.is_likely(plans[place])), None)
        if fitting is not None:
            return Omission(plan=plans[fitting], basis=Basis.ASSUMED, reason=self._too_slow(fitting))
        return self._too_large(max((plans[place] for place in places), key=self.feasibility.probability))

    def _too_slow(self, place: int) -> str:
        mean, deviation = (float(each[place]) for each in (self.belief.mean, self.belief.deviation))
        ratio, low, high = (math.exp(mean - self.fastest + z * DEVIATIONS_95 * deviation) for z in (0, -1, 1))
        expected = Ratio(value=ratio, low=low, high=high)
        reason = f"expected at {expected} of the fastest, by plans that share a part with it"
        if seconds := float(self.warm_ups_s[place]):
            reason += f"; its warm-up takes about {format_duration(seconds)}, in the search and again in the training"
        return reason

    def _too_large(self, plan: Plan) -> Omission:
        """Returns that a plan, which of its combination is the most likely to fit, is not likely enough."""
        estimate = self.feasibility.estimate(plan)
        if estimate is not None and (estimate.lower_bytes or 0) > self.memory_bytes:
            least, limit = format_bytes(estimate.lower_bytes or 0), format_bytes(self.memory_bytes)
            reason = f"needs at least {least}, above the budget of {limit} ({estimate.basis})"
            return Omission(plan=plan, basis=Basis.ESTIMATED, reason=reason)
        probability = self.feasibility.probability(plan)
        reason = f"fits with a probability of {probability:.0%}, by the peaks of plans that share a part with it"
        return Omission(plan=plan, basis=Basis.ASSUMED, reason=reason)
