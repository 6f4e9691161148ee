"""Condemned: which plans are not to be run because plans with the same values failed whatever their size."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autofit.core.knob import Knob
from autofit.core.outcome import Outcome
from autofit.searchers.guided.surrogate import Points


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
    knobs: Sequence[Knob], points: Points, outcomes: Mapping[int, Outcome], alive: Collection[int]
) -> list[Condemned]:
    """Returns what the plans that failed whatever their size say of others, for each of them.

    Suspect is a changed value that no plan that ran has. Where several are, one of them may be innocent: only plans
    that have all of them are condemned.

    Args:
        knobs: of the space.
        points: its plans, the user's own first.
        outcomes: of those that were tried, by place.
        alive: the places of those that ran.
    """
    values = points.values
    found = []
    for place in sorted(place for place, outcome in outcomes.items() if outcome.status.at_any_size):
        changed = np.flatnonzero(values[place] != values[0])
        suspects = [int(knob) for knob in changed if not any(values[p, knob] == values[place, knob] for p in alive)]
        mask = points.combinations == points.combinations[place]
        if suspects:
            mask = (values[:, suspects] == values[place, suspects]).all(axis=1)
        common = suspects or range(len(knobs))
        told = " ".join(f"{knobs[knob].name}={knobs[knob].values[values[place, knob]]}" for knob in common)
        outcome = outcomes[place]
        found.append(Condemned(np.asarray(mask), f"{told} failed: {outcome.status.value}, {outcome.reason}"))
    return found
