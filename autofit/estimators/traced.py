"""Traced: the memory of a plan from a trace of its training steps, before it runs, corrected by the plans that ran.

For the user's own combination three traces give the law of every size, with and without accumulation, so that the
search knows from the start which micro batches fit. Its single changes are traced before the first probe too, each at
one size (`autofit.search.pretrace`); any other combination when a plan of it is about to be probed, at that size.
What a trace does not show (a library that allocates for itself) is the difference to the plans that ran; it is added to
all others. Where the workload cannot be traced, short real runs give the law (`short_runs.py`).
"""

from collections.abc import Sequence
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
from autofit.estimators.laws import Laws, key_of
from autofit.estimators.short_runs import REACH, listed
from autofit.memory.peak import MemoryUse
from autofit.memory.profile import Profile
from autofit.memory.scaling import LEAST_TRACES, Scaling

ERROR_RATIO = 0.06
"""A peak differs from its estimate by up to this share before anything ran. Steps after a cold start differ by 0.24 %
at most (scripts/bench/memory/estimates.py); after gates have run, parameters and workspaces may lie so that the
allocator needs 5 % less (a small convolutional network, estimates stage of scripts/gpu_suite)."""
CORRECTED_ERROR_RATIO = 0.02
"""The same, once a plan that ran has corrected the estimate."""
TELLING_RATIO = 1.5
"""Results that depend on data were answered with their largest size. A plan that ran on the worst batch and needed just
what its trace says shows that they are as large as that, where its peak is at least this multiple of what stays between
two steps: then its activations made it."""
UNSEEN_BYTES = 512 * 2**20
"""Until a plan ran, libraries may take so much more on an accelerator than a trace shows: cuDNN chooses workspaces by
its own measure (reference/memory_prediction.md section 4)."""
DRAWN_ERROR_RATIO = 0.08
"""Added where sizes of a trace are drawn between those at other micro batches: such a peak was off by 7.7 % at most, at
416 points (scripts/bench/memory/estimates.py, "drawn"). Before it runs, such a plan is traced itself."""
SURVEY_RATIO = 0.5
"""Plans that are not about to run are traced in this share of the time for tracing."""
COUNTS = {2: "two", 3: "three"}


@dataclass(frozen=True, slots=True)
class _Miss:
    """What is to be added to an estimate, in bytes: best guess, least and most; and the relative error beside it.

    `answers_hold` says whether a plan that ran took what its trace answered in place of the data.
    """

    shift: int
    least: int
    most: int
    ratio: float
    answers_hold: bool = False

    @classmethod
    def of(cls, missed: int, growth: float, own: bool, told: MemoryUse) -> "_Miss":
        """Returns what a plan that missed its estimate says of one whose micro batch is `growth` times as large.

        It is taken for what libraries need once; on a host for what the combination's own kernels need for the moment.
        It may grow with the batch, and another combination may need none of it: the ends allow for both.
        """
        grown = round(missed * growth)
        ends = (missed, grown) if own else (missed, grown, 0)
        shift = missed if own or told.reserved_bytes is not None else 0
        hold = (
            abs(missed) <= CORRECTED_ERROR_RATIO * told.judged_bytes
            and told.judged_bytes >= TELLING_RATIO * told.static_bytes
        )
        return cls(shift, min(ends), max(ends), CORRECTED_ERROR_RATIO, hold)


class Traced(Estimator):
    """Estimates from traces, corrected by measured plans.

    Args:
        tracer: traces a plan.
        account: how the device keeps account of memory.
        limit_bytes: the memory budget.
        allowance_s: seconds that all traces together may take, and all short runs; None for no end.
        recorder: runs a few steps of a plan, for a workload that cannot be traced, and raises as a tracer does. None:
            such a workload has no estimate.

    Raises:
        UsageError: the allocator has options that cannot be simulated.
    """

    def __init__(
        self,
        tracer: Tracer,
        account: Account,
        limit_bytes: int,
        allowance_s: float | None = None,
        recorder: Tracer | None = None,
    ) -> None:
        self._laws = Laws(tracer, account, limit_bytes, allowance_s, recorder)
        self._peaks: dict[Plan, int] = {}  # of the plans that ran

    @classmethod
    def of(cls, context: Context) -> Self | None:
        """Returns an estimator where plans can be traced and the allocator's options can be simulated."""
        if context.trace is None or context.account is None:
            return None
        with suppress(UsageError):  # options that are newer than this: torch takes them, the simulation cannot
            return cls(context.trace, context.account, context.limit_bytes, context.allowance_s, context.record)
        return None

    @property
    def refused(self) -> str:
        """Why the workload cannot be traced at all, or ""."""
        return self._laws.refused

    @property
    def caveat(self) -> str:
        """What a person should know of a workload that cannot be traced, "" of others."""
        own = self._laws.first
        if not self._laws.refused or own is None:
            return ""
        if own.law is not None:
            runs = f"{COUNTS[len(own.law.traced)]} short runs at micro batches {listed(own.law.traced)}"
            return f"this workload cannot be traced: {self._laws.refused}; {runs} gave the sizes of its allocations"
        why = f"; nor did short runs give its law: {self._laws.records.reason}" if self._laws.records.reason else ""
        return f"memory was not estimated before the first probe: {self._laws.refused}{why}"

    def refine(self, plan: Plan, along: Sequence[Plan] = ()) -> None:
        """Traces `plan`; with `along`, what the law of its whole combination needs."""
        self._laws.refine(plan, along)

    def refine_all(self, plans: Sequence[Plan]) -> None:
        """Traces the plans, as far as the time for it goes; nothing where steps would have to be run."""
        for plan in plans:
            if self._laws.refused or self._laws.spent(SURVEY_RATIO):
                return
            self._laws.refine(plan)

    def memory_use(self, plan: Plan) -> MemoryUse | None:
        """Returns what the trace of `plan` says, uncorrected, with its phases; None when it was not traced."""
        return self._laws.memory_use(plan)

    def profile(self, plan: Plan) -> Profile | None:
        """Returns the profile of a plan from its trace or law, without a new trace; None if it has neither."""
        return self._laws.profile(plan)

    def tell(self, trial: Trial) -> None:
        """Learns the peak of a probe or a proof, of an earlier run too: it counts once its plan has an estimate."""
        measurement = trial.outcome.measurement
        if measurement is not None and trial.purpose is not Purpose.BLOCK:
            self._peaks[trial.plan] = measurement.memory.judged_bytes

    def estimate(self, plan: Plan) -> Estimate | None:
        """Returns the peak with its bounds; a guess without where only other sizes were traced; else None."""
        use = self.memory_use(plan)
        if use is None:
            return self._guess(plan)
        miss, traced = self._miss(plan, on_host=use.reserved_bytes is None), use.judged_bytes
        least, most = self._ends(plan, use, miss)
        ratio = miss.ratio if use.exact else miss.ratio + DRAWN_ERROR_RATIO
        worst_case = use.answered > 0 and not miss.answers_hold
        return Estimate(
            value_bytes=max(traced + miss.shift, 0),
            lower_bytes=None if least is None or worst_case else max(round(least * (1 - ratio)), 0),
            upper_bytes=None if most is None else round(most * (1 + ratio)),
            worst_case=worst_case,
            static_bytes=use.static_bytes,
            basis=self._basis(plan, use, miss.shift),
        )

    def _ends(self, plan: Plan, use: MemoryUse, miss: "_Miss") -> tuple[int | None, int | None]:
        """Returns the least and the most that a plan is known to need, but for a ratio; None where that is not known.

        From short runs it is known once one more ran than the law needs, and not far beyond the largest; what is
        momentary may have stopped growing where none has shown that it grew.
        """
        known = self._laws.of(plan)
        least, most = use.judged_bytes + miss.least, use.judged_bytes + miss.most
        if known is not None and known.recorded and known.law is not None:
            ran = self._ran(plan, known.law)
            if len(ran) < LEAST_TRACES or plan.micro_batch_size > REACH * max(ran):
                return None, None
            grown_to = max(size for size, grew in ran.items() if grew)
            return min(least, self._laws.floor_bytes(plan, known.law, grown_to)), most
        return least, most

    def _ran(self, plan: Plan, law: Scaling) -> dict[int, bool]:
        """Returns which micro batches of a combination ran, short or not, and whether all grew as its law has it.

        None where one contradicts the law. On an accelerator libraries may have taken more than the allocator knows.
        """
        ran = dict.fromkeys(law.traced, True)
        for other, peak in self._peaks.items():
            if key_of(other) == key_of(plan) and (told := self.memory_use(other)) is not None:
                unseen = 0 if told.reserved_bytes is None else UNSEEN_BYTES
                least = self._laws.floor_bytes(other, law, law.traced[-1]) * (1 - ERROR_RATIO)
                if not least <= peak <= told.judged_bytes * (1 + ERROR_RATIO) + unseen:
                    return {}
                ran.setdefault(other.micro_batch_size, peak >= told.judged_bytes * (1 - CORRECTED_ERROR_RATIO))
        return ran

    def _guess(self, plan: Plan) -> Estimate | None:
        """Returns what a line through the two nearest traced sizes has: a first look; it is traced before it runs."""
        known, size = self._laws.of(plan), plan.micro_batch_size
        near = sorted(sorted(known.traces, key=lambda other: abs(other - size))[:2]) if known is not None else []
        if len(near) < 2:
            return None
        low, high = (self._laws.peak_bytes(plan, other) for other in near)
        value = low + (high - low) * (size - near[0]) // (near[1] - near[0])
        return Estimate(
            value_bytes=max(value, 0), basis=f"a line through traces at micro batches {near[0]} and {near[1]}"
        )

    def _miss(self, plan: Plan, on_host: bool) -> "_Miss":
        """Returns by how much the most similar plan that ran missed its estimate, as it bears on this one."""

        def distance(other: Plan) -> tuple[int, bool, int]:
            changes = len(other.combination.values.items() ^ plan.combination.values.items())
            return changes, key_of(other)[1] != key_of(plan)[1], abs(other.micro_batch_size - plan.micro_batch_size)

        for other in sorted(self._peaks, key=distance):
            if (use := self.memory_use(other)) is not None:
                missed = self._peaks[other] - use.judged_bytes
                growth = plan.micro_batch_size / other.micro_batch_size
                return _Miss.of(missed, growth, own=key_of(other) == key_of(plan), told=use)
        return _Miss(0, 0, 0 if on_host else UNSEEN_BYTES, ERROR_RATIO)

    def _basis(self, plan: Plan, use: MemoryUse, shift: int) -> str:
        known, size = self._laws.of(plan), use.micro_batch_size
        assert known is not None, "it has an estimate"
        how = "traced" if size in known.traces else f"traced at other micro batches and scaled to {size}"
        if known.recorded and known.law is not None:
            how = f"scaled to {size} from short runs at micro batches {listed(known.law.traced)}"
        return how + (f", corrected by {format_bytes(shift)} as measured" if shift else "")
