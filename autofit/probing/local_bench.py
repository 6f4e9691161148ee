"""LocalBench: a workload on a device of this process, ready to be probed.

`tune()` opens it in the user's process; a worker opens it in a child process.
"""

import gc
import importlib
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Self

import torch

from autofit import devices
from autofit.core.briefing import Briefing, Examiner, Options
from autofit.core.budget import TRACE_RATIO
from autofit.core.errors import ClockError, DevicePoisoned, Untraceable
from autofit.core.outcome import SURVEY, Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import SearchSpace
from autofit.core.trial import OPEN, Purpose, RunTerms
from autofit.core.units import format_bytes
from autofit.devices.base import Device
from autofit.failures.evidence import scrub
from autofit.gates.check import GradientCheck
from autofit.gates.gradients import Steps
from autofit.gates.verdict import ACCUMULATION, Checked, GateVerdict
from autofit.guard import Backstop, Guard, leave_surely
from autofit.identity import Reached, environment_of
from autofit.memory.trace import MOST_PARTS, Trace
from autofit.prepare import PlanBatches, prepare
from autofit.probing.compilation import forget, shapes_of_a_training
from autofit.probing.frozen_heap import FrozenHeap
from autofit.probing.loading import LoaderTrials
from autofit.probing.opening import (
    as_poison,
    as_users_errors,
    batch_to_trace,
    budget_of,
    chosen,
    facts_of,
    place,
    poison_of,
    training_notes,
)
from autofit.probing.probe import UNKNOWN_S, Probe
from autofit.probing.survey import Survey
from autofit.probing.watchdog import Overdue, Watchdog
from autofit.strategies import members
from autofit.torch_internals import FakeTensor
from autofit.tracing import isolation, tracing
from autofit.workloads.batches import BatchSource
from autofit.workloads.first_loss import loss_of
from autofit.workloads.loss import LossRule
from autofit.workloads.micro_batch_weights import Weighing
from autofit.workloads.sources import source_of
from autofit.workloads.step import Draft, Ranks, StepBatch, TrainStep, static_bytes
from autofit.workloads.tree import Batch, live_tensors
from autofit.workloads.workload import Workload

LEAST_BYTES = 2**20
"""Smallest leak that is reported. A kept loss takes 512 bytes; a table that a library makes lazily takes some KiB."""


class LeakWatch:
    """Compares the live memory on the device after a run with that before it.

    Create it once everything that belongs to the search is on the device. Devices whose allocator does not count live
    tensors (the CPU) are not watched.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        # By id, because tensors compare by their elements; with a weak reference, because ids are reused.
        self._known: dict[int, weakref.ref[torch.Tensor]] = {}
        if device.live_bytes() is not None:
            self._new_tensors()
        self._before: int | None = None

    def begin(self) -> None:
        """Records the live memory at the start of a run."""
        self._before = self._device.live_bytes()

    def found(self) -> str:
        """Describes what the last run left on the device. Returns "" if that is less than `LEAST_BYTES`.

        Call it after everything was restored. Each leak is reported once.
        """
        if self._left() < LEAST_BYTES:
            return ""
        gc.collect()
        if (left := self._left()) < LEAST_BYTES:
            return ""
        return f"{format_bytes(left)} stayed on the device after the run: {_named(self._new_tensors())}"

    def _left(self) -> int:
        now = self._device.live_bytes()
        return 0 if now is None or self._before is None else now - self._before

    def _new_tensors(self) -> list[torch.Tensor]:
        """Returns the tensors on the device that were not returned before.

        Only tensors that the garbage collector tracks are found; a frozen heap is left out.
        """
        found = []
        for x in live_tensors():
            if self._is_on_device(x):
                known = self._known.get(id(x))
                if known is None or known() is not x:
                    found.append(x)
                    self._known[id(x)] = weakref.ref(x)
        return found

    def _is_on_device(self, tensor: torch.Tensor) -> bool:
        if isinstance(tensor, FakeTensor):
            return False
        try:
            device = tensor.device
        except RuntimeError:  # a wrapper of functorch whose level has ended
            return False
        wanted = self._device.torch_device
        return device.type == wanted.type and wanted.index in (None, device.index)


def _named(kept: list[torch.Tensor]) -> str:
    if not kept:
        return "no tensor that Python can see; an extension or an autograd graph holds the memory"
    largest = max(kept, key=lambda t: t.numel() * t.element_size())
    count = "1 tensor" if len(kept) == 1 else f"{len(kept)} tensors"
    what = f"{str(largest.dtype).removeprefix('torch.')} {tuple(largest.shape)}"
    text = f"your code keeps {count}, the largest {what}"
    if any(t.requires_grad and not t.is_leaf for t in kept):
        return f"{text}, with its autograd graph and thus every activation of the step. Keep loss.item() instead"
    return f"{text}. Do not keep a step's tensors after the step, or keep copies made with .cpu()"


def bench_notes(
    workload: Workload,
    device: Device,
    loss: LossRule,
    eval_modules: Sequence[str],
    guarded: Sequence[str],
    source: BatchSource,
) -> Iterator[str]:
    """Yields how the workload is measured, and what differs from the user's own training."""
    yield from training_notes(workload, loss, eval_modules, "measured")
    if device.is_host and devices.choose().is_host:
        yield f"tuned for the CPU ({device.name()}): the plan does not carry over to an accelerator"
    yield from guarded
    yield from device.caveats()
    yield from source.notes


def undivided(plan: Plan) -> Plan:
    """Returns a plan without what divides a training among ranks."""
    divides = {name for strategy in members() if strategy.for_ranks for name in strategy.owns}
    return plan.model_copy(update={"values": {n: value for n, value in plan.values.items() if n not in divides}})


class LocalBench:
    """A workload on a device, ready to be probed.

    Use it as a context manager: leaving it puts everything back and verifies that it is bit-identical.

    `beat` is called at the start of each phase of a probe, as a sign of life. `watch` also receives each phase, and
    stops code that exceeds its share of the time budget. `known` is what an earlier bench of this workload found, so
    that the survey and the forward pass before it are skipped; the settings of the briefing's environment are then
    incomplete.

    Attributes:
        briefing: what is known before the first probe.
        proof_start_s: seconds needed to start a process for a proof. Always 0: a proof runs in this process.

    Raises:
        WorkloadError: the workload cannot be tuned as given.
        SpaceError, UsageError: an unknown strategy, no usable batch size, or a memory budget that cannot be read.
        UserCodeError: the model, loss, loader or optimizer recipe raised an error.
        NothingFits: not even one small batch fits on the device.
        DevicePoisoned: the device does not respond.
    """

    proof_start_s = 0.0
    _ranks: Ranks | None = None
    """The ranks of the steps that are made; None: this process trains alone."""
    _draw = 0
    """Number of the batches of a long proof. Other ranks draw other ones."""
    _traced_ranks: Ranks | None = None
    """The ranks of a trace, which are fake."""

    def __init__(
        self,
        workload: Workload,
        device: Device,
        options: Options,
        beat: Callable[[str], None] = lambda phase: None,
        *,
        watch: Watchdog | None = None,
        known: Briefing | None = None,
    ) -> None:
        self.workload, self.device, self._options = workload, device, options
        self._watch, self._report_phase = watch or Watchdog(), beat
        self._weighing: Weighing | None = None
        strategies = chosen(options.strategies, options.without)
        with as_users_errors(self.device):
            place(workload, device, options.own_process)
            self._guard = Guard.of(workload)
        with as_poison(device), self._guard.backstop, self._guard, as_users_errors(device):
            modes = workload.set_mode()
            looks = [Reached.of(workload)]  # before any of the workload's code runs
            self._source = source_of(workload.loader, worst_case=workload.worst_case, seed=options.seed)
            self._batches, self._loss = PlanBatches(self._source), loss_of(workload, self._source, device.torch_device)
            budget = budget_of(workload, device, options, varies=self._source.varies)
            if known is None:  # an earlier bench has looked
                looks.append(self._after_a_pass(budget.memory_bytes))
            self._facts = facts_of(workload, self._source, device, options, budget, self._loss, self._guard.restore)
            survey = Survey(self._facts, strategies, self._steps, self._source, self._watch)
            survey.pinned = options.pinned
            self._beat(SURVEY)
            space = survey.run() if known is None else known.space
            self._beat("open")
            guarded = () if options.own_process else self._guard.caveats  # else the objects end with this process
            notes = bench_notes(workload, device, self._loss, modes, guarded, self._source)
            self.briefing = Briefing(
                space=space,
                environment=environment_of(workload, device, self._source, self._loss, self._facts.optimizer, looks),
                budget=budget,
                enforced=options.enforce,
                account=device.account(),
                caveats=(*notes, *survey.caveats),
                evaluates=workload.evaluation is not None,
            )
        self._heap, self._fastest_s, self._rates = FrozenHeap(on_host=device.is_host), math.inf, dict[str, float]()

    def _after_a_pass(self, memory_bytes: int) -> Reached:
        """Returns what the workload reaches after a forward pass, which shows the attributes that steps change."""
        if self.workload.step_fn is not None:  # else the loss was computed to find out how
            free = self.device.is_host or not self._options.enforce
            source, loss, model = self._source, self._loss, self.workload.model
            try:
                with torch.no_grad(), nullcontext() if free else self.device.limit(memory_bytes, lambda: 0):
                    source.on_small(lambda size: loss.compute(model, source.typical(size, 1)[0]))
            except Exception:  # noqa: BLE001  # raised by the user's code: a probe will report it
                self.device.synchronize()  # raises if the device no longer answers: then nothing can be put back
        found = Reached.of(self.workload)
        self._guard.restore()
        return found

    def evaluate(self, plan: Plan, purpose: Purpose, terms: RunTerms = OPEN) -> Outcome:
        """Runs `plan` on the given terms and returns the outcome. Everything is restored afterwards.

        A poisoned device cannot be written to, so objects on it stay as they are until the bench is left.
        """
        return self._or_poisoned(lambda: self._evaluated(plan, purpose, terms))

    def _or_poisoned(self, run: Callable[[], Outcome]) -> Outcome:
        """Returns the outcome of a run, which may find that the device no longer answers."""
        try:
            return run()
        except Exception as error:
            if (poison := poison_of(error, self.device)) is None:
                raise
            return Outcome(status=Status.POISONED, reason=f"the device no longer answers: {poison}", phase="clean-up")

    def _evaluated(self, plan: Plan, purpose: Purpose, terms: RunTerms) -> Outcome:
        poisoned, leaked = False, ""
        self._leaks.begin()
        try:
            self._make_ready()
            probe = self._probe(plan, purpose, terms)
            try:
                with shapes_of_a_training(vary=self._source.varies):
                    outcome = self._watch.allowed(probe.run, most_s=terms.limit_s or math.inf)
            except Overdue as error:
                outcome = Outcome(status=Status.TIMED_OUT, reason=str(error))
            if outcome.measured and not terms.fit_alone and not SearchSpace(self.briefing.space).unpinned(plan):
                self._fastest_s = min(self._fastest_s, probe.worst_s or UNKNOWN_S)
            poisoned = outcome.status is Status.POISONED
        finally:
            if not poisoned:
                self._guard.restore_trained()
                self.device.release()  # frees the gradients of a failed step, which the guard has just let go of
                leaked = self._leaks.found()  # memory that the user's code keeps from step to step
                self._put_back()
        outcome = outcome.model_copy(update={"leaked": leaked})
        if terms.fit_alone:
            return outcome
        if outcome.measurement is not None:
            self._rates[plan.key] = max(self._rates.get(plan.key, 0.0), outcome.measurement.samples_per_s)
        if purpose is not Purpose.PROOF or not outcome.measured or (self._options.enforce and self.device.is_host):
            return outcome  # on a host, times under a real limit mean nothing
        trials = LoaderTrials(self._source, self.device, self._watch, self._beat)
        return trials.added(outcome, plan.micro_batch_size, self._rates[plan.key], self._put_back)

    def _probe(self, plan: Plan, purpose: Purpose, terms: RunTerms) -> Probe:
        return Probe(
            plan=plan,
            purpose=purpose,
            build=self._build,
            batches=self._batches,
            device=self.device,
            budget_bytes=self.briefing.budget.memory_bytes,
            enforce=self._options.enforce,
            terms=terms,
            cold=self._options.cold,
            fastest_s=self._fastest_s,
            watch=self._watch,
            beat=self._beat,
            announce=self._announce,
        )

    def check(self, plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        """Checks whether a plan keeps the baseline's gradient. Everything is restored afterwards.

        Micro batches of later runs are weighted as the verdict on accumulation says. Of several ranks, one checks what
        a plan does besides dividing the training among them.

        Raises:
            DevicePoisoned: the device does not respond. Objects on it stay as they are until the bench is left.
        """
        self._beat("check")
        check = GradientCheck(
            facts=self._facts,
            strategies=members(),
            steps=self._steps,
            source=self._source,
            put_back=self._put_back,
            plan=undivided(plan),
            baseline=undivided(self.briefing.space.baseline),
            known=known,
        )
        with as_users_errors(self.device), shapes_of_a_training(vary=self._source.varies):
            self._make_ready()
            try:
                self._watch.allowed(check.run)
            except Overdue as overdue:
                check.unchecked = f"{overdue}; give more time for this check"
            checked = check.result()
            self._put_back()
        if (verdict := {**known, **checked.verdicts}.get(ACCUMULATION)) is not None:
            self._weighing = Weighing.parse(verdict.weighing)
        return checked

    def examine(self, examiner: Examiner, plan: Plan, limit_s: float = math.inf) -> str:
        """Returns what an examiner says of some steps of a proven plan. Everything is restored afterwards.

        Returns "" if it has nothing to say, fails, or takes longer than `limit_s` seconds: the plan is proven without.

        Raises:
            DevicePoisoned: the device does not respond. Objects on it stay as they are until the bench is left.
        """
        self._beat("examine")
        found = ""
        with as_poison(self.device):
            try:
                found = self._watch.allowed(lambda: self._examined(examiner, plan), most_s=limit_s)
            except (KeyboardInterrupt, ClockError):
                raise
            except BaseException as error:  # any failure of a step means that nothing is said; SystemExit too
                if isinstance(error, Exception) and poison_of(error, self.device) is not None:
                    raise
                scrub(error)
            self._guard.restore_trained()
            self._put_back()
        return found

    def _examined(self, examiner: Examiner, plan: Plan) -> str:
        module, _, name = examiner.function.partition(":")
        function = getattr(importlib.import_module(module), name)
        device, source, parts = self.device, self._batches.source(plan), min(plan.accumulation_steps, MOST_PARTS)
        drawn = source.fresh(plan.micro_batch_size, self._draw) if examiner.seconds else iter(())
        self._make_ready()
        with self._build(plan) as step:

            def batch() -> StepBatch | None:
                self._beat("step")
                made = [*islice(drawn, plan.accumulation_steps)]
                made = made or [source.worst(plan.micro_batch_size) for _ in range(parts)]
                return StepBatch.alike(made) if self._announce(made) else None

            free = device.is_host or not self._options.enforce
            most_bytes = self.briefing.budget.memory_bytes
            with nullcontext() if free else device.limit(most_bytes, partial(static_bytes, step)):
                return str(function(self.workload, device, step, batch, examiner))

    def trace(self, plan: Plan, limit_s: float = math.inf) -> Trace:
        """Returns the allocations of the plan's training steps, without running them.

        The trace is abandoned after `limit_s` seconds; `isolation.LIMIT_S` and the time budget also apply.

        Raises:
            Untraceable: something in the step cannot run without data, or the trace took too long.
            SpaceError: the plan cannot be applied to this workload.
        """
        self._beat("trace")
        most_s = TRACE_RATIO * self._watch.clock.patience_s()
        limit_s, threads = min(limit_s, isolation.LIMIT_S, most_s), torch.get_num_threads()

        def traced() -> Trace:
            with as_users_errors(self.device):
                batch = batch_to_trace(self._batches.source(plan), plan)

            def work() -> Trace:
                target = self.device.torch_device
                ranks = 1 if self._traced_ranks is None else self._traced_ranks
                limits: dict[str, Any] = {"limit_s": limit_s, "threads": threads}
                return tracing.trace(self.workload, self._loss, plan, batch, target, ranks=ranks, **limits)

            return isolation.isolated(work, self.workload, self.device.is_host, limit_s)

        try:
            return self._watch.allowed(traced, most_s=most_s)
        except Overdue as error:
            raise Untraceable(str(error), "in the trace") from None

    def _announce(self, parts: Sequence[Batch]) -> bool:
        """Called with the micro batches of a step that is about to run. Returns whether it is to run."""
        return True

    def _beat(self, phase: str) -> None:
        self._watch.beat(phase)
        self._report_phase(phase)

    def _make_ready(self) -> None:
        """Prepares the workload for a step: clears gradients and sets the modules to the workload's mode."""
        self.workload.set_mode()
        self.workload.model.zero_grad(set_to_none=True)

    @property
    def changed(self) -> tuple[str, ...]:
        """Names of what changed and could not be restored, after the bench was left. The caveats had named them."""
        return self._guard.changed

    @property
    def backstop(self) -> Backstop:
        """A second context to hold around the `with` block of the bench: see `guard.Backstop`."""
        return Backstop(self._leave)

    def _put_back(self) -> None:
        self._guard.restore()
        self.device.release()

    def __enter__(self) -> Self:
        self._guard.__enter__()
        self._heap.freeze()
        self._leaks = LeakWatch(self.device)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave_surely(self._leave, error)

    def _leave(self, error: BaseException | None) -> None:
        """Puts everything back and verifies it, unless that was already done."""
        try:
            with as_poison(self.device):
                self._guard.__exit__(None if error is None else type(error), error, None)
                if not isinstance(error, DevicePoisoned):
                    self.device.release()
        finally:
            self._heap.unfreeze()
            if any(knob.warm_up_s for knob in self.briefing.space.knobs):
                forget()

    @property
    def _steps(self) -> Steps:
        def reset() -> None:
            self._guard.restore()
            self._make_ready()

        return Steps(self._build, self._options.seed, reset, self._guard.differences)

    def _build(self, plan: Plan) -> TrainStep:
        self._watch.check()
        target, host_bytes, varies = self.device.torch_device, devices.available_host_bytes(), self._source.varies
        draft = Draft.of(self.workload, self._loss, target, self._weighing, host_bytes, varies=varies)
        draft.ranks = self._ranks
        return prepare(plan, draft, members())
