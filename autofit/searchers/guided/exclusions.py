"""Exclusions: plans that are not run, such as those whose values failed at any size in another plan."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autofit.core.knob import Knob
from autofit.core.omission import Basis
from autofit.core.outcome import Outcome
from autofit.feasibility.plan_features import Points


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
    for place in sorted(place for place, outcome in outcomes.items() if outcome.status.at_any_size):
        changed = np.flatnonzero(values[place] != values[0])
        causes = [int(knob) for knob in changed if not any(values[p, knob] == values[place, knob] for p in alive)]
        mask = points.combinations == points.combinations[place]
        if causes:
            mask = (values[:, causes] == values[place, causes]).all(axis=1)
        shared = causes or range(len(knobs))
        words = " ".join(f"{knobs[knob].name}={knobs[knob].values[values[place, knob]]}" for knob in shared)
        outcome = outcomes[place]
        found.append(Exclusion(np.asarray(mask), f"{words} failed: {outcome.status.value}, {outcome.reason}"))
    return found
