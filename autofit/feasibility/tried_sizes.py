"""TriedSizes: how the trials bound the probability that another size of a combination fits.

A plan surely fits if the straight line from the static memory through a smaller size of its combination stays within
the budget. For the line through two smaller sizes, the probability comes from recorded peaks.
"""

import math

from autofit.core.outcome import Outcome, Status
from autofit.feasibility.plan_features import PlanList

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
