"""Traced: estimates the memory of a plan from a trace of its training steps, corrected by the plans that ran.

For the baseline's combination, three traces give the law of every size, with and without accumulation, so that the
search knows from the start which micro batches fit. Single changes of it are also traced before the first probe, each
at one size (`autofit.feasibility.feasibility`). Any other combination is traced when a plan of it is about to be
probed, at that size. A trace does not show what a library allocates for itself: this is the difference between estimate
and peak of the plans that ran, and it is added to the estimates of all others.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from autofit.core.account import Account
from autofit.core.errors import UsageError
from autofit.core.estimate import Estimate
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, Trial
from autofit.core.units import format_bytes
from autofit.estimators.base import Context, Estimator, Tracer
from autofit.estimators.combination_traces import Laws, key_of
from autofit.memory.peak import MemoryUse
from autofit.memory.profile import Profile

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
        hold = (
            abs(missed) <= CORRECTED_ERROR_RATIO * use.judged_bytes
            and use.judged_bytes >= REVEALING_RATIO * use.static_bytes
        )
        return cls(shift, min(ends), max(ends), CORRECTED_ERROR_RATIO, hold)


class Traced(Estimator):
    """Estimates from traces, corrected by measured plans.

    Args:
        tracer: traces a plan.
        account: how the device accounts for memory.
        limit_bytes: the memory budget.
        allowance_s: seconds that all traces together may take; None for no limit.

    Raises:
        UsageError: the allocator has options that cannot be simulated.
    """

    def __init__(self, tracer: Tracer, account: Account, limit_bytes: int, allowance_s: float | None = None) -> None:
        self._laws = Laws(tracer, account, limit_bytes, allowance_s)
        self._peaks: dict[Plan, int] = {}  # of the plans that ran

    @classmethod
    def of(cls, context: Context) -> Self | None:
        """Returns an estimator if plans can be traced and the allocator's options can be simulated."""
        if context.trace is None or context.account is None:
            return None
        with suppress(UsageError):  # options that torch knows and the simulation does not
            return cls(context.trace, context.account, context.limit_bytes, context.allowance_s)
        return None

    @property
    def refused(self) -> str:
        """Reason why the workload cannot be traced at all, or ""."""
        return self._laws.refused

    @property
    def caveat(self) -> str:
        """Caveat about a workload that cannot be traced; "" for any other."""
        refused = self._laws.refused
        return f"memory was not estimated before the first probe: {refused}" if refused else ""

    def refine(self, plan: Plan, along: Sequence[Plan] = ()) -> None:
        """Traces `plan`; with `along`, also the sizes that the law of its combination needs."""
        self._laws.refine(plan, along)

    def refine_all(self, plans: Sequence[Plan]) -> None:
        """Traces the plans as far as the time allows."""
        for plan in plans:
            if self._laws.refused or self._laws.spent(SURVEY_RATIO):
                return
            self._laws.refine(plan)

    def memory_use(self, plan: Plan) -> MemoryUse | None:
        """Returns the uncorrected memory use of a plan by its trace, with its phases; None if it was not traced."""
        return self._laws.memory_use(plan)

    def show(self, plan: Plan) -> None:
        """Traces the plan, unless the workload cannot be traced."""
        self._laws.show(plan)

    def profile(self, plan: Plan) -> Profile | None:
        """Returns the profile of a plan from its trace or law, without a new trace; None if it has neither."""
        return self._laws.profile(plan)

    def tell(self, trial: Trial) -> None:
        """Learns the peak of a probe or a proof, also of earlier runs; it counts once its plan has an estimate."""
        measurement = trial.outcome.measurement
        if measurement is not None and trial.purpose is not Purpose.BLOCK:
            self._peaks[trial.plan] = measurement.memory.judged_bytes

    def bounded(self) -> Collection[str]:
        """Returns the combinations of which a size was traced."""
        return self._laws.combinations

    def estimate(self, plan: Plan) -> Estimate | None:
        """Returns the peak with its bounds; a guess without bounds if only other sizes were traced; else None."""
        use = self.memory_use(plan)
        if use is None:
            return self._guess(plan)
        miss, traced = self._miss(plan, use), use.judged_bytes
        ratio = miss.ratio if use.exact else miss.ratio + DRAWN_ERROR_RATIO
        worst_case = use.answered > 0 and not miss.answers_hold
        return Estimate(
            value_bytes=max(traced + miss.shift, 0),
            lower_bytes=None if worst_case else max(round((traced + miss.least) * (1 - ratio)), 0),
            upper_bytes=round((traced + miss.most) * (1 + ratio)),
            worst_case=worst_case,
            static_bytes=use.static_bytes,
            basis=self._basis(plan, use, miss.shift),
        )

    def _guess(self, plan: Plan) -> Estimate | None:
        """Returns a guess from the line through the two nearest traced sizes. The plan is traced before it runs."""
        known, size = self._laws.of(plan), plan.micro_batch_size
        near = sorted(sorted(known.traces, key=lambda other: abs(other - size))[:2]) if known is not None else []
        if len(near) < 2:
            return None
        low, high = (self._laws.peak_bytes(plan, other) for other in near)
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
        return _Miss(0, 0, 0 if traced.reserved_bytes is None else _unseen(traced), ERROR_RATIO)

    def _basis(self, plan: Plan, use: MemoryUse, shift: int) -> str:
        known, size = self._laws.of(plan), use.micro_batch_size
        assert known is not None, "it has an estimate"
        how = "traced" if size in known.traces else f"traced at other micro batches and scaled to {size}"
        return how + (f", corrected by {format_bytes(shift)} as measured" if shift else "")


def _unseen(use: MemoryUse) -> int:
    """Returns the maximum that libraries take on an accelerator beside a traced peak."""
    return max(UNSEEN_BYTES, round(UNSEEN_RATIO * use.judged_bytes))
