"""The traces of each combination, and the law by which they give its peak at any micro batch.

A trace takes seconds, so as few as possible are made, within a given time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from autofit.core.account import Account
from autofit.core.errors import AutofitError, DevicePoisoned, RestoreError, Untraceable
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.estimators.base import Tracer
from autofit.memory.alignment import Mismatch
from autofit.memory.allocator.settings import Settings
from autofit.memory.peak import MemoryUse, memory_use
from autofit.memory.profile import Profile, profile
from autofit.memory.scaling import Scaling, scaling
from autofit.memory.trace import Trace

BEYOND_RATIO = 2
"""Largest peak that the law covers, as a multiple of the budget, if the space has such sizes."""
LOOP_RATIO = 1.2
"""A step whose number of events grows by more than this factor with twice the batch loops over samples. It is not
traced further, because traces of larger batches would take too long."""


@dataclass(slots=True)
class CombinationTraces:
    """The traces of one combination, with or without accumulation. Gradients outlive a micro batch only with it.

    Attributes:
        traces: traces by micro batch.
        law: gives a trace for every micro batch.
        uses: memory use by traces and law, by micro batch and accumulation steps.
        reasons: reason why a micro batch has no trace, by micro batch.
        dead: whether the combination is not traced any more.
    """

    traces: dict[int, Trace] = field(default_factory=dict)
    law: Scaling | None = None
    uses: dict[tuple[int, int], MemoryUse] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    dead: bool = False

    def trace_at(self, size: int) -> Trace | None:
        """Returns the trace at a micro batch, or what the law says of it; None if there is neither."""
        if size in self.traces or self.law is None:
            return self.traces.get(size)
        scaled = self.law.at(size)
        return None if isinstance(scaled, Mismatch) else scaled


class Laws:
    """Traces plans and finds the law of each combination.

    Args:
        tracer: traces a plan.
        account: how the device accounts for memory.
        limit_bytes: the memory budget.
        allowance_s: seconds that all traces together may take; None for no limit.

    Attributes:
        refused: reason why the workload cannot be traced at all, or "".

    Raises:
        UsageError: the allocator has options that cannot be simulated.
    """

    def __init__(self, tracer: Tracer, account: Account, limit_bytes: int, allowance_s: float | None = None) -> None:
        Settings.parse(account.settings)  # raises now rather than in the middle of a search
        self._tracer, self._account, self._limit_bytes = tracer, account, limit_bytes
        self._allowance_s, self._spent_s = allowance_s, 0.0
        self._known: dict[tuple[str, bool], CombinationTraces] = {}
        self.refused = ""

    def of(self, plan: Plan) -> CombinationTraces | None:
        """Returns the traces of a plan's combination, or None."""
        return self._known.get(key_of(plan))

    @property
    def first(self) -> CombinationTraces | None:
        """Traces of the combination that was asked for first, which is the baseline's."""
        return next(iter(self._known.values()), None)

    @property
    def combinations(self) -> set[str]:
        """Keys of the combinations of which a plan was traced."""
        return {combination for combination, _ in self._known}

    def spent(self, ratio: float) -> bool:
        """Returns whether this share of the time for traces is used up."""
        return self._allowance_s is not None and self._spent_s > ratio * self._allowance_s

    def refine(self, plan: Plan, along: Sequence[Plan] = ()) -> None:
        """Traces `plan`; with `along`, also the sizes that the law of its combination needs."""
        if self.refused:
            return
        known = self._known.setdefault(key_of(plan), CombinationTraces())
        size = plan.micro_batch_size
        if known.dead or (known.law is not None and known.law.exact_at(size)):
            return
        self._trace(plan, known)
        known.dead = size in known.reasons
        if known.dead and len(self._known) == 1:
            self.refused = known.reasons[size]
        elif len(along) > 1 and known.law is None:
            self._find_laws(plan, along)

    def show(self, plan: Plan) -> None:
        """Traces a plan whose profile is to be shown, also if the time for traces is used up."""
        if not self.refused:
            self._trace(plan, self._known.setdefault(key_of(plan), CombinationTraces()), beyond=True)

    def memory_use(self, plan: Plan) -> MemoryUse | None:
        """Returns the uncorrected memory use of a plan by its trace, with its phases; None if it was not traced."""
        known, place = self._known.get(key_of(plan)), (plan.micro_batch_size, plan.accumulation_steps)
        if known is None:
            return None
        if place not in known.uses:
            size, steps = place
            trace = known.trace_at(size)
            if trace is None:
                return None
            exact = size in known.traces or (known.law is not None and known.law.exact_at(size))
            known.uses[place] = memory_use(trace, self._account, self._limit_bytes, exact, steps)
        return known.uses[place]

    def profile(self, plan: Plan) -> Profile | None:
        """Returns the profile of a plan from its trace or law; None if it was not traced."""
        known, use = self.of(plan), self.memory_use(plan)
        trace = None if known is None else known.trace_at(plan.micro_batch_size)
        return None if trace is None or use is None else profile(trace, use, self._account)

    def peak_bytes(self, plan: Plan, size: int) -> int:
        """Returns the peak of a plan at another micro batch in bytes; 0 if that was not traced."""
        use = self.memory_use(_at(plan, size))
        return 0 if use is None else use.judged_bytes

    def _trace(self, plan: Plan, known: CombinationTraces, *, beyond: bool = False) -> Trace | None:
        """Traces a plan unless that was done. A failure is kept as the reason why its combination has no estimate.

        With `beyond`, also if the time for traces is used up.
        """
        size = plan.micro_batch_size
        if size in known.traces or size in known.reasons:
            return known.traces.get(size)
        if self.spent(1.0) and not beyond:
            return None
        began = perf_counter()
        try:
            known.traces[size] = self._tracer(plan)
            # Its own trace takes precedence over the law.
            known.uses = {place: each for place, each in known.uses.items() if place[0] != size}
        except Untraceable as error:
            known.reasons[size] = f"{error.reason} ({error.where})"
        except (DevicePoisoned, RestoreError):
            raise
        except AutofitError as error:  # a probe will show the error in the user's code
            known.reasons[size] = str(error)
        self._spent_s += perf_counter() - began
        return known.traces.get(size)

    def _find_laws(self, plan: Plan, along: Sequence[Plan]) -> None:
        """Finds the law of a combination, with and without accumulation; traces the plan where there is only one."""
        for accumulating in (True, False):
            alike = [each for each in along if (each.accumulation_steps > 1) is accumulating]
            if (plan.accumulation_steps > 1) is accumulating:
                near = plan
            else:
                near = min(alike, key=lambda each: abs(each.micro_batch_size - plan.micro_batch_size), default=plan)
            known = self._known.setdefault(key_of(near), CombinationTraces())
            if len(alike) > 1:
                self._find_law(near, known, alike[-1].micro_batch_size)
            elif alike:
                self._trace(near, known)

    def _find_law(self, plan: Plan, known: CombinationTraces, largest: int) -> None:
        """Finds the law of a combination from the plan's size, twice that size, and the largest that may fit.

        If a small batch runs another sequence of operators, half and a quarter of the largest are used instead.
        """
        start = plan.micro_batch_size
        first, second = (self._trace(_at(plan, size), known) for size in (start, 2 * start))
        if first is None or second is None or len(second.events) > LOOP_RATIO * len(first.events):
            return
        low, high = self.peak_bytes(plan, start), self.peak_bytes(plan, 2 * start)
        wanted = BEYOND_RATIO * self._limit_bytes
        reach = largest if high <= low else min(start + start * (wanted - low) // (high - low), largest)
        reach = max(reach, 4) if reach not in (start, 2 * start) else 3 * start
        for sizes in ((start, 2 * start, reach), (reach // 4, reach // 2, reach)):
            traces = [self._trace(_at(plan, max(size, 1)), known) for size in dict.fromkeys(sizes)]
            law = scaling([trace for trace in traces if trace is not None])
            if isinstance(law, Scaling):
                known.law = law
                return


def key_of(plan: Plan) -> tuple[str, bool]:
    """Returns the key of a law: a combination, with or without accumulation."""
    return plan.combination.key, plan.accumulation_steps > 1


def _at(plan: Plan, size: int) -> Plan:
    """Returns the plan at another micro batch. It is only traced, so it need not divide the global batch."""
    return Plan(values={**plan.values, MICRO_BATCH_SIZE: size, ACCUMULATION_STEPS: plan.accumulation_steps})
