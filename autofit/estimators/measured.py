"""Measured: estimates the memory of a combination from its sizes that ran.

The peak of a step is the largest of its phases, and the live memory of each phase is affine in the micro batch
(reference/memory_prediction.md 3). The peak is therefore convex in the micro batch: the line through two measured sizes
is a lower bound outside them and an upper bound between them. This assumes that the peak does not fall as the micro
batch grows, and that the same phases run at each size. A library that switches algorithms by size may break the first
assumption.
"""

from collections.abc import Collection
from dataclasses import dataclass, field

from autofit.core.estimate import Estimate
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.core.units import format_bytes
from autofit.estimators.base import Estimator

READING_RATIO = 0.005
"""Maximum difference between two readings of one plan's peak, as a ratio; bounds from a line are widened by it."""


@dataclass(slots=True)
class _Curve:
    """The measured peaks of one combination, with or without accumulation.

    Gradients outlive a forward pass only under accumulation, so sizes with and without it lie on different curves.
    """

    combination: Plan
    accumulating: bool
    peaks: dict[int, int] = field(default_factory=dict)
    static_bytes: int = 0
    estimates: dict[int, Estimate] = field(default_factory=dict)  # by size; valid until another peak is learned

    def distance(self, combination: Plan, accumulating: bool) -> int:
        return len(combination.changes_from(self.combination)) + (accumulating != self.accumulating)


class Measured(Estimator):
    """Draws the curve through the sizes that ran; a combination that never ran borrows the nearest curve."""

    def __init__(self) -> None:
        self._curves: dict[tuple[str, bool], _Curve] = {}
        # The nearest curves for a combination that never ran, each with the values in which it differs: valid until
        # another peak is learned.
        self._lenders: dict[tuple[str, bool], list[tuple[_Curve, str]]] = {}

    def tell(self, trial: Trial) -> None:
        """Learns the peak of a probe or a proof; a block of a race may not have run the worst batch."""
        plan, measurement = trial.plan, trial.outcome.measurement
        ran = trial.outcome.status in (Status.MEASURED, Status.OVER_BUDGET) and trial.purpose is not Purpose.BLOCK
        if not ran or measurement is None:
            return
        peak, size = measurement.memory.judged_bytes, plan.micro_batch_size
        accumulating = plan.accumulation_steps > 1
        key = (plan.combination.key, accumulating)
        curve = self._curves.setdefault(key, _Curve(plan.combination, accumulating))
        curve.peaks[size] = max(peak, curve.peaks.get(size, 0))
        curve.static_bytes = max(curve.static_bytes, min(measurement.memory.static_bytes or 0, peak))
        self._lenders.clear()
        for known in self._curves.values():
            known.estimates.clear()

    def bounded(self) -> Collection[str]:
        """Returns the combinations that ran; what others borrow is a guess."""
        return {combination for combination, _ in self._curves}

    def estimate(self, plan: Plan) -> Estimate | None:
        """Returns the peak with bounds from the combination's own sizes, or a guess without bounds from a neighbour."""
        key = (plan.combination.key, plan.accumulation_steps > 1)
        curve = self._curves.get(key)
        return self._borrowed(plan, key) if curve is None else self._at(curve, plan.micro_batch_size)

    def _at(self, curve: _Curve, size: int) -> Estimate:
        if size not in curve.estimates:
            # The nearest curve with more than one size shows the growth of memory.
            others = [other for other in self._curves.values() if len(other.peaks) > 1]
            shape = min(others, key=lambda c: c.distance(curve.combination, curve.accumulating), default=None)
            peak, lower, upper = _bounds(curve, size, shape)
            basis = f"measured at micro batch {size}"
            if size not in curve.peaks:
                below, above = _sides(curve, size)
                points = below[-2:] if not above else below[-1:] + above[:1] if below else above[:2]
                measured = " and ".join(f"{format_bytes(peak)} at micro batch {ran}" for ran, peak in points)
                basis = f"measured {measured}"
            curve.estimates[size] = Estimate(value_bytes=peak, lower_bytes=lower, upper_bytes=upper, basis=basis)
        return curve.estimates[size]

    def _borrowed(self, plan: Plan, key: tuple[str, bool]) -> Estimate | None:
        if not self._curves:
            return None
        if key not in self._lenders:
            self._lenders[key] = self._nearest(plan.combination, key[1])
        # Which of the changes saves memory is not known here. The guess is the lowest, since a guess can refuse a plan.
        size = plan.micro_batch_size
        curve, changes = min(self._lenders[key], key=lambda lender: self._at(lender[0], size).value_bytes)
        source = "the measured peak" if size in curve.peaks else "a line through measured peaks"
        basis = f"from {source} of the same plan with {changes}"
        return Estimate(value_bytes=self._at(curve, size).value_bytes, basis=basis)

    def _nearest(self, combination: Plan, accumulating: bool) -> list[tuple[_Curve, str]]:
        """Returns the curves with the fewest changes, and these."""
        least = min(curve.distance(combination, accumulating) for curve in self._curves.values())
        found = []
        for curve in self._curves.values():
            if curve.distance(combination, accumulating) == least:
                changes = [f"{k}={v}" for k, v in curve.combination.changes_from(combination).items()]
                if curve.accumulating != accumulating:
                    changes.append("accumulation" if curve.accumulating else "no accumulation")
                found.append((curve, ", ".join(changes)))
        return found


def _bounds(curve: _Curve, size: int, shape: _Curve | None = None) -> tuple[int, int, int | None]:
    """Returns the peak at a size with its lower bound, and its upper bound if there is one."""
    if size in curve.peaks:
        peak = curve.peaks[size]
        return peak, peak, peak
    below, above = _sides(curve, size)
    monotone = below[-1][1] * (1 - READING_RATIO) if below else curve.static_bytes
    lower = max(monotone, _line_bound(below[-2:], size), _line_bound(above[:2], size))
    upper = _line(below[-1], above[0], size) if below and above else above[0][1] if above else None
    value = _value(curve, below, above, size, shape)
    bounded = round(max(value, lower) if upper is None else min(max(value, lower), upper))
    return bounded, min(round(lower), bounded), None if upper is None else max(round(upper), bounded)


def _sides(curve: _Curve, size: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Returns the sizes that ran below and above another, with their peaks, in order."""
    peaks = sorted(curve.peaks.items())
    return [p for p in peaks if p[0] < size], [p for p in peaks if p[0] > size]


def _value(
    curve: _Curve, below: list[tuple[int, int]], above: list[tuple[int, int]], size: int, shape: _Curve | None
) -> float:
    if below and above:
        return _line(below[-1], above[0], size)
    side = below[-2:] if below else above[:2]
    if len(side) == 2:
        return _line(side[0], side[1], size)
    # The line from the static memory, the minimum of every phase, is too high where the peak is still flat. There the
    # growth of a neighbour is the better guess.
    straight = _line((0, curve.static_bytes), side[0], size)
    if shape is None or size < side[0][0]:
        return straight
    growth = _bounds(shape, size)[0] - _bounds(shape, side[0][0])[0]
    return min(straight, side[0][1] + max(growth, 0))


def _line_bound(points: list[tuple[int, int]], size: int) -> float:
    """Returns the line through two points at a size outside them, less the error of two readings."""
    if len(points) < 2:
        return 0.0
    (m1, p1), (m2, p2) = points
    reach = max(size - m2, m1 - size) / (m2 - m1)
    return _line(points[0], points[1], size) - READING_RATIO * max(p1, p2) * (1 + 2 * reach)


def _line(first: tuple[int, int], second: tuple[int, int], size: int) -> float:
    (m1, p1), (m2, p2) = first, second
    return p1 + (p2 - p1) * (size - m1) / (m2 - m1)
