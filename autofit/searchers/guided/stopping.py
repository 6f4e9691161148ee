"""Stopping: when no plan is worth another probe, so that the search ends before its time is used up.

A plan is worth a probe if its expected gain is at least `least_gain`. When no plan is, each value of a knob that was
tried at small sizes only is tried once near the size of the best plan (`SMALL_RATIO`). Then the search ends.

Payback: what the warm-up of a plan costs, and which values cannot earn it within the planned training.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autofit.core.knob import Knob
from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.space import Basis
from autofit.core.units import format_duration
from autofit.feasibility.plan_features import Array, Points
from autofit.searchers.guided.exclusions import Exclusion

TIMES_PAID = 2
"""A warm-up is paid at least twice: by the search, which must measure it, and by the training."""
USUAL_RATIO = 5.0
"""A warm-up that was not measured yet is expected to take this many times the least plausible one, as the GPT of the
examples compiled in 20 s on 2 cores, where 3 s are the least plausible."""
OVERDUE_RATIO = 2.0
"""A warm-up that was given up is expected to take this many times as long as it had. The time left has shrunk since, so
a second attempt would have less."""


@dataclass(frozen=True, slots=True)
class Payback:
    """Compares the warm-up of plans with the planned training, whose length the baseline's speed gives.

    If no training is planned or the baseline was not measured, no warm-up has a cost.

    `points` has all plans, the baseline first. `measured` are the measurements of the plans that ran, by place.
    """

    knobs: Sequence[Knob]
    points: Points
    objective: Objective

    def never(self, measured: Mapping[int, Measurement]) -> list[Exclusion]:
        """Returns an exclusion for each value that cannot save as much time as its warm-up costs.

        At best the planned training becomes as much faster as is plausible (`Knob.ceiling`), and the warm-up takes as
        little as is plausible (`Knob.warm_up_s`).
        """
        training_s = self._training_s(measured)
        if training_s is None:
            return []
        found = []
        for column, knob in enumerate(self.knobs):
            for index, (warm_up_s, ceiling) in enumerate(zip(knob.warm_up_s, knob.ceiling, strict=False)):
                saved_s = training_s * (1 - 1 / ceiling)
                if warm_up_s and saved_s < TIMES_PAID * warm_up_s:
                    reason = (
                        f"{knob.name}={knob.values[index]} cannot pay: even {ceiling:g} times as fast, it would save "
                        f"{format_duration(saved_s)} of the {format_duration(training_s)} of the planned training, and "
                        f"its warm-up costs at least {format_duration(warm_up_s)}, in the search and again in the "
                        "training"
                    )
                    mask = np.asarray(self.points.values[:, column] == index)
                    found.append(Exclusion(mask, reason, Basis.ASSUMED))
        return found

    def costs(self, measured: Mapping[int, Measurement]) -> Array:
        """Returns the cost of each plan's warm-up as a share of the planned training, [plans].

        A plan is worth a probe only if its expected gain exceeds this cost.
        """
        training_s = self._training_s(measured)
        return np.asarray(0.0 if training_s is None else TIMES_PAID / training_s) * self.warm_ups_s(measured)

    def warm_ups_s(self, measured: Mapping[int, Measurement], overdue_s: Mapping[int, float] | None = None) -> Array:
        """Returns the seconds that each plan's warm-up is expected to take longer than that of other plans, [plans].

        That is the median of the warm-ups measured with its values, or the usual one. If a warm-up was given up, those
        that are expected to take as long take longer than it had: `overdue_s`, by place.
        """
        points, total = self.points, np.zeros(len(self.points.octaves))
        for column, knob in enumerate(self.knobs):
            for index, least_s in enumerate(knob.warm_up_s):
                if least_s:
                    known = [
                        m.startup_s for place, m in measured.items()
                        if points.values[place, column] == index and m.startup_s is not None
                    ]  # fmt: skip
                    expected_s = max(float(np.median(known)), least_s) if known else USUAL_RATIO * least_s
                    for place, spent_s in (overdue_s or {}).items():
                        given_up_s = knob.warm_up_s[points.values[place, column]]
                        if given_up_s and not known:
                            expected_s = max(expected_s, OVERDUE_RATIO * spent_s * least_s / given_up_s)
                    total[points.values[:, column] == index] += expected_s
        return total

    def _training_s(self, measured: Mapping[int, Measurement]) -> float | None:
        """Returns the duration of the planned training at the baseline's speed; None if it is unknown."""
        if self.objective.planned_samples is None or 0 not in measured:
            return None
        return self.objective.planned_samples / measured[0].samples_per_s


MIN_GAIN, MAX_MIN_GAIN = 0.002, 0.01
"""Expected gain that is worth a probe, as a log ratio: at first, and at most. Scored by scripts/bench/search."""
MANY_MEASURED = 11
"""From this number of measured plans on, the gain that is worth a probe grows with its square where memory is
estimated: what the model still promises then comes from plans that hardly differ. Scored by scripts/bench/search: 10
loses more, and 13 takes more probes for the same regret. Without estimates, plans also run to show their memory, and
the mean regret would double."""
SMALL_RATIO, MAX_SLOWDOWN = 2, 1.4
"""A value that was tried only at sizes this many times smaller than the best plan's is not settled: fixed costs of a
step, such as casts, hide its benefit there, and so may the values that it ran with. It is settled if the plan is
estimated to be slower by `MAX_SLOWDOWN`. With 4 or with 1.1, a space whose values depend on others loses more than
twice as much (scripts/bench/search --only together_2k)."""
DIGITS = 9
"""Logarithms that agree to this many digits are equal. Processors round differently, and the search must not depend on
it."""


def least_gain(measured: int, estimated: bool) -> float:
    """Returns the expected gain that is worth a probe, as a log ratio, after this number of measured plans.

    `estimated` says whether the memory of any plan can be estimated before it runs.
    """
    many = max(measured / MANY_MEASURED, 1.0) if estimated else 1.0
    return min(MIN_GAIN * many**2, MAX_MIN_GAIN)


def unsettled(
    points: Points,
    sizes: NDArray[np.int_],
    means: Array,
    tried: Sequence[int],
    ran: Sequence[int],
    excluded: NDArray[np.bool_],
    is_likely: Callable[[int], bool],
) -> int | None:
    """Returns the best plan with a value that was tried at small sizes only, near the size of the best plan, or None.

    Args:
        points: plans as numbers.
        sizes: micro batch of each plan, [plans].
        means: estimated log throughput of each plan, [plans].
        tried: places of the plans that were tried.
        ran: places of the plans that were measured within the budget, at least one.
        excluded: which plans are not run, [plans].
        is_likely: returns whether the plan at a place is likely to fit.
    """
    best = max(ran, key=lambda place: float(means[place]))
    excluded = excluded | (means < means[best] - math.log(MAX_SLOWDOWN))
    apart, means = np.abs(points.octaves - points.octaves[best]).round(DIGITS), means.round(DIGITS)
    found: list[int] = []
    for knob, current in enumerate(points.values[best]):
        for value in set(points.values[list(tried), knob].tolist()) - {current}:
            largest = max(sizes[place] for place in tried if points.values[place, knob] == value)
            if SMALL_RATIO * largest > sizes[best]:
                continue
            changed = points.values[best].copy()
            changed[knob] = value
            same = np.flatnonzero((points.values == changed).all(axis=1) & (sizes > largest) & ~excluded)
            fitting = [int(place) for place in same if is_likely(int(place))]
            found += sorted(fitting, key=lambda place: apart[place])[:1]
    return max(found, key=lambda place: (means[place], -place), default=None)
