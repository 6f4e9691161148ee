"""Forecast: the speed of plans that did not run, from those that did.

Seconds per sample are taken as `constant + overhead / micro batch`: a step costs a fixed part and a part per sample. A
combination that did not run is taken to be its nearest measured neighbour times the factor of each change between them,
as seen at one size. Both are guides for what to probe next; no plan is recommended on them.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from autofit.core.knob import Knob
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import KnobValue, Plan

SPAN_RATIO = 1.5
"""Two sizes closer than this say nothing of the slope: the noise of a probe is as large as what they differ by."""
GROWTH_RATIO = 1.04
"""A peak that grows by less than this while the micro batch doubles is made by something else than activations."""
DEAD_ZONE_LOG = 0.025
"""A change of speed smaller than this is noise of two probes, and counts as none."""
OVERHEAD_RATIO = 0.3
"""Share of a step taken to be fixed while only one size ran at all: a second size must look worth a probe."""
LEAST_TIME_RATIO = 0.3
"""No batch is believed to make a sample cheaper than this share of what one size showed."""
LEAST_MEMORY_RATIO = 0.05
"""No change is believed to save more of what grows with the micro batch."""
_DEAD = (Status.USER_ERROR, Status.DATA_ERROR, Status.NUMERIC, Status.REJECTED, Status.NO_STEP)


@dataclass(slots=True)
class Curve:
    """What is known of one combination.

    Attributes:
        combination: a plan without batch.
        outcomes: latest outcome by micro batch.
        scores: throughput by micro batch, of the sizes that were measured inside the budget.
        seen: the same, with the sizes that ran but were over the budget.
    """

    combination: Plan
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    scores: dict[int, float] = field(default_factory=dict)
    seen: dict[int, float] = field(default_factory=dict)

    @property
    def dead(self) -> bool:
        """Whether the combination itself fails, at whatever size."""
        return any(outcome.status in _DEAD for outcome in self.outcomes.values())

    @property
    def limit(self) -> float:
        """The smallest micro batch that did not fit, screened out or tried; infinity when there is none."""
        refused = (s for s, o in self.outcomes.items() if o.status.does_not_fit or o.status is Status.SKIPPED)
        return min(refused, default=math.inf)

    def peak_bytes(self, size: int) -> int | None:
        """Returns the peak at a size at which a step ran, in the reading that is judged, or None."""
        outcome = self.outcomes.get(size)
        measurement = None if outcome is None else outcome.measurement
        return None if measurement is None else measurement.memory.judged_bytes

    @property
    def static_bytes(self) -> int:
        """Memory that stays between steps; 0 when not known."""
        measured = (o.measurement for o in self.outcomes.values() if o.measurement is not None)
        return max((m.memory.static_bytes or 0 for m in measured), default=0)

    def floor_bytes(self) -> int:
        """Returns the memory that does not grow with the micro batch, as far as the sizes that ran show it."""
        points = [(s, peak) for s in sorted(self.outcomes) if (peak := self.peak_bytes(s)) is not None]
        if len(points) < 2:
            return self.static_bytes
        (m1, p1), (m2, p2) = points[-2:]
        return max(self.static_bytes, min(round(p1 - (p2 - p1) * m1 / (m2 - m1)), p1))

    def grows_at(self, size: int) -> bool:
        """Whether the peak at a size that ran is made by what grows with the micro batch, as far as other sizes show.

        Where it is not, a change that saves activations does not show in the peak.
        """
        peaks = {s: peak for s in self.outcomes if (peak := self.peak_bytes(s)) is not None}
        smaller = [s for s in peaks if 2 * s <= size]
        if smaller:
            return peaks[size] >= GROWTH_RATIO * peaks[max(smaller)]
        larger = min((s for s in peaks if s > size), default=None)
        if larger is None:
            return True
        slope = (peaks[larger] - peaks[size]) / (larger - size)
        return slope * size >= 0.7 * (peaks[size] - self.static_bytes)

    def score_at(self, size: int, shape: "Curve") -> float:
        """Returns the throughput at a size, predicted where it did not run.

        Args:
            size: micro batch.
            shape: the curve whose overhead is borrowed while this one has too few sizes.

        Raises:
            ValueError: no size ran.
        """
        if size in self.seen:
            return self.seen[size]
        sizes = sorted(self.seen)
        if not sizes:
            raise ValueError("a curve without a size that ran predicts nothing")
        below, above = [s for s in sizes if s < size], [s for s in sizes if s > size]
        if below and above:
            return self._between(below[-1], above[0], size)
        near = below[-1] if below else above[0]
        far = self._partner(near, below or above)
        if far is not None:
            overhead = max(self._overhead(min(near, far), max(near, far)), 0.0)
            return 1 / max(1 / self.seen[near] + overhead * (1 / size - 1 / near), 1e-12)
        if shape is self or len(shape.seen) < 2:
            return self.seen[near] / (1 - OVERHEAD_RATIO + OVERHEAD_RATIO * near / size)
        # The fixed part of a step is borrowed as it is: a change that makes samples cheaper leaves more to gain.
        borrowed = 1 / shape.score_at(size, shape) - 1 / shape.score_at(near, shape)
        return 1 / max(1 / self.seen[near] + borrowed, LEAST_TIME_RATIO / self.seen[near])

    def _partner(self, near: int, sizes: list[int]) -> int | None:
        apart = [s for s in sizes if max(s, near) >= SPAN_RATIO * min(s, near)]
        return min(apart, key=lambda s: abs(math.log(s / near)), default=None)

    def _overhead(self, small: int, large: int) -> float:
        return (1 / self.seen[small] - 1 / self.seen[large]) / (1 / small - 1 / large)

    def _between(self, small: int, large: int, size: int) -> float:
        return 1 / (1 / self.seen[large] + self._overhead(small, large) * (1 / size - 1 / large))


@dataclass(frozen=True, slots=True)
class Factor:
    """What one change does at one size: throughput ratio, ratio of the memory that grows with the batch."""

    speed: float
    memory: float


class Forecast:
    """The curves of all combinations, and what changes between them do."""

    def __init__(self, knobs: Iterable[Knob]) -> None:
        self._knobs = tuple(knobs)
        self._curves: dict[str, Curve] = {}
        self._factors: dict[tuple[str, KnobValue], Factor] = {}
        self._floor_bytes = 0

    def tell(self, plan: Plan, outcome: Outcome, score: float | None) -> None:
        """Enters the outcome of a plan; `score` is its throughput when it ran, inside the budget or not."""
        curve, size = self._curves.setdefault(plan.combination.key, Curve(plan.combination)), plan.micro_batch_size
        curve.outcomes[size] = outcome
        curve.scores.pop(size, None)
        if score is not None:
            curve.seen[size] = score
        if score is not None and outcome.measured:
            curve.scores[size] = score

    def curve(self, combination: Plan) -> Curve:
        """Returns what is known of a combination; an empty curve when nothing is."""
        return self._curves.get(combination.key) or Curve(combination)

    @property
    def measured(self) -> list[Curve]:
        """The combinations of which a size was measured, in the order in which they were first tried."""
        return [curve for curve in self._curves.values() if curve.scores]

    def refused(self, size: int) -> list[Curve]:
        """Returns the combinations that did not fit at `size` or below."""
        return [curve for curve in self._curves.values() if curve.limit <= size]

    def best(self) -> tuple[Curve, int] | None:
        """Returns the fastest measured plan as (curve, micro batch), or None."""
        points = [(curve, size) for curve in self.measured for size in curve.scores]
        return max(points, key=lambda point: point[0].scores[point[1]], default=None)

    def tried_at(self, size: int) -> int:
        """Returns how many combinations have an outcome at this size."""
        return sum(size in curve.outcomes for curve in self._curves.values())

    def compare(self, anchor: Plan, size: int) -> None:
        """Works out the factor of each knob value that ran at `size` with all else as in `anchor`."""
        self._factors = {}
        own = self.curve(anchor)
        self._floor_bytes = own.floor_bytes()
        for knob in self._knobs:
            self._factors[_key(knob.name, anchor.values[knob.name])] = Factor(1.0, 1.0)
            for value in knob.values:
                other = self.curve(anchor.replace(**{knob.name: value}))
                if size in own.scores and size in other.scores:
                    self._factors[_key(knob.name, value)] = self._factor(other, own, size)

    def compare_again(self, best: Plan, size: int) -> None:
        """Puts factors in the place of those of `compare` for the values that ran at `size` with all else as in `best`.

        What pays at a small size need not pay at a large one, so the factors near the best plan count.
        """
        own = self.curve(best)
        for knob in self._knobs:
            reference = self._factors.get(_key(knob.name, best.values[knob.name]))
            for value in knob.values:
                other = self.curve(best.replace(**{knob.name: value}))
                if reference is not None and other is not own and size in own.seen and size in other.seen:
                    factor = self._factor(other, own, size)
                    self._factors[_key(knob.name, value)] = Factor(
                        reference.speed * factor.speed, reference.memory * factor.memory
                    )

    def rescaled(self, value_bytes: int, factor: float) -> float:
        """Returns a peak with what grows with the micro batch times `factor`."""
        floor = min(self._floor_bytes, value_bytes)
        return floor + (value_bytes - floor) * factor

    def _factor(self, other: Curve, own: Curve, size: int) -> Factor:
        speed = other.seen[size] / own.seen[size]
        speed = 1.0 if abs(math.log(speed)) < DEAD_ZONE_LOG else speed
        mine, theirs = other.peak_bytes(size), own.peak_bytes(size)
        if mine is None or theirs is None or theirs <= self._floor_bytes:
            return Factor(speed, 1.0)
        return Factor(speed, max((mine - self._floor_bytes) / (theirs - self._floor_bytes), LEAST_MEMORY_RATIO))

    def nearest(self, combination: Plan) -> Curve | None:
        """Returns the measured curve with the fewest changes; among equals the one with the most sizes."""
        return min(
            self.measured,
            key=lambda c: (len(combination.changes_from(c.combination)), -len(c.scores)),
            default=None,
        )

    def change(self, combination: Plan, neighbour: Plan) -> Factor | None:
        """Returns the factor from `neighbour` to `combination`, or None when a value of either was not compared."""
        speed = memory = 1.0
        for name, value in combination.changes_from(neighbour).items():
            mine = self._factors.get(_key(name, value))
            theirs = self._factors.get(_key(name, neighbour.values[name]))
            if mine is None or theirs is None:
                return None
            speed, memory = speed * mine.speed / theirs.speed, memory * mine.memory / theirs.memory
        return Factor(speed, memory)


def _key(name: str, value: KnobValue) -> tuple[str, KnobValue]:
    return f"{name}:{type(value).__name__}", value
