"""LargestBatches: finds for each choice the largest micro batch that fits, by tracing one plan after another.

Choices are the knob values whose memory an estimate looks at, from what the knobs say of themselves. Root finding finds
with few evaluations where an approximately linear quantity crosses a limit.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autofit.core.account import Account
from autofit.core.briefing import Briefing
from autofit.core.errors import SpaceError, Untraceable
from autofit.core.knob import Knob
from autofit.core.plan import MICRO_BATCH_SIZE, KnobValue, Plan, same_value
from autofit.core.space import SearchSpace, divisors
from autofit.core.work import StepWork
from autofit.estimation.records import EstimatedPlan, Need, Row
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
    return tuple(_choices(knobs)) or (Choice(),)


def _choices(knobs: Sequence[Knob]) -> Iterator[Choice]:
    gradual, first = traded(knobs), True
    for knob in knobs:
        if knob is gradual or all(_is_same(knob, value) for value in knob.values):
            continue
        for value in knob.values:
            if first or not same_value(value, knob.default):
                yield Choice(knob.name, value, same_value(value, knob.default), _is_same(knob, value))
        first = False


def traded(knobs: Iterable[Knob]) -> Knob | None:
    """Returns the knob of which an estimate finds the smallest value that suffices: the first that trades memory."""
    return next((knob for knob in knobs if knob.trades_memory is not None), None)


def _is_same(knob: Knob, value: KnobValue) -> bool:
    return any(same_value(value, each) for each in (knob.default, *knob.same_memory))


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
    values, below, above = dict(known or {}), -1, len(candidates)
    for candidate, value in values.items():
        place = bisect_left(candidates, candidate)
        if place < len(candidates) and candidates[place] == candidate:
            below, above = (max(below, place), above) if value <= limit else (below, min(above, place))
    place = bisect_right(candidates, start) - 1
    for count in range(len(candidates) + 1):
        if above - below <= 1 or _close(candidates, below, above, tolerance):
            break
        if count or start in values:
            place = _next(candidates, values, limit) if count < _PATIENCE else (below + above) // 2
        place = min(max(place, below + 1), above - 1)
        candidate = candidates[place]
        values[candidate] = value_of(candidate)
        below, above = (place, above) if values[candidate] <= limit else (below, place)
    return candidates[below] if below >= 0 else None


def _close(candidates: Sequence[int], below: int, above: int, tolerance: float) -> bool:
    inside = below >= 0 and above < len(candidates)
    return inside and candidates[above] - candidates[below] <= tolerance * candidates[below]


def on_line(values: Mapping[int, int], number: int) -> float:
    """Interpolates at `number` from the two nearest known values; from one value, on the line through zero."""
    near = sorted(values, key=lambda known: abs(known - number))[:2]
    low, high = (0, near[0]) if len(near) == 1 else sorted(near)
    start = values.get(low, 0)
    return start + (values[high] - start) * (number - low) / (high - low)


def _next(candidates: Sequence[int], values: Mapping[int, int], limit: int) -> int:
    """Returns the index of the candidate where the line through two values meets the limit.

    The two are the nearest below and above the limit, or the two nearest if all are on one side.
    """
    near = sorted(values, key=lambda candidate: abs(values[candidate] - limit))
    beyond = (other for other in near if (values[other] > limit) != (values[near[0]] > limit))
    near = [near[0], *([other] if (other := next(beyond, None)) is not None else near[1:2])]
    if len(near) == 1:
        wanted = 2.0 * near[0] if values[near[0]] <= limit else near[0] / 2
        return bisect_right(candidates, wanted) - 1
    low, high = sorted(near)
    slope = (values[high] - values[low]) / (high - low)
    if slope <= 0:
        return bisect_right(candidates, _STRIDE * max(values)) - 1
    return bisect_right(candidates, low + (limit - values[low]) / slope) - 1


MOST = 65536
"""Largest micro batch that is tried if the batch is free."""
TOLERANCE = 0.01
"""Relative tolerance of the largest micro batch. Traces of sizes this close differ by less than their error."""
SURE_TOLERANCE = 0.03
"""Relative tolerance of the largest micro batch whose upper bound fits. A bound needs less precision."""


@dataclass
class LargestBatches:
    """Estimates one plan after another. Each plan is traced once."""

    briefing: Briefing
    tracer: Tracer
    _seen: dict[str, EstimatedPlan] = field(default_factory=dict)
    _work: dict[str, StepWork | None] = field(default_factory=dict)
    _floor_bytes: int = 0  # approximate memory of a step without samples

    @property
    def baseline(self) -> Plan:
        """The baseline."""
        return self.briefing.space.baseline

    @property
    def limit_bytes(self) -> int:
        """The memory budget."""
        return self.briefing.budget.memory_bytes

    @property
    def _account(self) -> Account:
        assert self.briefing.account is not None, "a bench that traces has an account"
        return self.briefing.account

    def estimated(self, plan: Plan) -> EstimatedPlan:
        """Returns a plan with its estimated peak.

        Raises:
            Untraceable, SpaceError: the plan cannot be traced.
        """
        if plan.key not in self._seen:
            self._see(plan, self.tracer(plan))
        return self._seen[plan.key]

    def estimate_baseline(self) -> tuple[EstimatedPlan, Breakdown, tuple[str, ...]]:
        """Returns the baseline with its peak, the parts of the peak, and notes on its trace."""
        trace = self.tracer(self.baseline)
        profile = self._see(self.baseline, trace).profile(self.baseline)
        assert profile is not None, "the baseline was traced"
        self._floor_bytes = profile.breakdown.fixed_bytes + self._account.outside_bytes
        return self._seen[self.baseline.key], profile.breakdown, trace.notes

    def _see(self, plan: Plan, trace: Trace) -> Traced:
        """Keeps the estimate of a plan by its trace; returns what knows the trace."""
        traced = Traced(lambda _: trace, self._account, self.limit_bytes)
        traced.refine(plan)
        peak = traced.estimate(plan)
        assert peak is not None, "it was traced"
        self._work[plan.key] = trace.work
        self._seen[plan.key] = EstimatedPlan(
            plan=plan,
            peak=peak,
            fits=peak.value_bytes <= self.limit_bytes,
            surely=peak.upper_bytes is not None and peak.upper_bytes <= self.limit_bytes,
            samples_per_s=self._rate(plan, trace.work),
        )
        return traced

    def rows(self) -> tuple[Row, ...]:
        """Returns what fits with each choice. The search for each starts at the result of the one before."""
        rows: list[Row] = []
        baseline, before = None, Row()
        for choice in choices(self.briefing.space.knobs):
            if choice.same_memory and baseline is not None:
                rows.append(self._twin(choice, baseline))
                continue
            before = self._row(choice, before)
            baseline = before if choice.is_baseline else baseline
            rows.append(before)
        return tuple(rows)

    def _twin(self, choice: Choice, row: Row) -> Row:
        """Returns the row of a choice with the same memory use as the baseline, whose row is `row`."""
        largest = row.largest
        if largest is not None:
            plan = self._at(choice.of(self.baseline), largest.plan.micro_batch_size)
            largest = largest.model_copy(
                update={"plan": plan, "samples_per_s": self._twins_rate(choice, row, largest.plan)}
            )
        found = {"knob": choice.knob, "value": choice.value, "same_as": row.name, "largest": largest}
        return row.model_copy(update=found)

    def _twins_rate(self, choice: Choice, row: Row, plan: Plan) -> float | None:
        """Returns the throughput of a choice with faster products; None for one with any other effect on the time."""
        work, ceilings = self._work[plan.key], self.briefing.ceilings
        if work is None or ceilings is None or choice.value not in ceilings.flops_per_s:
            return None
        return self._rate(plan, in_precision(work, str(row.value), str(choice.value)))

    def _rate(self, plan: Plan, work: StepWork | None) -> float | None:
        """Returns the throughput at the device's peak rates, which no host slows down by issuing its operators."""
        ceilings = self.briefing.ceilings
        if work is None or ceilings is None:
            return None
        return samples_per_s(plan, work, ceilings.model_copy(update={"operator_s": 0.0}))

    def least(self) -> EstimatedPlan:
        """Returns the plan with the lowest peak among the choices, with the smallest batch and all memory traded."""
        found: list[EstimatedPlan] = []
        stopped: Untraceable | SpaceError | None = None
        for choice in choices(self.briefing.space.knobs):
            if choice.same_memory and not choice.is_baseline:
                continue
            plan = self._at(choice.of(self.baseline), self.sizes[0])
            plan = plan if self._traded is None else self._trading(plan, int(self._traded.values[-1]))
            try:
                found.append(self.estimated(plan))
            except (Untraceable, SpaceError) as error:  # with this choice only
                stopped = error
        if stopped is not None and not found:
            raise stopped
        return min(found, key=lambda one: one.peak.value_bytes)

    @cached_property
    def sizes(self) -> Sequence[int]:
        """Micro batch sizes to try: divisors of the global batch, or any size if the batch is free."""
        space = self.briefing.space
        if self._fixed:
            return space.sizes
        if space.global_batch_size is not None:
            return divisors(space.global_batch_size)
        return range(1, MOST + 1)

    def worthwhile(self, rows: Iterable[Row]) -> Sequence[int]:
        """Returns the sizes up to twice the largest that fits with any choice, or that of the baseline."""
        fitting = (row.largest.plan.micro_batch_size for row in rows if row.largest is not None)
        most = 2 * max([self.baseline.micro_batch_size, *fitting])
        return [size for size in self.sizes if size <= most] or self.sizes[:1]

    @property
    def _fixed(self) -> bool:
        return any(refused.name == MICRO_BATCH_SIZE for refused in self.briefing.space.refused)

    @property
    def _cap(self) -> str:
        """Why no larger micro batch is tried."""
        if self._fixed:
            return "the loader's own batch, which can be neither cut nor joined"
        total = self.briefing.space.global_batch_size
        return "the whole global batch" if total is not None else "no larger size was tried"

    def _row(self, choice: Choice, before: Row) -> Row:
        combination, row = choice.of(self.baseline), Row(knob=choice.knob, value=choice.value)
        if reason := SearchSpace(self.briefing.space).conflict(combination):
            return row.model_copy(update={"reason": reason})
        try:
            largest = self._largest(combination, before.largest)
            found = {
                "largest": largest,
                "surely": None if largest is None else self._surely(combination, largest),
                "capped": self._cap if largest and largest.plan.micro_batch_size == self.sizes[-1] else "",
                "needs": tuple(self._need(combination, size, largest, before.needs) for size in self._wanted()),
            }
        except Untraceable as error:
            found = {"reason": f"{error.reason} ({error.where})"}
        except SpaceError as error:
            found = {"reason": str(error)}
        return row.model_copy(update=found)

    def _largest(self, combination: Plan, near: EstimatedPlan | None) -> EstimatedPlan | None:
        """Returns the largest micro batch that fits. The search starts at that of another choice."""
        found = last_below(
            self.sizes,
            lambda size: self.estimated(self._at(combination, size)).peak.value_bytes,
            self.limit_bytes,
            (near.plan if near is not None else self.baseline).micro_batch_size,
            {0: self._floor_bytes, **self._known(combination)},
            TOLERANCE,
        )
        return None if found is None else self.estimated(self._at(combination, found))

    def _surely(self, combination: Plan, largest: EstimatedPlan) -> int | None:
        """Returns about the largest micro batch whose upper bound fits; None if no bound fits or none is known."""
        if largest.surely:
            return largest.plan.micro_batch_size
        seen = [one for one in self._seen.values() if one.plan.combination == combination]
        uppers = {one.plan.micro_batch_size: upper for one in seen if (upper := one.peak.upper_bytes) is not None}

        def upper_of(size: int) -> int:
            upper = self.estimated(self._at(combination, size)).peak.upper_bytes
            assert upper is not None, "the estimate of a traced plan has an upper bound"
            return upper

        start, known = largest.plan.micro_batch_size, {0: self._floor_bytes, **uppers}
        return last_below(self.sizes, upper_of, self.limit_bytes, start, known, SURE_TOLERANCE)

    def _need(self, combination: Plan, size: int, largest: EstimatedPlan | None, before: Sequence[Need]) -> Need:
        """Returns the smallest value of the traded knob with which a micro batch fits.

        The search starts at the value that another choice needs, or else at the last one.
        """
        whole = self._at(combination, size)
        if largest is not None and size <= largest.plan.micro_batch_size:
            return Need(micro_batch_size=size, blocks=self._counts[0], estimated=self._seen.get(whole.key))
        least, *counts = self._counts
        most = counts[-1]
        near = next((need.blocks for need in before if need.micro_batch_size == size and need.blocks), most)
        free = last_below(
            sorted(most - count for count in counts),
            lambda left: self.estimated(self._trading(whole, most - left)).peak.value_bytes,
            self.limit_bytes,
            most - near,
            {most - least: round(on_line(self._known(combination), size))},
        )
        blocks = None if free is None else most - free
        plan = self._trading(whole, most if blocks is None else blocks)
        return Need(micro_batch_size=size, blocks=blocks, estimated=self.estimated(plan))

    def _wanted(self) -> tuple[int, ...]:
        """Returns the baseline's micro batch size and one at least twice as large; () if no knob trades memory."""
        size = self.baseline.micro_batch_size
        if self._traded is None:
            return ()
        larger = bisect_left(self.sizes, 2 * size)
        return (size, *self.sizes[larger : larger + 1])

    @cached_property
    def _counts(self) -> Sequence[int]:
        """The possible values of the traded knob: whole numbers up to the last one, or its own values only."""
        assert self._traded is not None, "asked for only where there is such a knob"
        values, trade = [int(value) for value in self._traded.values], self._traded.trades_memory
        return range(values[0], values[-1] + 1) if trade is not None and trade.between else values

    def _known(self, combination: Plan) -> dict[int, int]:
        """Returns the peaks that were already estimated, by micro batch size."""
        plans = (one for one in self._seen.values() if one.plan.combination == combination)
        return {one.plan.micro_batch_size: one.peak.value_bytes for one in plans}

    def _at(self, combination: Plan, size: int) -> Plan:
        return SearchSpace(self.briefing.space).at(combination, size)

    def _trading(self, plan: Plan, count: int) -> Plan:
        assert self._traded is not None, "asked for only where there is such a knob"
        return plan.replace(**{self._traded.name: count})

    @cached_property
    def _traded(self) -> Knob | None:
        return traded(self.briefing.space.knobs)
