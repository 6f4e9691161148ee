"""Probe: one short run of one plan in this process, from preparation to clean-up."""

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter

import torch

from autofit.core.errors import ClockError, SpaceError, WorkloadError
from autofit.core.outcome import COMPILING, CONTRACT, LAST_BATCH, Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import OPEN, SLOW_S, Purpose, RunTerms
from autofit.core.units import format_names
from autofit.devices.base import Counters, Device, Reading
from autofit.failures.classify import classify
from autofit.failures.evidence import Evidence, collect, named_error, scrub
from autofit.prepare import PlanBatches
from autofit.probing.compilation import Compiler, start_cold
from autofit.probing.probe_outcome import LIMITED, NOT_READ, WorstBatchResult, growth, judged, objection, untimed
from autofit.probing.timing import (
    MOST_SKIPPED,
    PACES,
    PATIENCE_SHARE,
    SLOW_PACE,
    Lap,
    Pace,
    WindowResult,
    new_shape_s,
    observed,
    phase_steps,
    run_step,
    time_phases,
    time_steps,
)
from autofit.probing.watchdog import Overdue, Watchdog
from autofit.workloads.batch_store import BatchStore, Typical, unused
from autofit.workloads.divided import inside
from autofit.workloads.lengths import elements
from autofit.workloads.step import StepBatch, TrainStep, static_bytes
from autofit.workloads.tree import Batch, nbytes

_NAMED = 3
"""Maximum number of parameters that are named."""


@dataclass(slots=True)
class GradientWatch:
    """Looks for parameters that the optimizer holds and that get no gradient: whatever trains, they stay as they are.

    Attributes:
        missing: names of the trained parameters that had no gradient in any step so far.
        trained: number of trained parameters.
        steps: number of steps that were looked at.
    """

    missing: list[str] = field(default_factory=list)
    trained: int = 0
    steps: int = 0

    def look(self, step: TrainStep) -> None:
        """Looks at the gradients if the optimizer is about to use them. Call it at the start of each phase."""
        draft = step.draft
        if step.phase != "optimizer" or draft.optimizer is None or draft.one_pass:
            return  # where gradients are used up in the backward pass, none is left here
        if self.steps and not self.missing:
            return
        held = {id(parameter) for group in draft.optimizer.param_groups for parameter in group["params"]}
        named = inside(draft.model).named_parameters()
        trained = {name: each for name, each in named if each.requires_grad and id(each) in held}
        known = self.missing if self.steps else trained
        self.missing = [name for name in known if name in trained and trained[name].grad is None]
        self.trained, self.steps = len(trained), self.steps + 1

    def noted(self, outcome: Outcome) -> Outcome:
        """Returns the outcome with what was found. If no parameter has a gradient, the user's code has used them up."""
        found = len(self.missing)
        if not 0 < found < self.trained:
            return outcome
        text = f"{found} of {self.trained} trained parameters ({format_names(self.missing, _NAMED)}) had no gradient"
        text = f"{text} in any of {self.steps} steps"
        return outcome.with_measured(without_gradient=text)


def by_size(typical: Typical, *, rising: bool) -> Typical:
    """Returns the micro batches of all steps, sorted by number of elements. The total work is the same."""
    places = [at for step in range(typical.steps) for at in typical.places(step)]
    places.sort(key=lambda at: elements(typical.batches[at]), reverse=not rising)
    tokens = None if typical.tokens is None else [typical.tokens[at] for at in places]
    return replace(typical, batches=[typical.batches[at] for at in places], tokens=tokens)


PROBE_STEPS, PROOF_STEPS = 2, 3
"""Number of whole optimizer steps on the worst batch in a probe and in a proof. The optimizer's state appears at the
end of the first step, so the second may have a higher peak (reference/reliability.md 7.4)."""

TOO_SLOW_RATIO = 4.0
"""Slowdown at which a probe ends early: this many times slower, on the worst batch, than the fastest plan so far."""
PHASES_SHARE = 0.01
"""Share of the time left that the steps may take in which the phases of a proven plan are timed, for the report."""
QUICK_S, UNKNOWN_S = 0.05, 1e9
"""Duration below which even slow steps are timed: it costs little, and a disturbance may last longer than the step. And
the seconds per sample of a plan of which no whole step ran on the worst batch."""


@dataclass(slots=True)
class Probe:
    """One short run of one plan.

    Attributes:
        terms: which score makes a probe continue to its proof.
        build: makes the train step of a plan; called inside the failure handling.
        budget_bytes: maximum peak of the plan.
        enforce: whether the device limits this process to the budget while steps run.
        cold: whether the code that torch.compile has made is discarded first. A block of a race always runs warm.
        fastest_s: seconds per sample on the worst batch of the fastest plan so far that could be the answer; infinity
            if none was measured, `UNKNOWN_S` if none ran a whole step on it.
        watch: measures the remaining time, and ends a compilation that takes too long. A proof that begins late runs
            only the steps that it needs.
        beat: called as a sign of life: with "fetch" and "prepare" as these begin, with "step" around steps.
        announce: called with the micro batches of each step, before they are copied and the step runs.
        worst_s: seconds per sample on the worst batch. Set by `run`; None if no whole step was run on it.
    """

    plan: Plan
    purpose: Purpose
    build: Callable[[Plan], TrainStep]
    batches: PlanBatches
    device: Device
    budget_bytes: int
    enforce: bool
    terms: RunTerms = OPEN
    cold: bool = False
    fastest_s: float = math.inf
    watch: Watchdog = field(default_factory=Watchdog)
    beat: Callable[[str], None] = field(default=lambda phase: None)
    announce: Callable[[Sequence[Batch]], object] = field(default=lambda parts: None)
    worst_s: float | None = None
    _phase: str = "prepare"
    _compiler: Compiler | None = None
    _gradients: GradientWatch = field(default_factory=GradientWatch)

    @property
    def store(self) -> BatchStore:
        """The batches of the plan. Raises `SpaceError` if the user's loader does not support the plan."""
        return self.batches.store(self.plan)

    def run(self) -> Outcome:
        """Runs the plan and returns the outcome. Raises only `KeyboardInterrupt` and `ClockError`.

        When this returns, the step is closed and its memory released. The trained weights stay as they are; the
        caller's guard puts them back.
        """
        began = perf_counter()
        before = self.device.counters()
        outcome = self._attempt(before)
        # The exception handler has ended, and with it the frames that held the failed step's tensors.
        gc.collect()
        try:
            self.device.synchronize()
            self.device.release()
        except RuntimeError as error:
            line = str(error).strip().splitlines()[0]
            reason = f"the device no longer answers: {line}"
            outcome = Outcome(status=Status.POISONED, reason=reason, phase="clean-up")
        return outcome.model_copy(update={"duration_s": perf_counter() - began})

    def _attempt(self, before: Counters) -> Outcome:
        evidence: Evidence
        try:
            return self._gradients.noted(self._run())
        except (KeyboardInterrupt, ClockError):
            raise
        except SpaceError as error:
            return Outcome(status=Status.REJECTED, reason=str(error), phase=self._phase)
        except BaseException as error:  # noqa: BLE001  # any failure of a plan is an outcome; SystemExit too
            new_ooms = self.device.counters().since(before).ooms
            phase = CONTRACT if isinstance(error, WorkloadError) else self._phase
            evidence = collect(error, phase=phase, new_ooms=new_ooms)
            scrub(error)
        verdict = classify(evidence, device_is_host=self.device.is_host)
        status, text = verdict.status, evidence.traceback_text
        if status is Status.NOT_COMPILED and self._compiler is None:
            status = Status.USER_ERROR  # the user compiled the model
        return Outcome(status=status, reason=verdict.reason, phase=phase, traceback_text=text)

    def _run(self) -> Outcome:
        size, count = self.plan.micro_batch_size, self.plan.accumulation_steps
        self._enter("fetch")
        typical, worst = self.store.typical(size, count), None
        if self.purpose is Purpose.BLOCK:
            # No worst batch ran before. With the largest batch first, the others find memory as they do late in a
            # training.
            typical = by_size(typical, rising=False)
        else:
            worst = self.store.source.worst(size)
        self._enter("prepare")
        if self.cold and self.purpose is not Purpose.BLOCK:  # a block that compiles would not be comparable
            start_cold()
        with self.build(self.plan) as step, self._limited(step):
            compile_s = self._compile(step, worst, typical) if step.draft.compiled else None
            if isinstance(compile_s, Outcome):
                return compile_s
            peak = None if worst is None else self._peak(step, worst, typical, compile_s)
            if peak is not None and (outcome := self._objection(step, typical, peak)) is not None:
                return outcome
            before = self.device.counters()
            if worst is not None and self._proves and self._grows:
                before = self._grown(step, typical, worst, before)
            lap = self._lap(step, typical, peak)
            outcome = judged(self.plan, lap, peak, typical, self._events_since(before, peak))
            if worst is not None and peak is not None and self._goes_on(outcome):
                outcome = self._proven(step, worst, typical, lap, peak)
            elif self._proves and outcome.measured:
                outcome = self._completed(outcome, step, typical)
        notes = self._compiler.notes() if self._compiler and worst is not None else ()
        return outcome.with_measured(compiler_notes=tuple(notes))

    @property
    def _proves(self) -> bool:
        """Whether the first steps are those of a proof."""
        return self.purpose is Purpose.PROOF or (self.purpose is Purpose.PROBE and self.terms.at_once)

    def _completed(self, outcome: Outcome, step: TrainStep, typical: Typical) -> Outcome:
        """Returns the measured outcome of a plan whose whole steps on the worst batch ran, with what else a proof has.

        The phases are timed if the steps for it take little of the time left.
        """
        outcome = outcome.with_measured(proven=True, last_batch=self._last_batch(step))
        self._look_again(step, typical)
        assert outcome.measurement is not None, "only a measured plan is proven"
        needed_s, phases_s = phase_steps(typical.cycle) * outcome.measurement.step_time_s, dict[str, float]()
        if needed_s <= PHASES_SHARE * self.watch.clock.left_s and not self._really_limited:
            batch_of, beat = partial(self._typical_batch, typical), partial(self.beat, "step")
            with suppress(Overdue), self._reported(step):
                phases_s = time_phases(step, batch_of, self.device, typical.cycle, beat)
        return outcome.with_measured(phases_s=phases_s)

    def _look_again(self, step: TrainStep, typical: Typical) -> None:
        """Runs steps on other batches while there are parameters without a gradient: not every batch may use them."""
        with suppress(Overdue), observed(step, partial(self._gradients.look, step)):
            for number in range(typical.steps):
                if not self._gradients.missing or self._really_limited or self.watch.clock.left_s <= 0:
                    return
                self._run_step(step, typical.of_step(number))

    def _goes_on(self, outcome: Outcome) -> bool:
        """Returns whether a probe is fast enough to continue to its proof."""
        if self.purpose is not Purpose.PROBE or self._proves or outcome.measurement is None:
            return False
        return outcome.measured and self.terms.beaten_by(outcome.measurement)

    def _proven(self, step: TrainStep, worst: Batch, typical: Typical, lap: Lap, probed: WorstBatchResult) -> Outcome:
        """Continues to the proof of a plan that was probed. If the time ends before it, the plan is measured only."""
        before = self.device.counters()
        try:
            if self._grows:
                before = self._grown(step, typical, worst, before)
            peak = self._peak(step, worst, typical, probed.compile_s, whole=True)
        except Overdue:
            return judged(self.plan, lap, probed, typical, self._events_since(before, probed))
        if (refusal := objection(peak, self.budget_bytes)) is not None:
            return refusal
        outcome = judged(self.plan, lap, peak.joined(probed), typical, self._events_since(before, peak))
        return self._completed(outcome, step, typical) if outcome.measured else outcome

    def _last_batch(self, step: TrainStep) -> str:
        """Runs the incomplete last batch of an epoch, if the plan's loader yields one, as part of a proof.

        If it fails, so does the plan, unless the user's own fails, too: their loop leaves it out, or never reaches it.
        Nothing is compiled for it. Returns why it is not proven, or "".
        """
        source, what = self.store.source, "the incomplete last batch of an epoch"
        ranks = 1 if step.draft.ranks is None else step.draft.ranks.count
        sizes = (self.plan.micro_batch_size, source.user_batch_size)
        last, users = (source.remainder(size, ranks) for size in sizes)
        try:
            error = self._error_of(step, last)
            if error is None:
                return ""
            self._phase = LAST_BATCH
            failure = classify(collect(error, phase=LAST_BATCH), device_is_host=self.device.is_host)
            users_fails = failure.status.of_users_code and (last == users or self._error_of(step, users) is not None)
        except Overdue:
            return f"{what} is not proven: the time ended before it. Give more time, or drop_last=True"
        if users_fails:
            return f"{what} fails, and so does that of your own loader: {named_error(error)}. Give drop_last=True"
        raise error

    def _error_of(self, step: TrainStep, size: int) -> Exception | None:
        """Runs a step of one micro batch of a size; returns what it raised, if anything. None for a size of 0."""
        if not size:
            return None
        self.watch.check()
        try:
            with torch.compiler.set_stance("force_eager") if step.draft.compiled else nullcontext():
                self._run_step(step, [self.store.source.typical(size, 1)[0]])
        except Exception as error:  # noqa: BLE001  # the caller asks whether it was the user's code
            return error
        return None

    def _grown(self, step: TrainStep, typical: Typical, worst: Batch, before: Counters) -> Counters:
        """Runs growing batches from an empty cache, and returns the allocator's counts `before` with their flushes.

        Training meets lengths in any order. Growing lengths are the worst for a caching allocator: its cache fills with
        blocks of shorter batches that are too small for the longer ones. It may flush its cache during these steps,
        because flushes end once all lengths have occurred. The timed steps follow and must not cause a flush.
        """
        self.device.release()
        growing = by_size(typical, rising=True)
        for number in range(growing.cycle):
            self._run_step(step, growing.of_step(number))
        self._run_step(step, [worst] * typical.parts)
        return replace(before, retries=self.device.counters().retries)

    def _lap(self, step: TrainStep, typical: Typical, peak: WorstBatchResult | None) -> Lap:
        """Returns the timed steps. Slow steps on the worst batch count if all batches have its shape."""
        if peak is None:
            return self._time(step, typical, PACES[self.purpose])
        if self._really_limited:
            return peak.lap
        slow = len(peak.steps_s) > 1 and min(peak.steps_s[1:]) > SLOW_S
        if slow and self._proves and not self.store.source.varies and not self.device.is_host:
            return peak.timed
        pace = SLOW_PACE if slow and self.purpose is Purpose.PROBE else PACES[self.purpose]
        try:
            return self._time(step, typical, pace)
        except Overdue:
            if not self._proves:
                raise
            return peak.timed

    def _compile(self, step: TrainStep, worst: Batch | None, typical: Typical) -> float | Outcome:
        """Runs the first steps of a plan that compiles. Returns their seconds, or why it is not compiled in time.

        They are not metered: what the compiler allocates for its own work is gone before the first whole step.
        """
        batches = [typical.of_step(0)[0]] if worst is None or self.store.source.varies else []
        if worst is not None:
            start_cold()
            batches.insert(0, worst)
        self._enter(COMPILING)
        self._compiler = Compiler(self.watch, self.device.is_host)
        return self._compiler.compile(lambda: sum(self._run_step(step, [batch]).seconds for batch in batches))

    def _events_since(self, before: Counters, peak: WorstBatchResult | None) -> Counters:
        """Returns the allocator's counts on the worst batch, plus those since `before`."""
        new, worst = self.device.counters().since(before), NOT_READ if peak is None else peak.memory
        return Counters(ooms=new.ooms + worst.swallowed_ooms, retries=new.retries + worst.allocator_retries)

    @property
    def _really_limited(self) -> bool:
        """Whether the host's memory is limited for this process. If so, only the fit counts and times mean nothing."""
        return self.enforce and self.device.is_host

    @property
    def _grows(self) -> bool:
        """Whether batches of other lengths may leave a caching allocator with less usable memory than the worst."""
        return self.store.source.varies and not self.device.is_host

    def _peak(
        self, step: TrainStep, worst: Batch, typical: Typical, compile_s: float | None, *, whole: bool = False
    ) -> WorstBatchResult:
        """Runs steps on the worst batch, without clearing the cache between them, and returns their peak.

        With `whole`, they are the steps of a proof, whatever the purpose.
        """
        count = self.plan.accumulation_steps
        # After the second micro batch of the second step no new kind of tensor is live, so a probe stops there.
        parts, steps = (count, PROOF_STEPS) if whole or self._proves else (min(count, 2), PROBE_STEPS)
        # If the device is the host, a step's batches are in its memory. Those that run are metered; the rest are added.
        held = (count - parts) * nbytes(worst) if self.device.is_host else 0
        # If all batches have one shape, they all take equally long, so the typical number of tokens is used.
        alike = typical.tokens if not self.store.source.varies else None
        tokens = alike[0] if alike else self.store.source.tokens(worst)
        peak = WorstBatchResult(
            samples=parts * self.plan.micro_batch_size,
            wanted=steps,
            tokens=None if tokens is None else parts * tokens,
            compile_s=compile_s,
        )
        live: list[int | None] = []

        def react() -> None:
            reading.drain()
            self._gradients.look(step)

        # Where the host's memory is really limited, there is no meter: its record needs memory too.
        limited, static = self._really_limited, partial(static_bytes, step)
        with nullcontext(Reading(LIMITED)) if limited else self.device.meter(static) as reading, observed(step, react):
            while len(peak.steps_s) < steps and peak.skipped < MOST_SKIPPED:
                try:
                    ran = self._run_step(step, [worst] * parts)
                except Overdue:
                    if not self._proves or not peak.steps_s:
                        raise
                    peak.cut_off = True
                    break
                peak.add(ran)
                if ran.updated:
                    live.append(reading.live_bytes())
            peak.growth_bytes = growth(live, reading.live_bytes)
        assert reading.memory is not None, "the meter has filled its reading"
        peak.metered(reading.memory, held)
        if peak.steps_s and parts == count:  # part of a step with a whole update would not measure its speed
            self.worst_s = min(peak.steps_s) / peak.samples  # the minimum, so that one disturbed step does not decide
        return peak

    def _time(self, step: TrainStep, typical: Typical, pace: Pace) -> Lap:
        if self.purpose is Purpose.PROOF:
            pace = replace(pace, patience_s=PATIENCE_SHARE * self.watch.clock.left_s)
        with self._reported(step):
            batch_of = partial(self._typical_batch, typical)
            lap = time_steps(step, batch_of, self.device, pace, typical.cycle, partial(self.beat, "step"))
        if self.purpose is not Purpose.BLOCK and self.store.meets_new_shapes(typical, self.device.shapes_kept):
            fresh = self.store.fresh(self.plan.micro_batch_size)
            extra_s = new_shape_s(lambda batch: self._run_step(step, [batch]), fresh)
            lap.new_shape_s = self.plan.accumulation_steps * extra_s
        return lap

    def _typical_batch(self, typical: Typical, number: int) -> StepBatch:
        return self._step_batch(typical.of_step(number))

    def _run_step(self, step: TrainStep, parts: Sequence[Batch]) -> WindowResult:
        with self._reported(step):
            return run_step(step, self._step_batch(parts), self.device)

    def _step_batch(self, parts: Sequence[Batch]) -> StepBatch:
        self.announce(parts)
        return StepBatch.alike(unused(parts, self.device.type))

    @contextmanager
    def _reported(self, step: TrainStep) -> Iterator[None]:
        """Records the phase in which the steps inside fail, and gives a sign of life after they finish."""
        try:
            yield
        except BaseException:
            self._phase = step.phase
            raise
        self.beat("step")

    @contextmanager
    def _limited(self, step: TrainStep) -> Iterator[None]:
        if not self.enforce:
            yield
            return

        if self.device.is_host:
            # Threads, compiled kernels and the optimizer's state appear in the first step and do not count towards the
            # peak here. The kernels depend on the size, and this process is a fresh one that is about to end.
            self._run_step(step, [self.store.source.worst(self.plan.micro_batch_size)])
        # Start from an empty cache, as training does. After an earlier step, the optimizer's state and the cache would
        # lie in another order, in which up to a fifth less memory was reserved than in training.
        self.device.release()
        with self.device.limit(self.budget_bytes, lambda: static_bytes(step)):
            yield

    def _objection(self, step: TrainStep, typical: Typical, peak: WorstBatchResult) -> Outcome | None:
        """Returns the outcome of a plan that is not timed; None if it is to be timed."""
        if (outcome := objection(peak, self.budget_bytes)) is not None:
            return outcome
        if self.terms.fit_alone:
            return untimed(peak, "not timed: it was only to be seen whether it fits")
        if peak.cut_off:
            ran = f"{len(peak.steps_s)} of {peak.wanted} steps on the worst batch"
            return untimed(peak, f"the time ended after {ran}: it is neither timed further nor proven")
        if self.purpose is Purpose.PROOF and self.watch.clock.left_s <= 0 and peak.is_sound and not self._grows:
            return self._completed(untimed(peak, "not timed: the time budget ran out"), step, typical)
        slowness = 0.0 if self.worst_s is None else self.worst_s / self.fastest_s
        is_slow = slowness > TOO_SLOW_RATIO and min(peak.steps_s) > QUICK_S
        if self.purpose is Purpose.PROBE and not self._proves and is_slow and peak.is_sound:
            return untimed(peak, f"not timed further: {slowness:.1f} times slower than the fastest")
        return None

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self.beat(phase)
