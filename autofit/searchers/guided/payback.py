"""Payback: what the warm-up of a plan costs, and which values cannot earn it within the planned training."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
USUAL_RATIO = 5.0
"""A warm-up that was not measured yet is expected to take this many times the least plausible one. On 2 cores, four
layers compiled in 7 s and the GPT of the examples in 20 s, where 3 s are the least plausible."""
OVERDUE_RATIO = 2.0
"""A warm-up that was given up is expected to take this many times as long as it had. The time left has shrunk since, so
a second attempt would have less."""


@dataclass(frozen=True, slots=True)
class Payback:
    """Compares the warm-up of plans with the planned training, whose length the baseline's speed gives.

    If no training is planned or the baseline was not measured, no warm-up has a cost.

    Attributes:
        knobs: knobs of the space.
        points: plans of the space, the baseline first.
        objective: gives the samples of the planned training.
    """

    knobs: Sequence[Knob]
    points: Points
    objective: Objective

    def never(self, measured: Mapping[int, Measurement]) -> list[Exclusion]:
        """Returns an exclusion for each value that cannot save as much time as its warm-up costs.

        At best the planned training becomes as much faster as is plausible (`Knob.ceiling`), and the warm-up takes as
        little as is plausible (`Knob.warm_up_s`).

        Args:
            measured: measurements of the plans that ran, by place.
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
        that are expected to take as long take longer than it had.

        Args:
            measured: measurements of the plans that ran, by place.
            overdue_s: seconds after which warm-ups were given up, by place.
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
