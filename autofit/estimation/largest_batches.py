"""LargestBatches: finds the largest micro batches that fit, by tracing one plan after another."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from autofit.core.briefing import Briefing
from autofit.core.errors import SpaceError, Untraceable
from autofit.core.knob import Knob
from autofit.core.plan import MICRO_BATCH_SIZE, Plan
from autofit.core.space import SearchSpace, divisors
from autofit.core.work import StepWork
from autofit.estimation.records import EstimatedPlan, Need, Row
from autofit.estimation.root_finding import last_below, nearest_below, on_line
from autofit.estimators import Traced, Tracer, samples_per_s
from autofit.memory.breakdown import Breakdown, anatomy
from autofit.memory.trace import Trace

PRECISION, CHECKPOINTED = "precision", "checkpointed_blocks"
SAME_MEMORY = {"tf32": "fp32"}
"""Precisions by the precision with the same memory use. TF32 changes how products are computed, not what is stored."""
MOST = 65536
"""Largest micro batch that is tried if the batch is free."""
TOLERANCE = 0.01
"""Relative tolerance of the largest micro batch. Traces of sizes this close differ by less than their error."""
SURE_TOLERANCE = 0.03
"""Relative tolerance of the largest micro batch whose upper bound fits. A bound needs less precision."""
UNBOUNDED_BYTES = 2**62
"""Upper bound of a peak without one: more memory than any device has."""


@dataclass
class LargestBatches:
    """Estimates one plan after another. Each plan is traced once."""

    briefing: Briefing
    tracer: Tracer
    reach: int | None = None  # largest micro batch whose peak has an upper bound; None if all have one
    ran: tuple[int, ...] = ()  # micro batch sizes at which short steps were run
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

    def estimated(self, plan: Plan) -> EstimatedPlan:
        """Returns a plan with its estimated peak.

        Raises:
            Untraceable, SpaceError: the plan cannot be traced.
        """
        if plan.key not in self._seen:
            trace = self.tracer(plan)
            self._work[plan.key] = trace.work
            self._seen[plan.key] = self._judged(plan, self._traced(plan, trace))
        return self._seen[plan.key]

    def estimate_baseline(self) -> tuple[EstimatedPlan, Breakdown, tuple[str, ...]]:
        """Returns the baseline with its peak, the parts of the peak, and notes on its trace."""
        trace = self.tracer(self.baseline)
        self._work[self.baseline.key] = trace.work
        traced = self._traced(self.baseline, trace)
        use = traced.memory_use(self.baseline)
        assert use is not None, "the baseline was traced"
        self._seen[self.baseline.key] = self._judged(self.baseline, traced)
        parts = anatomy(
            trace,
            use.peak.peak_event,
            use.peak.name,
            use.allocated_bytes,
            use.reserved_bytes,
            use.outside_bytes,
            use.waiting_bytes,
        )
        self._floor_bytes = parts.fixed_bytes + use.outside_bytes
        return self._seen[self.baseline.key], parts, trace.notes

    def rows(self) -> tuple[Row, ...]:
        """Returns what fits, by precision. The search in each precision starts at the result of the one before."""
        knob, rows, before = self._knob(PRECISION), dict[str, Row](), Row(precision="")
        for value in ("",) if knob is None else knob.values:
            name = str(value)
            twin = rows.get(SAME_MEMORY.get(name, ""))
            if twin is not None:
                rows[name] = self._twin(name, twin)
                continue
            rows[name] = before = self._row(name, before)
        return tuple(rows.values())

    def _twin(self, precision: str, row: Row) -> Row:
        """Returns the row of a precision with the same memory use as that of `row`, but faster products."""
        largest = row.largest
        if largest is not None:
            work = self._work[largest.plan.key]
            rate = None if work is None else self._rate(largest.plan, work.in_precision(row.precision, precision))
            plan = largest.plan.replace(**{PRECISION: precision})
            largest = largest.model_copy(update={"plan": plan, "samples_per_s": rate})
        return row.model_copy(update={"precision": precision, "same_as": row.precision, "largest": largest})

    def _rate(self, plan: Plan, work: StepWork | None) -> float | None:
        ceilings = self.briefing.ceilings
        return None if work is None or ceilings is None else samples_per_s(plan, work, ceilings)

    def least(self) -> EstimatedPlan:
        """Returns the plan with the lowest peak among those with the smallest batch and all blocks checkpointed."""
        found: list[EstimatedPlan] = []
        stopped: Untraceable | SpaceError | None = None
        for name in self._precisions():
            plan = self._at(self._combination(name), self.sizes[0])
            blocks = self._knob(CHECKPOINTED)
            plan = plan if blocks is None else plan.replace(**{CHECKPOINTED: blocks.values[-1]})
            try:
                found.append(self.estimated(plan))
            except (Untraceable, SpaceError) as error:  # in this precision only
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

    def _row(self, precision: str, before: Row) -> Row:
        combination = self._combination(precision)
        if reason := self.briefing.space.forbidden.get(combination.key):
            return Row(precision=precision, reason=reason)
        try:
            largest = self._largest(combination, before.largest)
            return Row(
                precision=precision,
                largest=largest,
                surely=None if largest is None else self._surely(combination, largest),
                capped=self._cap if largest and largest.plan.micro_batch_size == self.sizes[-1] else "",
                needs=tuple(self._need(combination, size, largest, before.needs) for size in self._wanted()),
            )
        except Untraceable as error:
            return Row(precision=precision, reason=f"{error.reason} ({error.where})")
        except SpaceError as error:
            return Row(precision=precision, reason=str(error))

    def _largest(self, combination: Plan, near: EstimatedPlan | None) -> EstimatedPlan | None:
        """Returns the largest micro batch that fits. The search starts at that of another precision."""
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
        slack = (largest.peak.upper_bytes or largest.peak.value_bytes) - largest.peak.value_bytes
        seen = {
            one.plan.micro_batch_size: one.peak for one in self._seen.values() if one.plan.combination == combination
        }
        uppers = {size: peak.upper_bytes for size, peak in seen.items() if peak.upper_bytes is not None}
        first = nearest_below(
            self.sizes, {size: peak.value_bytes + slack for size, peak in seen.items()}, self.limit_bytes
        )

        def upper_of(size: int) -> int:
            upper = self.estimated(self._at(combination, size)).peak.upper_bytes
            return UNBOUNDED_BYTES if upper is None else upper

        start = largest.plan.micro_batch_size if first is None else first
        return last_below(
            self.sizes, upper_of, self.limit_bytes, start, {0: self._floor_bytes, **uppers}, SURE_TOLERANCE
        )

    def _need(self, combination: Plan, size: int, largest: EstimatedPlan | None, before: Sequence[Need]) -> Need:
        """Returns the smallest number of checkpointed blocks with which a micro batch fits.

        The search starts at the number that another precision needs, or else with all blocks.
        """
        whole = self._at(combination, size)
        if largest is not None and size <= largest.plan.micro_batch_size:
            return Need(micro_batch_size=size, blocks=0, estimated=self._seen.get(whole.key))
        counts = self._counts()
        most = counts[-1]
        near = next((need.blocks for need in before if need.micro_batch_size == size and need.blocks), most)
        free = last_below(
            sorted(most - count for count in counts if count),
            lambda left: self.estimated(whole.replace(**{CHECKPOINTED: most - left})).peak.value_bytes,
            self.limit_bytes,
            most - near,
            {most: round(on_line(self._known(combination), size))},
        )
        blocks = None if free is None else most - free
        plan = whole.replace(**{CHECKPOINTED: most if blocks is None else blocks})
        return Need(micro_batch_size=size, blocks=blocks, estimated=self.estimated(plan))

    def _wanted(self) -> tuple[int, ...]:
        """Returns the baseline's micro batch size and one at least twice as large; () without checkpointing."""
        size = self.baseline.micro_batch_size
        if self._knob(CHECKPOINTED) is None:
            return ()
        larger = bisect_left(self.sizes, 2 * size)
        return (size, *self.sizes[larger : larger + 1])

    def _counts(self) -> tuple[int, ...]:
        """Returns the possible numbers of checkpointed blocks: any number, or only none and all if the knob says so."""
        knob = self._knob(CHECKPOINTED)
        values = (0,) if knob is None else tuple(int(value) for value in knob.values)
        return values if len(values) <= 2 else tuple(range(values[-1] + 1))

    def _known(self, combination: Plan) -> dict[int, int]:
        """Returns the peaks that were already estimated, by micro batch size."""
        plans = (one for one in self._seen.values() if one.plan.combination == combination)
        return {one.plan.micro_batch_size: one.peak.value_bytes for one in plans}

    def _at(self, combination: Plan, size: int) -> Plan:
        return SearchSpace(self.briefing.space).at(combination, size)

    def _combination(self, precision: str) -> Plan:
        combination = self.baseline.combination
        return combination.replace(**{PRECISION: precision}) if precision else combination

    def _precisions(self) -> tuple[str, ...]:
        knob = self._knob(PRECISION)
        return ("",) if knob is None else tuple(str(v) for v in knob.values if str(v) not in SAME_MEMORY)

    def _knob(self, name: str) -> Knob | None:
        return next((knob for knob in self.briefing.space.knobs if knob.name == name), None)

    def _traced(self, plan: Plan, trace: Trace) -> Traced:
        assert self.briefing.account is not None, "a bench that traces has an account"
        traced = Traced(lambda _: trace, self.briefing.account, self.limit_bytes)
        traced.refine(plan)
        return traced

    def _judged(self, plan: Plan, traced: Traced) -> EstimatedPlan:
        peak = traced.estimate(plan)
        assert peak is not None, "it was traced"
        if self.reach is not None and plan.micro_batch_size > self.reach:
            peak = peak.model_copy(update={"upper_bytes": None, "lower_bytes": None})
        surely = peak.upper_bytes is not None and peak.upper_bytes <= self.limit_bytes
        return EstimatedPlan(
            plan=plan,
            peak=peak,
            fits=peak.value_bytes <= self.limit_bytes,
            surely=surely,
            samples_per_s=self._rate(plan, self._work[plan.key]),
        )
