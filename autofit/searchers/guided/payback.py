"""Payback: what the warm-up of a plan costs, and which values cannot earn it within the planned training."""

from collections.abc import Mapping, Sequence

import numpy as np

from autofit.core.knob import Knob
from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.omission import Basis
from autofit.core.units import format_duration
from autofit.feasibility.plan_features import Array, Points
from autofit.searchers.guided.exclusions import Exclusion

TIMES_PAID = 2
"""A warm-up is paid at least twice: by the search, which must measure it, and by the training."""


def never_paid(
    knobs: Sequence[Knob], points: Points, objective: Objective, baseline: Measurement | None
) -> list[Exclusion]:
    """Returns an exclusion for each value that cannot save as much time as its warm-up costs.

    At best the planned training becomes as much faster as is plausible (`Knob.ceiling`), and the warm-up takes as
    little as is plausible (`Knob.warm_up_s`).

    Args:
        knobs: knobs of the space.
        points: plans of the space.
        objective: gives the length of the planned training; without one, warm-up is ignored and nothing excluded.
        baseline: the baseline's measurement; None if it was not measured.
    """
    if objective.planned_samples is None or baseline is None:
        return []
    training_s = objective.planned_samples / baseline.samples_per_s
    found = []
    for column, knob in enumerate(knobs):
        for index, (warm_up_s, ceiling) in enumerate(zip(knob.warm_up_s, knob.ceiling, strict=False)):
            saved_s, cost_s = training_s * (1 - 1 / ceiling), TIMES_PAID * warm_up_s
            if warm_up_s and saved_s < cost_s:
                reason = (
                    f"{knob.name}={knob.values[index]} cannot pay: even {ceiling:g} times as fast, it would save "
                    f"{format_duration(saved_s)} of the {format_duration(training_s)} of the planned training, and its "
                    f"warm-up costs at least {format_duration(warm_up_s)}, in the search and again in the training"
                )
                mask = np.asarray(points.values[:, column] == index)
                found.append(Exclusion(mask, reason, Basis.ASSUMED))
    return found


def warm_ups_s(knobs: Sequence[Knob], points: Points, measured: Mapping[int, Measurement]) -> Array:
    """Returns the seconds that the warm-up of each plan is expected to take beyond that of other plans, [plans].

    That is the median of the warm-ups measured with its values, or the least plausible one.

    Args:
        knobs: knobs of the space.
        points: plans of the space.
        measured: measurements by place.
    """
    total = np.zeros(len(points.octaves))
    for column, knob in enumerate(knobs):
        for index, least_s in enumerate(knob.warm_up_s):
            if least_s:
                known = [m.startup_s for place, m in measured.items()
                         if points.values[place, column] == index and m.startup_s is not None]  # fmt: skip
                total[points.values[:, column] == index] += max(float(np.median(known)), least_s) if known else least_s
    return total
