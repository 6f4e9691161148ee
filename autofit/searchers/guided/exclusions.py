"""Exclusions: plans that are not run, such as those whose values failed at any size in another plan.

If a failure has several possible causes, plans with one of them may still run, but with a lower probability. So the
next plan that is tried separates the causes, instead of failing for the same one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from autofit.core.knob import Knob
from autofit.core.omission import Basis
from autofit.core.outcome import Outcome
from autofit.feasibility.plan_features import Array, Points

MAX_AT_FAULT = 3
"""Maximum number of values that are held responsible for all failures together. If more are needed, none is."""


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
    """Returns an exclusion for each plan whose failure does not depend on the size.

    The possible causes are the changed values that no plan that ran has. If there are several, one of them may be
    harmless, so only plans that have all of them are excluded.

    Args:
        knobs: knobs of the space.
        points: plans of the space, the baseline first.
        outcomes: outcomes of the plans that were tried, by place.
        alive: places of the plans that ran.
    """
    values = points.values
    found = []
    for place, causes in _causes(points, outcomes, alive).items():
        mask = points.combinations == points.combinations[place]
        if causes:
            mask = (values[:, causes] == values[place, causes]).all(axis=1)
        shared = causes or range(len(knobs))
        words = " ".join(f"{knobs[knob].name}={knobs[knob].values[values[place, knob]]}" for knob in shared)
        outcome = outcomes[place]
        found.append(Exclusion(np.asarray(mask), f"{words} failed: {outcome.status.value}, {outcome.reason}"))
    return found


def chances_to_run(points: Points, outcomes: Mapping[int, Outcome], alive: Collection[int]) -> Array:
    """Returns the probability that each plan does not fail at every size, [plans].

    The failures are explained by as few values as possible. If several such sets of values explain them, each is
    equally likely, and a plan fails if it has a value of the set. Plans are assumed to run unless they share a value
    with a failure.

    Args:
        points: plans of the space, the baseline first.
        outcomes: outcomes of the plans that were tried, by place.
        alive: places of the plans that ran.
    """
    values, chances = points.values, np.ones(len(points.combinations))
    causes = _causes(points, outcomes, alive)
    failures = {
        frozenset((knob, int(values[place, knob])) for knob in knobs) for place, knobs in causes.items() if knobs
    }
    for explanation in (explanations := _explanations(failures)):
        has = np.zeros(len(chances), dtype=np.bool_)
        for knob, value in explanation:
            has |= values[:, knob] == value
        chances -= has / len(explanations)
    return np.maximum(chances, 0.0)


def _explanations(failures: Collection[frozenset[tuple[int, int]]]) -> list[tuple[tuple[int, int], ...]]:
    """Returns the smallest sets of values of which each failure has one; empty if they are too large.

    Args:
        failures: the possible causes of each failure, as knobs with the index of their value.
    """
    suspects = sorted(set[tuple[int, int]]().union(*failures))
    for count in range(1, MAX_AT_FAULT + 1):
        found = [each for each in combinations(suspects, count) if all(failure & set(each) for failure in failures)]
        if found and failures:
            return found
    return []


def _causes(points: Points, outcomes: Mapping[int, Outcome], alive: Collection[int]) -> dict[int, list[int]]:
    """Returns for each plan whose failure does not depend on the size the knobs that may be its cause."""
    values, found = points.values, {}
    for place in sorted(place for place, outcome in outcomes.items() if outcome.status.at_any_size):
        changed = np.flatnonzero(values[place] != values[0])
        found[place] = [int(knob) for knob in changed if not any(values[p, knob] == values[place, knob] for p in alive)]
    return found
