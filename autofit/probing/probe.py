"""Probe: one short run of one plan in this process, from preparation to clean-up."""

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter

import torch

from autofit.core.budget import Clock
from autofit.core.errors import ClockError, SpaceError
from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.core.units import format_bytes
from autofit.devices.base import Counters, Device, Reading
from autofit.failures.classify import classify
from autofit.failures.evidence import Evidence, collect, scrub
from autofit.probing.meter import (
    MOST_SKIPPED,
    Lap,
    Pace,
    beyond,
    phase_steps,
    start_cold,
    time_phases,
    time_steps,
)
from autofit.probing.window import Ran, run_step
from autofit.workloads.batch_store import BatchStore, Typical, fresh
from autofit.workloads.step import StepBatch, TrainStep, state_tensors
from autofit.workloads.tree import Batch, nbytes, pieces, tensors

PROBE_STEPS, PROOF_STEPS = 2, 3
"""Whole optimizer steps on the worst batch in a probe, and in a proof: the optimizer's state appears at the end of the
first, so that the peak of the second may be higher (reference/reliability.md 7.4)."""

PACES = {
    Purpose.PROBE: Pace(warmup_least=1, warmup_most=4, steps_least=3, steps_most=8, seconds=0.5, patience_s=3.0),
    Purpose.BLOCK: Pace(warmup_least=1, warmup_most=1, steps_least=4, steps_most=4, seconds=0.0, patience_s=10.0),
    Purpose.PROOF: Pace(warmup_least=1, warmup_most=4, steps_least=5, steps_most=10, seconds=1.0),
}
PATIENCE_SHARE = 0.25
"""Where time is short, warming up and timing in a proof take this share each of what is left, or a step."""
HOPELESS = 4.0
"""A probe ends early when it is this many times slower, on the worst batch, than the fastest so far."""
QUICK_S = 0.05
"""Steps below this are timed all the same: it costs little, and what disturbs them may be longer than they are."""
LIMITED = Memory(allocated_bytes=0, judged_bytes=0, judged_by="the limit on this process, which held")
NOT_READ = Memory(allocated_bytes=0, judged_bytes=0, judged_by="not read in a race")


@dataclass(slots=True)
class Probe:
    """One short run of one plan.

    Attributes:
        plan: what to run.
        purpose: how thoroughly.
        build: makes the train step of a plan; called inside the failure handling.
        store: gives the batches.
        device: where the step runs.
        budget_bytes: the plan's peak may not be above this.
        enforce: whether the device limits this process to the budget while steps run.
        cold: whether what torch.compile has made is forgotten first; a block of a race always runs warm.
        clock: the time that is left, by which a proof that comes late does only the steps that it cannot do without.
        beat: called as a sign of life: with "fetch" and "prepare" as these begin, with "step" when steps are done.
    """

    plan: Plan
    purpose: Purpose
    build: Callable[[Plan], TrainStep]
    store: BatchStore
    device: Device
    budget_bytes: int
    enforce: bool
    cold: bool = False
    hopeless_s: float = math.inf
    clock: Clock = field(default_factory=Clock)
    beat: Callable[[str], None] = field(default=lambda phase: None)
    worst_s: float | None = None
    _phase: str = "prepare"

    def run(self) -> Outcome:
        """Runs the plan and returns what became of it; only `KeyboardInterrupt` is raised.

        The step is closed and its memory given back when this returns; what the step trained stays trained, and
        is put back by the caller's guard.
        """
        began = perf_counter()
        before = self.device.counters()
        outcome = self._attempt(before)
        # The handler has ended: only now are the frames gone that held the failed step's tensors.
        gc.collect()
        trouble = self._release()
        if trouble is not None:
            outcome = trouble
        return outcome.model_copy(update={"duration_s": perf_counter() - began})

    def _attempt(self, before: Counters) -> Outcome:
        evidence: Evidence
        try:
            return self._run()
        except (KeyboardInterrupt, ClockError):
            raise
        except SpaceError as error:
            return Outcome(status=Status.REJECTED, reason=str(error), phase=self._phase)
        except BaseException as error:  # noqa: BLE001  # any failure of a plan is an outcome; SystemExit too
            now = self.device.counters()
            evidence = collect(
                error, phase=self._phase, new_ooms=now.ooms - before.ooms, new_retries=now.retries - before.retries
            )
            scrub(error)
        verdict = classify(evidence, device_is_host=self.device.is_host)
        return Outcome(
            status=verdict.status,
            reason=verdict.reason,
            phase=evidence.phase,
            traceback_text=evidence.traceback_text,
        )

    def _release(self) -> Outcome | None:
        """Gives memory back; returns an outcome when that fails, which means that the device is poisoned."""
        try:
            self.device.synchronize()
            self.device.release()
        except RuntimeError as error:
            line = str(error).strip().splitlines()[0]
            return Outcome(status=Status.POISONED, reason=f"the device no longer answers: {line}", phase="clean-up")
        return None

    def _run(self) -> Outcome:
        size, count = self.plan.micro_batch_size, self.plan.accumulation_steps
        self._enter("fetch")
        typical, worst = self.store.typical(size, count), None
        if self.purpose is Purpose.BLOCK:
            # No worst batch comes before them: after the largest, the others find their room as late in a training.
            typical = typical.by_size(rising=False)
        else:
            worst = self.store.source.worst(size)
        self._enter("prepare")
        if self.cold and self.purpose is not Purpose.BLOCK:  # a round in which all compiled would tell nothing
            start_cold()
        with self.build(self.plan) as step, self._limited(step):
            peak = None if worst is None else self._peak(step, worst, typical)
            if peak is not None and (outcome := self._objection(peak)) is not None:
                return outcome
            before = self.device.counters()
            if worst is not None and self._grows:
                self._grow(step, typical, worst)
                before = replace(before, retries=self.device.counters().retries)
            lap = (
                Lap(steps_s=peak.steps_s, loss=peak.loss, ruined=peak.ruined)
                if peak and self._really_limited
                else self._time(step, typical)
            )
            events = self._events_since(before, peak)
        return self._judge(lap, peak, typical, events)

    def _events_since(self, before: Counters, peak: "_Peak | None") -> Counters:
        """Returns what the allocator counted on the worst batch and since `before`."""
        after, worst = self.device.counters(), NOT_READ if peak is None or peak.memory is None else peak.memory
        return Counters(
            ooms=after.ooms - before.ooms + worst.swallowed_ooms,
            retries=after.retries - before.retries + worst.allocator_retries,
        )

    @property
    def _really_limited(self) -> bool:
        """Whether the host's memory is limited for this process: then only the fit counts, times mean nothing."""
        return self.enforce and self.device.is_host

    @property
    def _grows(self) -> bool:
        """Whether batches of other lengths may leave a caching allocator with less than the worst batch alone did."""
        return self.purpose is Purpose.PROOF and self.store.source.varies and not self.device.is_host

    def _peak(self, step: TrainStep, worst: Batch, typical: Typical) -> "_Peak":
        """Runs the first steps on the worst batch, the cache not cleared between them, and returns their peak."""
        count, proof = self.plan.accumulation_steps, self.purpose is Purpose.PROOF
        # Beyond the second micro batch of the second step no new kind of tensor is live: a probe stops there.
        parts, steps = (count, PROOF_STEPS) if proof else (min(count, 2), PROBE_STEPS)
        # Where the device is the host, a step's batches are in its memory: those that run are metered, the rest added.
        held = (count - parts) * nbytes(worst) if self.device.is_host else 0
        # Where all batches have one shape, this one takes as long as any: what it happens to hold is no speed.
        alike = typical.tokens if not self.store.source.varies else None
        tokens = alike[0] if alike else self.store.source.tokens(worst)
        peak = _Peak(
            samples=parts * self.plan.micro_batch_size, wanted=steps, tokens=None if tokens is None else parts * tokens
        )
        with self._metered(lambda: static_bytes(step)) as reading, _observed(step, reading.drain):
            while len(peak.steps_s) < steps and peak.skipped < MOST_SKIPPED:
                ran = self._follow(step, [worst] * parts)
                peak.loss = ran.loss
                if ran.ruined and peak.ruined is None:
                    peak.ruined = len(peak.steps_s) + peak.skipped + 1
                if ran.updated:
                    peak.steps_s.append(ran.seconds)
                else:
                    peak.skipped += 1
                    peak.skipped_s += ran.seconds
        assert reading.memory is not None, "the meter has filled its reading"
        peak.memory = _plus(reading.memory, held)
        if peak.steps_s and parts == count:  # a part of a step pays for a whole update: no measure of its speed
            self.worst_s = min(peak.steps_s) / peak.samples  # one disturbed step must not decide
        return peak

    def _grow(self, step: TrainStep, typical: Typical, worst: Batch) -> None:
        """Runs steps from an empty cache on batches that grow, up to the worst; raises when memory runs out.

        A training meets lengths in any order, and in this one the allocator keeps most that is of no use: blocks of the
        shorter batches, too small for the longer. That it gives its cache back meanwhile is no objection, as that ends
        when all lengths were met. The steps that are timed come after it, on a cache as a training has it, and in them
        it must not happen. These steps are in no reading: a limit holds them, where the allocator has one.
        """
        self.device.release()
        growing = typical.by_size(rising=True)
        for number in range(growing.cycle):
            self._follow(step, growing.of_step(number))
        self._follow(step, [worst] * self.plan.accumulation_steps)

    def _metered(self, static: Callable[[], int]) -> AbstractContextManager[Reading]:
        """Meters the steps inside, except where the host's memory is really limited: a record would need some too."""
        if self._really_limited:
            return nullcontext(Reading(LIMITED))
        return self.device.meter(static)

    def _time(self, step: TrainStep, typical: Typical) -> Lap:
        def batch_of(number: int) -> StepBatch:
            return self._step_batch(typical.of_step(number))

        def beat() -> None:
            self.beat("fetch")

        pace = PACES[self.purpose]
        if self.purpose is Purpose.PROOF:
            pace = replace(pace, patience_s=PATIENCE_SHARE * self.clock.left_s)
        with self._reported(step):
            lap = time_steps(step, batch_of, self.device, pace, typical.cycle, beat)
            more_s = phase_steps(typical.cycle) * max(lap.steps_s, default=math.inf)
            if self.purpose is Purpose.PROOF and more_s < self.clock.left_s:
                lap.phases_s = time_phases(step, batch_of, self.device, typical.cycle, beat)
        return lap

    def _follow(self, step: TrainStep, parts: Sequence[Batch]) -> Ran:
        with self._reported(step):
            return run_step(step, self._step_batch(parts), self.device)

    def _step_batch(self, parts: Sequence[Batch]) -> StepBatch:
        """Returns the batch of a step; a copy, where bringing it to the device does not make one."""
        return StepBatch.alike([fresh(part) if self._is_there(part) else part for part in parts])

    def _is_there(self, batch: Batch) -> bool:
        return any(tensor.device.type == self.device.type for tensor in tensors(batch))

    @contextmanager
    def _reported(self, step: TrainStep) -> Iterator[None]:
        """Remembers the phase in which the steps inside fail, and gives a sign of life when they are done."""
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

        def static() -> int:
            return static_bytes(step)

        if self.device.is_host:
            # Threads, compiled kernels and the optimizer's state come with the first step and are no part of a plan's
            # peak here. The kernels depend on the size, and this process is a fresh one that is about to end.
            self._follow(step, [self.store.source.worst(self.plan.micro_batch_size)])
        # From an empty cache, as a training begins: a step before this one would leave the optimizer's state and the
        # cache in another order, in which up to a fifth less was reserved than a training then takes.
        self.device.release()
        with self.device.limit(self.budget_bytes, static):
            yield

    def _objection(self, peak: "_Peak") -> Outcome | None:
        """Returns the outcome of a plan that is not timed.

        Its peak is over the budget, it never updates, it is hopelessly slow, or there is no time left.
        """
        if len(peak.steps_s) < peak.wanted:
            return _overflows(peak.skipped)
        memory = peak.memory
        assert memory is not None, "the meter has filled its reading"
        if memory.judged_bytes > self.budget_bytes:
            found, budget = format_bytes(memory.judged_bytes), format_bytes(self.budget_bytes)
            reason = f"its peak {found} is above the budget {budget}"
            return Outcome(status=Status.OVER_BUDGET, reason=reason, measurement=peak.measurement(memory))
        if self.purpose is Purpose.PROOF and self.clock.left_s <= 0 and peak.is_sound and not self._grows:
            late = "not timed: the time budget was over"
            return Outcome(status=Status.MEASURED, measurement=peak.measurement(memory, late))
        slowness = 0.0 if self.worst_s is None else HOPELESS * self.worst_s / self.hopeless_s
        if self.purpose is Purpose.PROBE and slowness > HOPELESS and peak.is_sound and min(peak.steps_s) > QUICK_S:
            slow = f"not timed further: {slowness:.1f} times slower than the fastest"
            return Outcome(status=Status.MEASURED, measurement=peak.measurement(memory, slow))
        return None

    def _judge(self, lap: Lap, peak: "_Peak | None", typical: Typical, events: Counters) -> Outcome:
        if not lap.steps_s:
            return _overflows(lap.skipped)
        check_times(lap.steps_s)
        if lap.loss is not None and not math.isfinite(lap.loss):
            return Outcome(status=Status.NUMERIC, reason=_ruined(lap, peak))
        measurement = self._measurement(lap, peak, typical)
        if events.retries or events.ooms:
            return Outcome(
                status=Status.OVER_BUDGET,
                reason=f"it ran, with {events.retries} allocator retries and {events.ooms} "
                "out-of-memory events hidden by the model: memory is too tight for full speed",
                measurement=measurement,
            )
        return Outcome(status=Status.MEASURED, measurement=measurement)

    def _measurement(self, lap: Lap, peak: "_Peak | None", typical: Typical) -> Measurement:
        count = self.plan.accumulation_steps
        warnings = [] if lap.settled else ["step times had not settled after the warm-up"]
        if lap.skipped:
            warnings.append(f"the gradient scaler skipped {lap.skipped} steps")
        return Measurement(
            step_times_s=tuple(lap.steps_s),
            samples_per_step=self.plan.global_batch_size,
            steps_per_window=lap.steps_per_window,
            tokens_per_step=typical.tokens_per_step(lap.timed_steps),
            cycle=lap.cycle,
            memory=NOT_READ if peak is None or peak.memory is None else peak.memory,
            warmup_times_s=tuple(lap.warmup_s),
            startup_s=None if peak is None else peak.startup_s + lap.startup_s,
            worst_steps=0 if peak is None else len(peak.steps_s),
            loss=lap.loss,
            skipped_steps=lap.skipped,
            phases_s=lap.phases_s,
            fetch_s=count * typical.fetch_s,
            warnings=tuple(warnings),
        )

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self.beat(phase)


@dataclass(slots=True)
class _Peak:
    """What the steps on the worst batch gave.

    Attributes:
        samples: samples of one of these steps.
        wanted: steps that had to be done.
        tokens: useful tokens of one of these steps.
        steps_s: times of those that were.
        skipped: steps whose update the scaler skipped.
        skipped_s: seconds that these took.
        loss: of the last of them.
        ruined: number of the first of them whose loss was not finite, from 1 on; None when there was none.
        memory: the peak over all of them.
    """

    samples: int
    wanted: int
    tokens: float | None = None
    steps_s: list[float] = field(default_factory=list)
    skipped: int = 0
    skipped_s: float = 0.0
    loss: float | None = None
    ruined: int | None = None
    memory: Memory | None = None

    @property
    def is_sound(self) -> bool:
        """Whether nothing was seen that a full probe would object to."""
        memory = self.memory
        tight = memory is not None and (memory.allocator_retries or memory.swallowed_ooms)
        return not tight and (self.loss is None or math.isfinite(self.loss))

    @property
    def startup_s(self) -> float:
        """Seconds these steps took beyond as many of the fastest after the first, and all those of skipped ones."""
        return beyond(self.steps_s, min(self.steps_s[1:] or self.steps_s)) + self.skipped_s

    def measurement(self, memory: Memory, *warnings: str) -> Measurement:
        """Returns these steps as a measurement: of the worst batch, and slowed by the meter on a host."""
        return Measurement(
            step_times_s=tuple(self.steps_s),
            samples_per_step=self.samples,
            tokens_per_step=self.tokens,
            memory=memory,
            startup_s=self.startup_s,
            worst_steps=self.wanted,
            skipped_steps=self.skipped,
            warnings=warnings,
        )


@contextmanager
def _observed(step: TrainStep, react: Callable[[], None]) -> Iterator[None]:
    """Calls `react` at the beginning of each phase of the steps inside."""
    step.observe = lambda phase: react()
    try:
        yield
    finally:
        step.observe = None


def check_times(steps_s: Sequence[float]) -> None:
    """Raises when these are no times of steps.

    Raises:
        ClockError: the clock stood still, or gave no number.
    """
    if not all(map(math.isfinite, steps_s)) or median(steps_s) <= 0:
        raise ClockError(
            f"the clock is broken: steps took {', '.join(f'{s:g}' for s in steps_s[:3])} s; expected more than 0. "
            "Something has replaced time.perf_counter (a mock, freezegun) or it is faulty: tune without it."
        )


def _plus(memory: Memory, held: int) -> Memory:
    """Returns a reading with bytes that are live beside what was metered."""
    more = {"allocated_bytes": memory.allocated_bytes + held, "judged_bytes": memory.judged_bytes + held}
    return memory.model_copy(update=more)


def _ruined(lap: Lap, peak: _Peak | None) -> str:
    """Returns what to say of a loss that is not finite: which step was the first."""
    if peak is not None and peak.ruined is not None:
        return f"the loss is {lap.loss}, from step {peak.ruined} on, on the worst batch"
    return f"the loss is {lap.loss}, from step {(0 if peak is None else peak.wanted) + (lap.ruined or 1)} on"


def _overflows(skipped: int) -> Outcome:
    return Outcome(
        status=Status.NUMERIC,
        reason=f"the gradient scaler skipped {skipped} steps and found no scale to go on with: gradients overflow in "
        "fp16",
    )


def static_bytes(step: TrainStep) -> int:
    """Returns the bytes of the distinct storages that live between two steps, on the step's device."""
    model, optimizer = step.draft.model, step.draft.optimizer
    found: list[torch.Tensor] = [*model.parameters(), *model.buffers()]
    found += [p.grad for p in model.parameters() if p.grad is not None and p.grad.layout is torch.strided]
    if optimizer is not None:
        found += state_tensors(optimizer)
    here = [piece for t in found if t.device.type == step.draft.device.type for piece in pieces(t)]
    storages = {storage.data_ptr(): storage.nbytes() for storage in (piece.untyped_storage() for piece in here)}
    return sum(storages.values())
