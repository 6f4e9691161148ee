"""Tried sizes: what the plans that ran say of how likely another size of their combination is to fit.

A plan surely fits where a straight line from what stays between steps through a smaller size of its combination says
so. How likely it is to fit by the line through two such sizes is known from recorded peaks.
"""

import math
from collections.abc import Sequence

from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.searchers.guided.surrogate import Points

UNCHANGED = 0.01
"""Peaks closer than this are equal."""
FAR = 2.0
"""A line through two sizes that ran is followed up to this multiple of the larger."""
BELOW_LINE, ABOVE_LINE, BEND = 0.05, 0.25, 0.15
"""How often a peak is below such a line, how often it is above it, and by how much then on average, as a share of what
the line adds: over the recorded tables, 741 plans (tests/searchers/guided/test_feasibility.py)."""
WARY = 3
"""A search that ran out of memory so often takes one refusal at a size for what two are before, and takes no steps with
what was only ever refused."""


class TriedSizes:
    """What became of the plans that were tried.

    Args:
        plans: every plan of the space.
        points: the same as numbers.
        limit: bytes that a peak may need.
    """

    def __init__(self, plans: Sequence[Plan], points: Points, limit: int) -> None:
        self._plans, self._points, self._limit = plans, points, limit
        self._by_combination: dict[int, dict[int, Outcome]] = {}  # then by size
        self.outcomes: dict[int, Outcome] = {}

    def tell(self, place: int, outcome: Outcome) -> None:
        """Adds what became of a plan."""
        self.outcomes[place] = outcome
        self._by_combination.setdefault(self.combination(place), {})[self.size(place)] = outcome

    def suspect(self, place: int) -> bool:
        """Says whether a plan has a value that may need room at any size: refused, never run (`WARY`)."""
        if not self._wary:
            return False
        of_plan, values = self._points.values[place], self._points.values
        refused = [other for other, outcome in self.outcomes.items() if outcome.status.does_not_fit]
        ran = [other for other, outcome in self.outcomes.items() if outcome.measurement is not None]
        return bool(((values[refused] == of_plan).any(axis=0) & ~(values[ran] == of_plan).any(axis=0)).any())

    def most(self, place: int) -> float:
        """Returns what a plan needs at most, by the smaller sizes of its combination that ran; infinity without one.

        No phase of a step needs less than what stays between steps, and each grows in a straight line with the batch.
        """
        size, least = self.size(place), math.inf
        for ran, outcome in self._sizes_tried(place).items():
            memory = None if outcome.measurement is None else outcome.measurement.memory
            if memory is not None and memory.static_bytes and ran <= size:
                stays = memory.static_bytes
                least = min(least, stays + (memory.judged_bytes - stays) * size / ran)
        return least

    def along(self, place: int) -> float | None:
        """Returns how likely a plan is to fit by the line through two smaller sizes of its combination; None without.

        A peak is that of its largest phase, and each grows in a straight line with the batch: it may bend upwards.
        """
        size, peaks, limit = self.size(place), self._peaks(place), self._limit
        ran = sorted(each for each in peaks if each < size)[-2:]
        if len(ran) < 2 or size > FAR * ran[1]:
            return None
        first, last = (peaks[each] for each in ran)
        if last <= (1 + UNCHANGED) * first:
            return None
        adds = (last - first) * (size - ran[1]) / (ran[1] - ran[0])
        room = (limit - last - adds) / adds
        return BELOW_LINE if room < 0 else 1 - ABOVE_LINE * math.exp(-room / BEND)

    def among_its_size(self, place: int) -> float:
        """Returns how likely a plan is to fit at most, by the plans of its size: 1 until two of them did not (`WARY`).

        A library may take room at one size that it takes at no other, whatever the combination. By Laplace's rule.
        """
        size = self.size(place)
        same = [tried[size] for tried in self._by_combination.values() if size in tried]
        refused, ran = sum(each.status.does_not_fit for each in same), sum(each.measured for each in same)
        return 1.0 if refused < (1 if self._wary else 2) else (ran + 1) / (ran + refused + 2)

    def below_refused(self, place: int) -> float:
        """Returns how likely a plan is to fit at most, by the sizes of its combination that did not fit and that ran.

        The largest size that fits may be anywhere between them.
        """
        size, tried = self.size(place), self._sizes_tried(place)
        refused = min((s for s, outcome in tried.items() if was_refused(outcome)), default=None)
        if refused is None:
            return 1.0
        ran = max((s for s, outcome in tried.items() if outcome.measured and s < refused), default=0)
        return max(1 - (size - ran) / (refused - ran), 0.0)

    def hidden(self, place: int) -> bool:
        """Whether a plan's peak may be made by what does not grow: it is that of another size, or of no change."""
        own, mine = self._peaks(0), self._peaks(place)
        size = self.size(place)
        peak = mine[size]
        if any(s != size and _equal(p, peak) for s, p in (own | mine).items()):
            return True
        changed = self.combination(place) != self.combination(0)
        same = size in own and _equal(peak, own[size])
        return changed and same and not any(s < size and p < peak for s, p in own.items())

    def _peaks(self, place: int) -> dict[int, int]:
        """Returns the peaks of a plan's combination by size."""
        sizes = self._sizes_tried(place).items()
        return {size: o.measurement.memory.judged_bytes for size, o in sizes if o.measurement is not None}

    @property
    def _wary(self) -> bool:
        return sum(each.status is Status.OUT_OF_MEMORY for each in self.outcomes.values()) >= WARY

    def size(self, place: int) -> int:
        """Returns the micro batch size of a plan."""
        return self._plans[place].micro_batch_size

    def _sizes_tried(self, place: int) -> dict[int, Outcome]:
        """Returns what became of the sizes of a plan's combination."""
        return self._by_combination.get(self.combination(place), {})

    def combination(self, place: int) -> int:
        """Returns the number of a plan's combination."""
        return int(self._points.combinations[place])


def _equal(a: int, b: int) -> bool:
    return abs(a / b - 1) < UNCHANGED


def was_refused(outcome: Outcome) -> bool:
    """Whether a plan does not fit, or was not run because of that."""
    return outcome.status.does_not_fit or outcome.status is Status.SKIPPED
