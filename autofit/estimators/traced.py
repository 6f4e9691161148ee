"""Traced: estimates the memory of a plan from a trace of its training steps, corrected by the plans that ran.

Three traces of the baseline's combination give the law of every size, with and without accumulation, so that the search
knows from the start which micro batches fit. Other combinations are traced at one size. A trace does not show what a
library allocates for itself: the difference between estimate and peak of the plans that ran is added to all others.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Self

from autofit.core.account import Account
from autofit.core.errors import AutofitError, DevicePoisoned, RestoreError, Untraceable, UsageError
from autofit.core.estimate import Estimate
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.trial import Purpose, Trial
from autofit.core.units import format_bytes
from autofit.estimators.base import Context, Estimator, Tracer
from autofit.memory.alignment import Mismatch
from autofit.memory.allocator.settings import Settings
from autofit.memory.peak import MemoryUse, memory_use
from autofit.memory.profile import Profile, profile
from autofit.memory.scaling import Scaling, scaling
from autofit.memory.trace import Trace

ERROR_RATIO = 0.06
"""Maximum relative error of an estimate before any plan ran. Steps after a cold start differ by at most 0.24 %
(scripts/bench/memory/estimates.py). After gates have run, parameters and workspaces may be placed so that the allocator
needs 5 % less (a small convolutional network, estimates stage of scripts/gpu_suite)."""
CORRECTED_ERROR_RATIO = 0.02
"""Maximum relative error of an estimate that a plan that ran has corrected."""
REVEALING_RATIO = 1.5
"""A trace takes the maximum for sizes that depend on data. A plan that ran on the worst batch and needed what its trace
says shows that these sizes do occur, if its peak is at least this multiple of the static memory: then its activations
made the peak."""
UNSEEN_BYTES, UNSEEN_RATIO = 512 * 2**20, 0.10
"""Maximum memory on an accelerator that libraries take and a trace does not show, until a plan ran, in bytes and as a
share of the traced peak; the larger one counts. cuDNN chooses its own workspaces (reference/memory_prediction.md
section 4). On an H100 they took 2.2 GiB, 9.4 % of the trace, for ResNet-50 at 256 images, and 538 MiB for a small
network; with channels_last and for transformers they took nearly nothing (scripts/bench/results/README.md)."""
DRAWN_ERROR_RATIO = 0.08
"""Additional relative error if the sizes of a trace are interpolated between other micro batches: such a peak was off
by at most 7.7 %, at 416 points (scripts/bench/memory/estimates.py, "drawn"). Such a plan is traced itself before it
runs."""
SURVEY_RATIO = 0.5
"""Share of the time for tracing that may go into plans that are not about to run."""
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


@dataclass(frozen=True, slots=True)
class _Miss:
    """The correction of an estimate by a plan that ran.

    Attributes:
        shift: expected difference in bytes.
        least: lower bound of the difference.
        most: upper bound of the difference.
        ratio: relative error of the estimate beside the difference.
        answers_hold: whether the plan that ran had the data-dependent sizes that its trace assumed.
    """

    shift: int
    least: int
    most: int
    ratio: float
    answers_hold: bool = False

    @classmethod
    def of(cls, missed: int, growth: float, same_combination: bool, use: MemoryUse) -> "_Miss":
        """Returns the correction for a plan with `growth` times the micro batch of a plan that missed its estimate.

        The difference counts as what libraries allocate once; on a host, as temporary memory of the combination's own
        kernels. It may grow with the batch, and another combination may need none of it: the bounds allow for both.
        """
        grown = round(missed * growth)
        ends = (missed, grown) if same_combination else (missed, grown, 0)
        shift = missed if same_combination or use.reserved_bytes is not None else 0
        close = abs(missed) <= CORRECTED_ERROR_RATIO * use.judged_bytes
        hold = close and use.judged_bytes >= REVEALING_RATIO * use.static_bytes
        return cls(shift, min(ends), max(ends), CORRECTED_ERROR_RATIO, hold)


class Traced(Estimator):
    """Estimates from traces, corrected by measured plans. A trace takes seconds, so as few as possible are made.

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
        self._peaks: dict[Plan, int] = {}  # of the plans that ran
        self.refused = ""

    @classmethod
    def of(cls, context: Context) -> Self | None:
        """Returns an estimator if plans can be traced and the allocator's options can be simulated."""
        if context.trace is None or context.account is None:
            return None
        with suppress(UsageError):  # options that torch knows and the simulation does not
            return cls(context.trace, context.account, context.limit_bytes, context.allowance_s)
        return None

    @property
    def caveat(self) -> str:
        """Caveat about a workload that cannot be traced; "" for any other."""
        return f"memory was not estimated before the first probe: {self.refused}" if self.refused else ""

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

    def refine_all(self, plans: Sequence[Plan]) -> None:
        """Traces the plans as far as the time allows."""
        for plan in plans:
            if self.refused or self._is_spent(SURVEY_RATIO):
                return
            self.refine(plan)

    def show(self, plan: Plan) -> None:
        """Traces a plan whose profile is to be shown, also if the time for traces is used up."""
        if not self.refused:
            self._trace(plan, self._known.setdefault(key_of(plan), CombinationTraces()), beyond=True)

    def profile(self, plan: Plan) -> Profile | None:
        """Returns the profile of a plan from its trace or law, without a new trace; None if it has neither."""
        known, use = self._known.get(key_of(plan)), self.memory_use(plan)
        trace = None if known is None else known.trace_at(plan.micro_batch_size)
        return None if trace is None or use is None else profile(trace, use, self._account)

    def tell(self, trial: Trial) -> None:
        """Learns the peak of a probe or a proof, also of earlier runs; it counts once its plan has an estimate."""
        measurement = trial.outcome.measurement
        if measurement is not None and trial.purpose is not Purpose.BLOCK:
            self._peaks[trial.plan] = measurement.memory.judged_bytes

    def bounded(self) -> Collection[str]:
        """Returns the combinations of which a size was traced."""
        return {combination for combination, _ in self._known}

    def estimate(self, plan: Plan) -> Estimate | None:
        """Returns the peak with its bounds; a guess without bounds if only other sizes were traced; else None."""
        use = self.memory_use(plan)
        if use is None:
            return self._guess(plan)
        miss, traced, size = self._miss(plan, use), use.judged_bytes, use.micro_batch_size
        ratio = miss.ratio if use.exact else miss.ratio + DRAWN_ERROR_RATIO
        worst_case = use.answered > 0 and not miss.answers_hold
        is_traced = size in self._known[key_of(plan)].traces
        basis = "traced" if is_traced else f"traced at other micro batches and scaled to {size}"
        return Estimate(
            value_bytes=max(traced + miss.shift, 0),
            lower_bytes=None if worst_case else max(round((traced + miss.least) * (1 - ratio)), 0),
            upper_bytes=round((traced + miss.most) * (1 + ratio)),
            worst_case=worst_case,
            static_bytes=use.static_bytes,
            basis=basis + (f", corrected by {format_bytes(miss.shift)} as measured" if miss.shift else ""),
        )

    def _guess(self, plan: Plan) -> Estimate | None:
        """Returns a guess from the line through the two nearest traced sizes. The plan is traced before it runs."""
        known, size = self._known.get(key_of(plan)), plan.micro_batch_size
        near = sorted(sorted(known.traces, key=lambda other: abs(other - size))[:2]) if known is not None else []
        if len(near) < 2:
            return None
        low, high = (self._peak_bytes(plan, other) for other in near)
        value = low + (high - low) * (size - near[0]) // (near[1] - near[0])
        return Estimate(
            value_bytes=max(value, 0), basis=f"a line through traces at micro batches {near[0]} and {near[1]}"
        )

    def _miss(self, plan: Plan, traced: MemoryUse) -> "_Miss":
        """Returns the correction by the most similar plan that ran and has an estimate."""

        def distance(other: Plan) -> tuple[int, bool, int]:
            changes = len(other.combination.values.items() ^ plan.combination.values.items())
            return changes, key_of(other)[1] != key_of(plan)[1], abs(other.micro_batch_size - plan.micro_batch_size)

        for other in sorted(self._peaks, key=distance):
            if (use := self.memory_use(other)) is not None:
                missed = self._peaks[other] - use.judged_bytes
                growth = plan.micro_batch_size / other.micro_batch_size
                return _Miss.of(missed, growth, same_combination=key_of(other) == key_of(plan), use=use)
        unseen = 0 if traced.reserved_bytes is None else max(UNSEEN_BYTES, round(UNSEEN_RATIO * traced.judged_bytes))
        return _Miss(0, 0, unseen, ERROR_RATIO)

    def memory_use(self, plan: Plan) -> MemoryUse | None:
        """Returns the uncorrected memory use of a plan by its trace, with its phases; None if it was not traced."""
        size, steps = place = plan.micro_batch_size, plan.accumulation_steps
        if (known := self._known.get(key_of(plan))) is None:
            return None
        if place not in known.uses:
            if (trace := known.trace_at(size)) is None:
                return None
            exact = size in known.traces or (known.law is not None and known.law.exact_at(size))
            known.uses[place] = memory_use(trace, self._account, self._limit_bytes, exact, steps)
        return known.uses[place]

    def _peak_bytes(self, plan: Plan, size: int) -> int:
        """Returns the peak of a plan at another micro batch in bytes; 0 if that was not traced."""
        use = self.memory_use(_at(plan, size))
        return 0 if use is None else use.judged_bytes

    def _is_spent(self, ratio: float) -> bool:
        """Returns whether this share of the time for traces is used up."""
        return self._allowance_s is not None and self._spent_s > ratio * self._allowance_s

    def _trace(self, plan: Plan, known: CombinationTraces, *, beyond: bool = False) -> Trace | None:
        """Traces a plan unless that was done. A failure is kept as the reason why its combination has no estimate.

        With `beyond`, also if the time for traces is used up.
        """
        size = plan.micro_batch_size
        if size in known.traces or size in known.reasons:
            return known.traces.get(size)
        if self._is_spent(1.0) and not beyond:
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
            near = plan
            if (plan.accumulation_steps > 1) is not accumulating:
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
        low, high = self._peak_bytes(plan, start), self._peak_bytes(plan, 2 * start)
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
