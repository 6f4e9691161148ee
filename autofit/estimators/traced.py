"""Traced: the memory of a plan from a trace of its training steps, before it runs, corrected by the plans that ran.

For the user's own combination three traces give the law of every size, with and without accumulation, so that the
search knows from the start which micro batches fit. Its single changes are traced before the first probe too, each at
one size (`autofit.search.pretrace`); any other combination when a plan of it is about to be probed, at that size.
What a trace does not show (a library that allocates for itself) is the difference to the plans that ran; it is added to
all others. Where the workload cannot be traced, short real runs give the law (`short_runs.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from autofit.core.account import Account
from autofit.core.errors import AutofitError, DevicePoisoned, RestoreError, Untraceable
from autofit.core.estimate import Estimate
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.trial import Purpose, Trial
from autofit.core.units import format_bytes
from autofit.estimators.base import Estimator
from autofit.estimators.short_runs import REACH, Records, listed, small_sizes
from autofit.memory.alignment import Mismatch
from autofit.memory.allocator.settings import Settings
from autofit.memory.peak import Prediction, predict
from autofit.memory.scaling import LEAST_TRACES, Scaling, scaling
from autofit.memory.trace import Trace

ERROR_RATIO = 0.06
"""A peak differs from its prediction by up to this share before anything ran. Steps after a cold start differ by 0.24 %
at most (scripts/bench/prediction.py); after gates have run, parameters and workspaces may lie so that the allocator
needs 5 % less (a small convolutional network, prediction stage of scripts/gpu_suite)."""
CORRECTED_ERROR_RATIO = 0.02
"""The same, once a plan that ran has corrected the prediction."""
TELLING_RATIO = 1.5
"""Results that depend on data were answered with their largest size. A plan that ran on the worst batch and needed just
what its trace says shows that they are as large as that, where its peak is at least this multiple of what stays between
two steps: then its activations made it."""
UNSEEN_BYTES = 512 * 2**20
"""Until a plan ran, libraries may take so much more on an accelerator than a trace shows: cuDNN chooses workspaces by
its own measure (reference/memory_prediction.md section 4)."""
DRAWN_ERROR_RATIO = 0.08
"""Added where sizes of a trace are drawn between those at other micro batches: such a peak was off by 7.7 % at most, at
416 points (scripts/bench/prediction.py, "drawn"). Before it runs, such a plan is traced itself."""
SURVEY_RATIO = 0.5
"""Plans that are not about to run are traced in this share of the time for tracing."""
BEYOND_RATIO = 2
"""The law is made for peaks up to so many times the budget, where the space has such sizes."""
LOOP_RATIO = 1.2
"""A step whose events grow by more than this with twice the batch loops over samples: its traces take ever longer."""

Tracer = Callable[[Plan], Trace]
"""Traces a plan; raises `Untraceable` where that cannot be done, and `SpaceError` where the plan cannot be applied."""
COUNTS = {2: "two", 3: "three"}


@dataclass(slots=True)
class _Known:
    """What is known of one combination, with or without accumulation: gradients outlive a micro batch only with it.

    Attributes:
        traces: by micro batch.
        law: of every micro batch.
        predictions: what traces and law say, by micro batch and accumulation steps.
        reasons: why a micro batch has no trace.
        dead: whether it is not to be traced any more.
        recorded: whether its law was sought by short runs, not by traces.
        floors: what a law from short runs has at least, in bytes, by micro batch and the largest that ran.
    """

    traces: dict[int, Trace] = field(default_factory=dict)
    law: Scaling | None = None
    predictions: dict[tuple[int, int], Prediction] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    dead: bool = False
    recorded: bool = False
    floors: dict[tuple[int, int], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Miss:
    """What is to be added to a prediction, in bytes: best guess, least and most; and the relative error beside it.

    `answers_hold` says whether a plan that ran took what its trace answered in place of the data.
    """

    shift: int
    least: int
    most: int
    ratio: float
    answers_hold: bool = False

    @classmethod
    def of(cls, missed: int, growth: float, own: bool, told: Prediction) -> "_Miss":
        """Returns what a plan that missed its prediction says of one whose micro batch is `growth` times as large.

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
    """Predicts from traces, corrected by measured plans.

    Args:
        tracer: traces a plan.
        account: how the device keeps account of memory.
        limit_bytes: the memory budget.
        allowance_s: seconds that all traces together may take, and all short runs; None for no end.
        recorder: runs a few steps of a plan, for a workload that cannot be traced, and raises as a tracer does. None:
            such a workload has no estimate.

    Attributes:
        refused: why the workload cannot be traced at all, or "".

    Raises:
        UsageError: the allocator has options that cannot be predicted with.
    """

    def __init__(
        self,
        tracer: Tracer,
        account: Account,
        limit_bytes: int,
        allowance_s: float | None = None,
        recorder: Tracer | None = None,
    ) -> None:
        Settings.parse(account.settings)  # refuses here, not in the middle of a search, what it cannot read
        self._tracer, self._account, self._limit_bytes = tracer, account, limit_bytes
        self._allowance_s, self._spent_s = allowance_s, 0.0
        self._known: dict[tuple[str, bool], _Known] = {}
        self._peaks: dict[Plan, int] = {}
        self.refused = ""
        self._recorder, self._records = recorder, Records(allowance_s)
        self._small: tuple[int, ...] = ()

    @property
    def caveat(self) -> str:
        """What a person should know of a workload that cannot be traced, "" of others."""
        own = next(iter(self._known.values()), None)
        if not self.refused or own is None:
            return ""
        if own.law is not None:
            runs = f"{COUNTS[len(own.law.traced)]} short runs at micro batches {listed(own.law.traced)}"
            return f"this workload cannot be traced: {self.refused}; {runs} gave the sizes of its allocations"
        why = f"; nor did short runs give its law: {self._records.reason}" if self._records.reason else ""
        return f"memory was not predicted but found by probes: {self.refused}{why}"

    def foresee(self, plan: Plan, along: Sequence[Plan] = ()) -> None:
        """Traces `plan`; with `along`, what the law of its whole combination needs."""
        known = self._known.setdefault(_key(plan), _Known())
        size = plan.micro_batch_size
        if len(along) > 1:
            self._small = small_sizes([each.micro_batch_size for each in along], size)
        if self.refused:
            self._record(plan, known)
            return
        if known.dead or (known.law is not None and known.law.exact_at(size)):
            return
        self._trace(plan, known)
        known.dead = size in known.reasons
        if known.dead and len(self._known) == 1:
            self.refused = known.reasons[size]
            self._record(plan, known)
        elif len(along) > 1 and known.law is None:
            self._find_laws(plan, along)

    def survey(self, plans: Sequence[Plan]) -> None:
        """Traces the plans, as far as the time for it goes; nothing where steps would have to be run."""
        for plan in plans:
            late = self._allowance_s is not None and self._spent_s > SURVEY_RATIO * self._allowance_s
            if self.refused or late:
                return
            self.foresee(plan)

    def tell(self, trial: Trial) -> None:
        """Learns the peak of a probe or a proof, of an earlier run too: it counts once its plan has a prediction."""
        measurement = trial.outcome.measurement
        if measurement is not None and trial.purpose is not Purpose.BLOCK:
            self._peaks[trial.plan] = measurement.memory.judged_bytes

    def estimate(self, plan: Plan) -> Estimate | None:
        """Returns the peak with its bounds; a guess without where only other sizes were traced; else None."""
        prediction = self.prediction(plan)
        if prediction is None:
            return self._guess(plan)
        miss, traced = self._miss(plan, on_host=prediction.reserved_bytes is None), prediction.judged_bytes
        least, most = self._ends(plan, prediction, miss)
        ratio = miss.ratio if prediction.exact else miss.ratio + DRAWN_ERROR_RATIO
        worst_case = prediction.answered > 0 and not miss.answers_hold
        return Estimate(
            value_bytes=max(traced + miss.shift, 0),
            lower_bytes=None if least is None or worst_case else max(round(least * (1 - ratio)), 0),
            upper_bytes=None if most is None else round(most * (1 + ratio)),
            worst_case=worst_case,
            static_bytes=prediction.static_bytes,
            basis=self._basis(plan, prediction, miss.shift),
        )

    def _ends(self, plan: Plan, prediction: Prediction, miss: "_Miss") -> tuple[int | None, int | None]:
        """Returns the least and the most that a plan is known to need, but for a ratio; None where that is not known.

        From short runs it is known once one more ran than the law needs, and not far beyond the largest; what is
        momentary may have stopped growing where none has shown that it grew.
        """
        known = self._known[_key(plan)]
        least, most = prediction.judged_bytes + miss.least, prediction.judged_bytes + miss.most
        if known.recorded and known.law is not None:
            ran = self._ran(plan, known.law)
            if len(ran) < LEAST_TRACES or plan.micro_batch_size > REACH * max(ran):
                return None, None
            grown_to = max(size for size, grew in ran.items() if grew)
            return min(least, self._floor(plan, known.law, grown_to)), most
        return least, most

    def _ran(self, plan: Plan, law: Scaling) -> dict[int, bool]:
        """Returns which micro batches of a combination ran, short or not, and whether all grew as its law has it.

        None where one contradicts the law. On an accelerator libraries may have taken more than the allocator knows.
        """
        ran = dict.fromkeys(law.traced, True)
        for other, peak in self._peaks.items():
            if _key(other) == _key(plan) and (told := self.prediction(other)) is not None:
                unseen = 0 if told.reserved_bytes is None else UNSEEN_BYTES
                least = self._floor(other, law, law.traced[-1]) * (1 - ERROR_RATIO)
                if not least <= peak <= told.judged_bytes * (1 + ERROR_RATIO) + unseen:
                    return {}
                ran.setdefault(other.micro_batch_size, peak >= told.judged_bytes * (1 - CORRECTED_ERROR_RATIO))
        return ran

    def _floor(self, plan: Plan, law: Scaling, grown_to: int) -> int:
        """Returns what a law has where momentary allocations grow no more from a size on."""
        floors, key = self._known[_key(plan)].floors, (plan.micro_batch_size, grown_to)
        if key not in floors:
            trace = law.at(*key)
            floors[key] = (
                0
                if isinstance(trace, Mismatch)
                else predict(
                    trace, self._account, self._limit_bytes, accumulation_steps=plan.accumulation_steps
                ).judged_bytes
            )
        return floors[key]

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
        prediction = self.prediction(_at(plan, size))
        return 0 if prediction is None else prediction.judged_bytes

    def _trace(self, plan: Plan, known: _Known) -> Trace | None:
        """Traces a plan unless that was done; what goes wrong is the reason why its combination has no estimate."""
        size = plan.micro_batch_size
        if size in known.traces or size in known.reasons:
            return known.traces.get(size)
        if self._allowance_s is not None and self._spent_s > self._allowance_s:
            return None
        began = perf_counter()
        try:
            known.traces[size] = self._tracer(plan)
            # Its own trace goes before what the law draws.
            known.predictions = {place: each for place, each in known.predictions.items() if place[0] != size}
        except Untraceable as error:
            known.reasons[size] = f"{error.reason} ({error.where})"
        except (DevicePoisoned, RestoreError):
            raise
        except AutofitError as error:  # a probe shows what is wrong with the user's code
            known.reasons[size] = str(error)
        self._spent_s += perf_counter() - began
        return known.traces.get(size)

    def _record(self, plan: Plan, known: _Known) -> None:
        """Seeks the law of a combination by short runs, once."""
        if self._recorder is None or known.recorded:
            return
        known.recorded, record = True, self._recorder
        find = self._records.own if len(self._known) == 1 else self._records.another
        known.law = find(lambda size: record(_at(plan, size)), self._small)

    def _find_laws(self, plan: Plan, along: Sequence[Plan]) -> None:
        """Finds the law of a combination, with and without accumulation; where that leaves one plan it is traced."""
        for accumulating in (True, False):
            alike = [each for each in along if (each.accumulation_steps > 1) is accumulating]
            if (plan.accumulation_steps > 1) is accumulating:
                near = plan
            else:
                near = min(alike, key=lambda each: abs(each.micro_batch_size - plan.micro_batch_size), default=plan)
            known = self._known.setdefault(_key(near), _Known())
            if len(alike) > 1:
                self._find_law(near, known, alike[-1].micro_batch_size)
            elif alike:
                self._trace(near, known)

    def _find_law(self, plan: Plan, known: _Known, largest: int) -> None:
        """Finds the law of a combination from its own size, twice that, and the largest that may fit.

        A small batch may run another sequence of operators; where it does, half and a quarter of the largest are taken.
        """
        own = plan.micro_batch_size
        first, second = (self._trace(_at(plan, size), known) for size in (own, 2 * own))
        if first is None or second is None or len(second.events) > LOOP_RATIO * len(first.events):
            return
        low, high = self._peak(plan, own), self._peak(plan, 2 * own)
        wanted = BEYOND_RATIO * self._limit_bytes
        reach = largest if high <= low else min(own + own * (wanted - low) // (high - low), largest)
        reach = max(reach, 4) if reach not in (own, 2 * own) else 3 * own
        for sizes in ((own, 2 * own, reach), (reach // 4, reach // 2, reach)):
            traces = [self._trace(_at(plan, max(size, 1)), known) for size in dict.fromkeys(sizes)]
            law = scaling([trace for trace in traces if trace is not None])
            if isinstance(law, Scaling):
                known.law = law
                return

    def prediction(self, plan: Plan) -> Prediction | None:
        """Returns what the trace of `plan` says, uncorrected, with its phases; None when it was not traced."""
        known, size = self._known.get(_key(plan)), plan.micro_batch_size
        if known is None:
            return None
        steps = plan.accumulation_steps
        place = size, steps
        if place not in known.predictions:
            trace, exact = known.traces.get(size), True
            if trace is None and known.law is not None:
                scaled, exact = known.law.at(size), known.law.exact_at(size)
                trace = None if isinstance(scaled, Mismatch) else scaled
            if trace is None:
                return None
            known.predictions[place] = predict(trace, self._account, self._limit_bytes, exact, steps)
        return known.predictions[place]

    def _miss(self, plan: Plan, on_host: bool) -> "_Miss":
        """Returns by how much the most similar plan that ran missed its prediction, as it bears on this one."""

        def distance(other: Plan) -> tuple[int, bool, int]:
            changes = len(other.combination.values.items() ^ plan.combination.values.items())
            return changes, _key(other)[1] != _key(plan)[1], abs(other.micro_batch_size - plan.micro_batch_size)

        for other in sorted(self._peaks, key=distance):
            if (prediction := self.prediction(other)) is not None:
                missed = self._peaks[other] - prediction.judged_bytes
                growth = plan.micro_batch_size / other.micro_batch_size
                return _Miss.of(missed, growth, own=_key(other) == _key(plan), told=prediction)
        return _Miss(0, 0, 0 if on_host else UNSEEN_BYTES, ERROR_RATIO)

    def _basis(self, plan: Plan, prediction: Prediction, shift: int) -> str:
        known, size = self._known[_key(plan)], prediction.micro_batch_size
        how = "traced" if size in known.traces else f"traced at other micro batches and scaled to {size}"
        if known.recorded and known.law is not None:
            how = f"scaled to {size} from short runs at micro batches {listed(known.law.traced)}"
        return how + (f", corrected by {format_bytes(shift)} as measured" if shift else "")


def _key(plan: Plan) -> tuple[str, bool]:
    return plan.combination.key, plan.accumulation_steps > 1


def _at(plan: Plan, size: int) -> Plan:
    """Returns the plan at another micro batch, which need not make up the global batch: it is only traced."""
    return Plan(values={**plan.values, MICRO_BATCH_SIZE: size, ACCUMULATION_STEPS: plan.accumulation_steps})
