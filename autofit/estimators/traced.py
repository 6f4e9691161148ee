"""Traced: the memory of a plan from a trace of its training steps, before it runs, corrected by the plans that ran.

A combination of knobs is traced when a plan of it is about to be probed, at that plan's micro batch: its estimate is
then as exact as the trace. For the user's own combination three traces give the law of every size, so that the search
knows from the start which micro batches fit. What a trace does not show (a library that allocates for itself) is the
difference to the plans that ran; it is added to all others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from autofit.core.account import Account
from autofit.core.errors import AutofitError, Untraceable
from autofit.core.estimate import Estimate
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.trace import Trace
from autofit.core.trial import Purpose, Trial
from autofit.core.units import format_bytes
from autofit.estimators.alignment import Refusal
from autofit.estimators.base import Estimator
from autofit.estimators.memory import Prediction, predict
from autofit.estimators.scaling import Scaling, scaling

ERROR_RATIO = 0.04
"""A peak differs from its prediction by up to this share (scripts/bench/prediction.py: the worst of all that were
compared with the real allocator, rounded up)."""
CORRECTED_ERROR_RATIO = 0.02
"""The same, once a plan that ran has corrected the prediction."""
UNSEEN_BYTES = 512 * 2**20
"""Until a plan ran, libraries may take so much more on an accelerator than a trace shows: cuDNN chooses workspaces by
its own measure (reference/memory_prediction.md section 4)."""
FAR_RATIO = 4
"""The largest size of all is left out of the law where its peak is more than so many times the budget."""

Tracer = Callable[[Plan], Trace]
"""Traces a plan; raises `Untraceable` where that cannot be done, and `SpaceError` where the plan cannot be applied."""


@dataclass(slots=True)
class _Known:
    """What is known of one combination, with or without accumulation: gradients outlive a micro batch only with it."""

    traces: dict[int, Trace] = field(default_factory=dict)
    law: Scaling | None = None
    predictions: dict[int, Prediction] = field(default_factory=dict)
    reason: str = ""


class Traced(Estimator):
    """Predicts from traces, corrected by measured plans.

    Args:
        tracer: traces a plan.
        account: how the device keeps account of memory.
        limit_bytes: the memory budget.
        allowance_s: seconds that all traces together may take; None for no end.

    Attributes:
        refused: why the workload cannot be traced at all, or "".
    """

    def __init__(self, tracer: Tracer, account: Account, limit_bytes: int, allowance_s: float | None = None) -> None:
        self._tracer, self._account, self._limit_bytes = tracer, account, limit_bytes
        self._allowance_s, self._spent_s = allowance_s, 0.0
        self._known: dict[tuple[str, bool], _Known] = {}
        self._peaks: dict[Plan, int] = {}
        self.refused = ""

    def foresee(self, plan: Plan, sizes: Sequence[int] = ()) -> None:
        """Traces `plan`; with `sizes`, what the law of its whole combination needs."""
        known = self._of(plan)
        if self.refused or known.reason or (known.law is not None and known.law.exact_at(plan.micro_batch_size)):
            return
        self._trace(plan, known)
        known.predictions.pop(plan.micro_batch_size, None)  # its own trace goes before what the law draws
        if len(sizes) > 1 and known.law is None and not known.reason:
            self._find_law(plan, known, sizes)
        if known.reason and len(self._known) == 1:
            self.refused = known.reason

    def tell(self, trial: Trial) -> None:
        """Learns the peak of a probe or a proof, of an earlier run too: it counts once its plan has a prediction."""
        measurement = trial.outcome.measurement
        if measurement is not None and trial.purpose is not Purpose.BLOCK:
            self._peaks[trial.plan] = measurement.memory.judged_bytes

    def estimate(self, plan: Plan) -> Estimate | None:
        """Returns the peak with its bounds; a guess without where only other sizes were traced; else None."""
        prediction = self._prediction(plan)
        if prediction is None:
            return self._guess(plan)
        found, own = self._miss(plan)
        ratio, miss = (ERROR_RATIO, 0) if found is None else (CORRECTED_ERROR_RATIO, found)
        low, high = (miss, miss) if own else (min(miss, 0), max(miss, 0))
        # What a trace does not show are a library's own needs; on a host, the moments of one combination's kernels.
        on_host = prediction.reserved_bytes is None
        shift = 0 if on_host and not own else miss
        unseen = UNSEEN_BYTES if found is None and not on_host else 0
        traced, sure = prediction.judged_bytes, prediction.exact and not prediction.answered
        return Estimate(
            value_bytes=max(traced + shift, 0),
            lower_bytes=max(round((traced + low) * (1 - ratio)), 0) if sure else None,
            upper_bytes=round((traced + high) * (1 + ratio)) + unseen if prediction.exact else None,
            static_bytes=prediction.static_bytes,
            basis=self._basis(plan, prediction, shift),
        )

    def _guess(self, plan: Plan) -> Estimate | None:
        """Returns what a line through the two nearest traced sizes has: a first look; it is traced before it runs."""
        known, size = self._known.get(_key(plan)), plan.micro_batch_size
        near = sorted(sorted(known.traces, key=lambda other: abs(other - size))[:2]) if known is not None else []
        if len(near) < 2:
            return None
        low, high = (self._peak(plan, other) for other in near)
        value = low + (high - low) * (size - near[0]) // (near[1] - near[0])
        return Estimate(
            value_bytes=max(value, 0), basis=f"a line through traces at micro batches {near[0]} and {near[1]}"
        )

    def _peak(self, plan: Plan, size: int) -> int:
        prediction = self._prediction(_at(plan, size))
        return 0 if prediction is None else prediction.judged_bytes

    def prediction(self, plan: Plan) -> Prediction | None:
        """Returns what the trace of `plan` says, uncorrected, with phases and parts; None when it was not traced."""
        return self._prediction(plan)

    def _of(self, plan: Plan) -> _Known:
        return self._known.setdefault(_key(plan), _Known())

    def _trace(self, plan: Plan, known: _Known) -> Trace | None:
        """Traces a plan unless that was done; what goes wrong is the reason why its combination has no estimate."""
        size = plan.micro_batch_size
        if size in known.traces:
            return known.traces[size]
        if known.reason or (self._allowance_s is not None and self._spent_s > self._allowance_s):
            return None
        began = perf_counter()
        try:
            known.traces[size] = self._tracer(plan)
        except Untraceable as error:
            known.reason = f"{error.reason} ({error.where})"
        except AutofitError as error:
            known.reason = str(error)
        self._spent_s += perf_counter() - began
        return known.traces.get(size)

    def _find_law(self, plan: Plan, known: _Known, sizes: Sequence[int]) -> None:
        """Finds the law of a combination from its own size, the largest that may fit and half of that.

        A small batch may run another sequence of operators; where it does, a quarter of the largest takes its place.
        """
        largest = max(self._largest(plan, known, sizes), 3)
        for least in dict.fromkeys((min(plan.micro_batch_size, largest // 2), largest // 4)):
            traces = [self._trace(_at(plan, size), known) for size in {max(least, 1), max(largest // 2, 2), largest}]
            law = scaling([trace for trace in traces if trace is not None])
            if isinstance(law, Scaling):
                known.law = law
                return

    def _largest(self, plan: Plan, known: _Known, sizes: Sequence[int]) -> int:
        """Returns the largest size whose peak, on the line through two traced ones, is not far above the budget."""
        small, large = min(plan.micro_batch_size, sizes[-1]), max(plan.micro_batch_size, sizes[-1])
        ends = [self._trace(_at(plan, size), known) for size in (small, large)]
        if small == large or None in ends:
            return large
        low, high = (self._peak(plan, size) for size in (small, large))
        if high <= max(FAR_RATIO * self._limit_bytes, low):
            return large
        slope = (high - low) / (large - small)
        reach = small + (2 * self._limit_bytes - low) / slope
        return round(min(max(reach, small), large))

    def _prediction(self, plan: Plan) -> Prediction | None:
        known, size = self._known.get(_key(plan)), plan.micro_batch_size
        if known is None:
            return None
        if size not in known.predictions:
            trace, exact = known.traces.get(size), True
            if trace is None and known.law is not None:
                scaled, exact = known.law.at(size), known.law.exact_at(size)
                trace = None if isinstance(scaled, Refusal) else scaled
            if trace is None:
                return None
            known.predictions[size] = predict(trace, self._account, self._limit_bytes, exact)
        return known.predictions[size]

    def _miss(self, plan: Plan) -> tuple[int | None, bool]:
        """Returns by how much the most similar plan that ran missed its prediction, and if it is of this combination.

        None before any ran.
        """

        def distance(other: Plan) -> tuple[int, bool, int]:
            changes = len(other.combination.values.items() ^ plan.combination.values.items())
            return changes, _key(other)[1] != _key(plan)[1], abs(other.micro_batch_size - plan.micro_batch_size)

        for other in sorted(self._peaks, key=distance):
            if (prediction := self._prediction(other)) is not None:
                return self._peaks[other] - prediction.judged_bytes, _key(other) == _key(plan)
        return None, False

    def _basis(self, plan: Plan, prediction: Prediction, shift: int) -> str:
        traced = plan.micro_batch_size in self._known[_key(plan)].traces
        how = "traced" if traced else f"traced at other micro batches and scaled to {prediction.micro_batch_size}"
        return how + (f", corrected by {format_bytes(shift)} as measured" if shift else "")


def _key(plan: Plan) -> tuple[str, bool]:
    return plan.combination.key, plan.accumulation_steps > 1


def _at(plan: Plan, size: int) -> Plan:
    """Returns the plan at another micro batch, which need not make up the global batch: it is only traced."""
    return Plan(values={**plan.values, MICRO_BATCH_SIZE: size, ACCUMULATION_STEPS: plan.accumulation_steps})
