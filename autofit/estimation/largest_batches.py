"""LargestBatches: finds for each choice the largest micro batch that fits, by tracing one plan after another."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autofit.core.briefing import Briefing
from autofit.core.errors import SpaceError, Untraceable
from autofit.core.estimate import Estimate
from autofit.core.knob import Knob
from autofit.core.plan import MICRO_BATCH_SIZE, KnobValue, Plan, same_value
from autofit.core.space import SearchSpace, divisors
from autofit.core.work import StepWork
from autofit.estimation.estimation import EstimatedPlan, Need, Row
from autofit.estimators import Traced, Tracer, samples_per_s
from autofit.memory.breakdown import Breakdown
from autofit.memory.roofline import in_precision
from autofit.memory.trace import Trace


@dataclass(frozen=True, slots=True)
class Choice:
    """One knob's value beside the baseline's values of all other knobs.

    Attributes:
        knob: name of the knob; "" for the baseline where no knob changes the memory per sample.
        value: value of the knob.
        is_baseline: whether the value is the baseline's.
        same_memory: whether the value has the memory per sample of the baseline's.
    """

    knob: str = ""
    value: KnobValue = ""
    is_baseline: bool = True
    same_memory: bool = True

    def of(self, baseline: Plan) -> Plan:
        """Returns the combination of this choice."""
        return baseline.combination.replace(**{self.knob: self.value}) if self.knob else baseline.combination


def choices(knobs: Sequence[Knob]) -> tuple[Choice, ...]:
    """Returns the values to look at, one knob at a time. The baseline is among them once."""
    gradual, found = traded(knobs), list[Choice]()
    for knob in knobs:
        same = [any(same_value(value, each) for each in (knob.default, *knob.same_memory)) for value in knob.values]
        if knob is gradual or (all(same) and len(knob.values) > 1):  # a single value is the user's choice
            continue
        new = [Choice(knob.name, v, same_value(v, knob.default), it) for v, it in zip(knob.values, same, strict=True)]
        found += [choice for choice in new if not (found and choice.is_baseline)]
    return tuple(found) or (Choice(),)


def traded(knobs: Iterable[Knob]) -> Knob | None:
    """Returns the knob of which an estimate finds the smallest value that suffices: the first that trades memory."""
    return next((knob for knob in knobs if knob.trades_memory is not None), None)


_PATIENCE = 9
"""Number of evaluations after which bisection replaces linear interpolation, which has then failed."""
_STRIDE = 4
"""Factor by which the next candidate is larger if the quantity does not grow yet."""


def last_below(
    candidates: Sequence[int],
    value_of: Callable[[int], int],
    limit: int,
    start: int,
    known: Mapping[int, int] | None = None,
    tolerance: float = 0.0,
) -> int | None:
    """Returns the largest candidate whose value is at most `limit`, or None if even the smallest is above it.

    The returned candidate was evaluated. So was the next one (within the tolerance), which is above the limit. If
    values do not grow monotonically, a larger candidate may be below the limit again. Costs about four evaluations.

    Args:
        candidates: non-negative numbers in ascending order.
        value_of: evaluates a candidate.
        limit: maximum value.
        start: evaluated first, or the candidate below it, unless it is known.
        known: values that need no evaluation, by number. Numbers that are not candidates are used for interpolation.
        tolerance: relative amount by which the result may be too small.
    """
    values, count = dict(known or {}), 0
    while True:
        placed = {candidates.index(number): value for number, value in values.items() if number in candidates}
        below = max((place for place, value in placed.items() if value <= limit), default=-1)
        above = min((place for place, value in placed.items() if value > limit), default=len(candidates))
        inside = below >= 0 and above < len(candidates)
        if inside and candidates[above] - candidates[below] <= tolerance * candidates[below]:
            break
        if above - below <= 1:
            break
        if count < _PATIENCE:
            wanted = _crossing(values, limit) if count or start in values else start
            place = bisect_right(candidates, wanted) - 1
        else:
            place = (below + above) // 2
        candidate = candidates[min(max(place, below + 1), above - 1)]
        values[candidate], count = value_of(candidate), count + 1
    return candidates[below] if below >= 0 else None


def on_line(values: Mapping[int, int], number: int) -> float:
    """Interpolates at `number` from the two nearest known values; from one value, on the line through zero."""
    near = sorted(values, key=lambda known: abs(known - number))[:2]
    low, high = (0, near[0]) if len(near) == 1 else sorted(near)
    start = values.get(low, 0)
    return start + (values[high] - start) * (number - low) / (high - low)


def _crossing(values: Mapping[int, int], limit: int) -> float:
    """Returns where a line meets the limit: through the nearest values on both sides, or the two nearest on one."""
    near = sorted(values, key=lambda number: abs(values[number] - limit))
    fits = values[near[0]] <= limit
    if len(near) == 1:
        return near[0] * (2.0 if fits else 0.5)
    beyond = next((other for other in near if (values[other] <= limit) != fits), near[1])
    low, high = sorted((near[0], beyond))
    slope = (values[high] - values[low]) / (high - low)
    return _STRIDE * max(values) if slope <= 0 else low + (limit - values[low]) / slope


MOST = 65536
"""Largest micro batch that is tried if the batch is free."""
TOLERANCE = 0.01
"""Relative tolerance of the largest micro batch. Traces of sizes this close differ by less than their error."""
SURE_TOLERANCE = 0.03
"""Relative tolerance of the largest micro batch whose upper bound fits. A bound needs less precision."""


class LargestBatches:
    """Estimates one plan after another. Each plan is traced once.

    With several ranks, all plans are those of one of them.

    Attributes:
        baseline: the baseline.
        limit_bytes: the memory budget.
        sizes: micro batch sizes to try: divisors of the global batch, or any size if the batch is free.
    """

    def __init__(self, briefing: Briefing, tracer: Tracer, ranks: int = 1) -> None:
        assert briefing.account is not None, "a bench that traces has an account"
        self._space, self._account, self._ceilings = SearchSpace(briefing.space), briefing.account, briefing.ceilings
        self._tracer, self._knobs = tracer, briefing.space.knobs
        self._traded = traded(self._knobs)
        self.baseline, self.limit_bytes = briefing.space.baseline, briefing.budget.memory_bytes
        self._seen: dict[str, EstimatedPlan] = {}
        self._work: dict[str, StepWork | None] = {}
        self._floor_bytes = 0  # approximate memory of a step without samples
        total = briefing.space.global_batch_size
        self.sizes: Sequence[int] = range(1, MOST + 1) if total is None else divisors(total)
        self._cap = (
            "no larger size was tried"
            if total is None
            else "the whole global batch"
            if ranks == 1
            else "its share of the global batch"
        )
        if any(refused.name == MICRO_BATCH_SIZE for refused in briefing.space.refused):
            self.sizes = briefing.space.sizes
            self._cap = "the loader's own batch, which can be neither cut nor joined"

    def estimated(self, plan: Plan) -> EstimatedPlan:
        """Returns a plan with its estimated peak.

        Raises:
            Untraceable, SpaceError: the plan cannot be traced.
        """
        if plan.key not in self._seen:
            self._see(plan, self._tracer(plan))
        return self._seen[plan.key]

    def estimate_baseline(self) -> tuple[EstimatedPlan, Breakdown, tuple[str, ...]]:
        """Returns the baseline with its peak, the parts of the peak, and notes on its trace."""
        trace = self._tracer(self.baseline)
        profile = self._see(self.baseline, trace).profile(self.baseline)
        assert profile is not None, "the baseline was traced"
        self._floor_bytes = profile.breakdown.fixed_bytes + self._account.outside_bytes
        return self._seen[self.baseline.key], profile.breakdown, trace.notes

    def _see(self, plan: Plan, trace: Trace) -> Traced:
        """Keeps the estimate of a plan by its trace; returns what knows the trace."""
        estimator = Traced(lambda _: trace, self._account, self.limit_bytes)
        estimator.refine(plan)
        peak = estimator.estimate(plan)
        assert peak is not None, "it was traced"
        self._work[plan.key] = trace.work
        self._seen[plan.key] = EstimatedPlan(
            plan=plan,
            peak=peak,
            fits=peak.value_bytes <= self.limit_bytes,
            surely=peak.upper_bytes is not None and peak.upper_bytes <= self.limit_bytes,
            samples_per_s=self._rate(plan, trace.work),
        )
        return estimator

    def rows(self) -> tuple[Row, ...]:
        """Returns what fits with each choice. The search for each starts at the result of the one before."""
        rows: list[Row] = []
        baseline, before = None, Row()
        for choice in choices(self._knobs):
            if choice.same_memory and baseline is not None:
                rows.append(self._twin(choice, baseline))
                continue
            before = self._row(choice, before)
            baseline = before if choice.is_baseline else baseline
            rows.append(before)
        return tuple(rows)

    def _twin(self, choice: Choice, row: Row) -> Row:
        """Returns the row of a choice with the same memory use as the baseline, whose row is `row`.

        Its throughput is known only if faster products are its only effect on the time.
        """
        largest = row.largest
        if largest is not None:
            work, rate = self._work[largest.plan.key], None
            if work is not None and self._ceilings is not None and choice.value in self._ceilings.flops_per_s:
                rate = self._rate(largest.plan, in_precision(work, str(row.value), str(choice.value)))
            plan = largest.plan.replace(**{choice.knob: choice.value})
            largest = largest.model_copy(update={"plan": plan, "samples_per_s": rate})
        found = {"knob": choice.knob, "value": choice.value, "same_as": row.name, "largest": largest}
        return row.model_copy(update=found)

    def _rate(self, plan: Plan, work: StepWork | None) -> float | None:
        """Returns the throughput at the device's peak rates, which no host slows down by issuing its operators."""
        if work is None or self._ceilings is None:
            return None
        return samples_per_s(plan, work, self._ceilings.model_copy(update={"operator_s": 0.0}))

    def least(self) -> EstimatedPlan:
        """Returns the plan with the lowest peak among the choices, with the smallest batch and all memory traded."""
        found: list[EstimatedPlan] = []
        stopped: Untraceable | SpaceError | None = None
        for choice in choices(self._knobs):
            if choice.same_memory and not choice.is_baseline:
                continue
            plan = self._space.at(choice.of(self.baseline), self.sizes[0])
            try:
                most = {} if self._traded is None else {self._traded.name: int(self._traded.values[-1])}
                found.append(self.estimated(plan.replace(**most)))
            except (Untraceable, SpaceError) as error:  # with this choice only
                stopped = error
        if stopped is not None and not found:
            raise stopped
        return min(found, key=lambda one: one.peak.value_bytes)

    def worthwhile(self, rows: Iterable[Row]) -> Sequence[int]:
        """Returns the sizes up to twice the largest that fits with any choice, or that of the baseline."""
        fitting = (row.largest.plan.micro_batch_size for row in rows if row.largest is not None)
        most = 2 * max([self.baseline.micro_batch_size, *fitting])
        return [size for size in self.sizes if size <= most] or self.sizes[:1]

    def _row(self, choice: Choice, before: Row) -> Row:
        combination, row = choice.of(self.baseline), Row(knob=choice.knob, value=choice.value)
        if reason := self._space.conflict(combination):
            return row.model_copy(update={"reason": reason})
        try:
            near = self.baseline if before.largest is None else before.largest.plan
            size = self._fitting(combination, near.micro_batch_size, _value, TOLERANCE)
            largest = None if size is None else self.estimated(self._space.at(combination, size))
            surely = size
            if size is not None and largest is not None and not largest.surely:
                surely = self._fitting(combination, size, _upper, SURE_TOLERANCE)
            needs = [] if self._traded is None else self._needs(self._traded, combination, largest, before.needs)
            found = {
                "largest": largest,
                "surely": surely,
                "capped": self._cap if size == self.sizes[-1] else "",
                "needs": tuple(needs),
            }
        except Untraceable as error:
            found = {"reason": f"{error.reason} ({error.where})"}
        except SpaceError as error:
            found = {"reason": str(error)}
        return row.model_copy(update=found)

    def _fitting(self, combination: Plan, start: int, read: Callable[[Estimate], int], tolerance: float) -> int | None:
        """Returns the largest micro batch of which what is read of the peak is within the budget; None if none is."""
        known = {size: read(peak) for size, peak in self._peaks(combination).items()}
        return last_below(
            self.sizes,
            lambda size: read(self.estimated(self._space.at(combination, size)).peak),
            self.limit_bytes,
            start,
            {0: self._floor_bytes, **known},
            tolerance,
        )

    def _needs(
        self, knob: Knob, combination: Plan, largest: EstimatedPlan | None, before: Sequence[Need]
    ) -> Iterable[Need]:
        """Yields the smallest value of the traded knob with which the baseline's size fits, and one twice as large.

        The search starts at the value that another choice needs, or else at the last one.
        """
        values, present = [int(value) for value in knob.values], self.baseline.micro_batch_size
        between = knob.trades_memory is not None and knob.trades_memory.between
        counts = range(values[0], values[-1] + 1) if between else values
        least, most = counts[0], counts[-1]
        larger = bisect_left(self.sizes, 2 * present)
        for size in (present, *self.sizes[larger : larger + 1]):
            whole = self._space.at(combination, size)
            if largest is not None and size <= largest.plan.micro_batch_size:
                yield Need(micro_batch_size=size, blocks=least, estimated=self._seen.get(whole.key))
                continue

            def with_left(left: int, whole: Plan = whole) -> EstimatedPlan:
                return self.estimated(whole.replace(**{knob.name: most - left}))

            peaks = {known: peak.value_bytes for known, peak in self._peaks(combination).items()}
            near = next((need.blocks for need in before if need.micro_batch_size == size and need.blocks), most)
            left = last_below(
                sorted(most - count for count in counts[1:]),
                lambda left: with_left(left).peak.value_bytes,
                self.limit_bytes,
                most - near,
                {most - least: round(on_line(peaks, size))},
            )
            blocks = None if left is None else most - left
            yield Need(micro_batch_size=size, blocks=blocks, estimated=with_left(left or 0))

    def _peaks(self, combination: Plan) -> dict[int, Estimate]:
        """Returns the peaks of a combination that were already estimated, by micro batch size."""
        plans = (one for one in self._seen.values() if one.plan.combination == combination)
        return {one.plan.micro_batch_size: one.peak for one in plans}


def _value(peak: Estimate) -> int:
    return peak.value_bytes


def _upper(peak: Estimate) -> int:
    assert peak.upper_bytes is not None, "the estimate of a traced plan has an upper bound"
    return peak.upper_bytes
