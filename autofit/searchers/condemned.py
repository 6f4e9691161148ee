"""Condemned: which plans are not to be run because plans with the same values failed whatever their size."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.searchers.surrogate import Points


@dataclass(frozen=True, slots=True)
class Condemned:
    """Plans that have in common what made one fail.

    Attributes:
        mask: which plans they are, [plans].
        reason: what they have in common, and how it failed.
    """

    mask: NDArray[np.bool_]
    reason: str


def condemned(
    plans: Sequence[Plan], points: Points, outcomes: Mapping[int, Outcome], alive: Collection[int]
) -> list[Condemned]:
    """Returns what the plans that failed whatever their size say of others, for each of them.

    Suspect is a changed value that no plan that ran has. Where several are, one of them may be innocent: only plans
    that have all of them are condemned.

    Args:
        plans: of the space, the user's own first.
        points: the same as numbers.
        outcomes: of those that were tried, by place.
        alive: the places of those that ran.
    """
    values = points.values
    found = []
    for place in sorted(place for place, outcome in outcomes.items() if outcome.status.at_any_size):
        changed = np.flatnonzero(values[place] != values[0])
        suspects = [knob for knob in changed if not any(values[p, knob] == values[place, knob] for p in alive)]
        mask = points.combinations == points.combinations[place]
        if suspects:
            mask = (values[:, suspects] == values[place, suspects]).all(axis=1)
        names = list(plans[place].combination.values.items())  # of all knobs, in the order of the space
        common = [names[knob] for knob in suspects] or names
        told = " ".join(f"{name}={value}" for name, value in common)
        outcome = outcomes[place]
        found.append(Condemned(np.asarray(mask), f"{told} failed: {outcome.status.value}, {outcome.reason}"))
    return found
