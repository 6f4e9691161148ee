"""Bench: a workload on a device, ready to be probed. What `tune()` opens in process and a worker opens in its own."""

import gc
import math
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import torch
from torch import nn

from autofit import devices
from autofit.core.briefing import Briefing, Options
from autofit.core.budget import SHARES, TRACE_SHARE
from autofit.core.environment import Environment
from autofit.core.errors import (
    AutofitError,
    DevicePoisoned,
    NothingFits,
    SpaceError,
    Untraceable,
    UserCodeError,
    WorkloadError,
)
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.devices.base import Device
from autofit.failures.classify import Failure, classify
from autofit.failures.evidence import collect
from autofit.guard import Backstop, Guard, leave_surely
from autofit.identity.identity import Reached, own_version, settings, signature
from autofit.memory.trace import Trace
from autofit.prepare import prepare
from autofit.probing import isolated_trace as isolation
from autofit.probing.leaks import LeakWatch
from autofit.probing.meter import shapes_of_a_training
from autofit.probing.opening import SURVEY
from autofit.probing.probe import HOPELESS, Probe
from autofit.probing.short_run import ShortRun
from autofit.probing.survey.gradients import State
from autofit.probing.survey.modes import mode_notes
from autofit.probing.survey.survey import Survey
from autofit.probing.watchdog import Overdue, Watchdog
from autofit.strategies import MEMBERS
from autofit.strategies.base import Facts, Strategy
from autofit.tracing import tracing
from autofit.workloads.batch_store import BatchStore
from autofit.workloads.batches import BatchSource
from autofit.workloads.counted import Counted
from autofit.workloads.forward import resolve_forward
from autofit.workloads.loss import LossRule, resolve_loss
from autofit.workloads.step import Draft, TrainStep
from autofit.workloads.tree import map_tensors
from autofit.workloads.weights import WEIGHING, Weighing
from autofit.workloads.workload import Workload


class Bench:
    """A workload on a device, ready to be probed.

    Use it as a context manager: leaving it puts everything back and verifies that it is bit-identical.

    Args:
        workload: the user's objects.
        device: where to probe.
        options: what is asked of the search.
        beat: called at every phase of a probe, as a sign of life.
        watch: is told each phase too, knows what is left of the time budget, and ends what runs when its part of it is
            used up.
        known: what an earlier bench of this workload found, so that it is not surveyed again; None surveys it.

    Attributes:
        briefing: what is known before the first probe.

    Raises:
        WorkloadError: the workload cannot be tuned as given.
        SpaceError: an unknown strategy, or no usable batch size.
        UsageError: the memory budget cannot be read.
        UserCodeError: the model, loss, loader or optimizer recipe raised an error of its own.
        NothingFits: one small batch is already too much for the device.
        DevicePoisoned: the device does not answer.
    """

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
        self._weighing: Weighing | None = None
        self._watch, self._tell = watch or Watchdog(), beat
        strategies = chosen(options.strategies)
        with self._users_code():
            place(workload, device, options.may_move)
            self._guard = Guard.of(workload)
        with self._guard.backstop, self._guard, self._users_code():
            self._apart = workload.set_mode()
            self._looks = [Reached.of(workload)]  # before anything of it runs
            self._source = BatchSource.of(workload.loader, worst_case=workload.worst_case, seed=options.seed)
            self._store = BatchStore(self._source)
            self._loss = self._resolve()
            budget = device.budget(options.memory_budget, self._source.varies)
            most = _least(self._source.length, self._source.max_size)
            facts = facts_of(workload, self._source, device, options, dataset_size=most)
            state = State(self._reset, self._guard.differences)
            survey = Survey(facts, strategies, self._build, self._source, options.seed, state, self._watch)
            if known is None:
                self._beat(SURVEY)
                space, self._weighing = survey.run(), survey.weighing
                self._beat("open")
            else:
                space, self._weighing = known.space, Weighing.of(known.environment.settings)
            self.briefing = Briefing(
                space=space,
                environment=self._environment(facts),
                budget=budget,
                enforced=options.enforce,
                account=device.account(),
                caveats=(*self._notes(), *survey.caveats),
            )
        self._froze = False
        self._fastest_s = math.inf

    @property
    def loss(self) -> LossRule:
        """How the loss is computed."""
        return self._loss

    def evaluate(self, plan: Plan, purpose: Purpose) -> Outcome:
        """Runs `plan` and returns what became of it; everything is put back afterwards.

        A poisoned device cannot be written to: then what is on it stays as it is until the bench is left.
        """
        poisoned, leaked = False, ""
        self._leaks.begin()
        try:
            self._make_ready()
            probe = Probe(
                plan=plan,
                purpose=purpose,
                build=self._build,
                store=self._store,
                device=self.device,
                budget_bytes=self.briefing.budget.memory_bytes,
                enforce=self._options.enforce,
                cold=self._options.cold,
                hopeless_s=HOPELESS * self._fastest_s,
                clock=self._watch.clock,
                beat=self._beat,
            )
            outcome = self._run(probe)
            if outcome.measured and probe.worst_s is not None:
                self._fastest_s = min(self._fastest_s, probe.worst_s)
            poisoned = outcome.status is Status.POISONED
        finally:
            if not poisoned:
                self._guard.restore_trained()
                self.device.release()  # what only the guard let go of: the gradients of a step that failed
                leaked = self._leaks.found()  # what the user's code keeps from step to step
                self._put_back()
        return outcome.model_copy(update={"leaked": leaked})

    def _run(self, probe: Probe) -> Outcome:
        try:
            with shapes_of_a_training(vary=self._source.varies):
                return self._watch.allowed(probe.run, SHARES[probe.purpose])
        except Overdue as error:
            return Outcome(status=Status.TIMED_OUT, reason=str(error))

    def trace(self, plan: Plan, limit_s: float = math.inf) -> Trace:
        """Returns the allocations of the plan's training steps, without running them.

        Args:
            plan: what to trace.
            limit_s: seconds after which it is given up, where `isolation.LIMIT_S` or the time budget is not sooner.

        Raises:
            Untraceable: something in the step cannot run without data, or it took too long.
            SpaceError: the plan cannot be applied to this workload.
        """
        self._beat("trace")
        limit_s = min(limit_s, isolation.LIMIT_S, self._watch.clock.patience_s(TRACE_SHARE) / 2)
        target, threads = self.device.torch_device, torch.get_num_threads()

        def traced() -> Trace:
            with self._users_code():
                batch = batch_to_trace(self._source, plan)

            def work() -> Trace:
                return tracing.trace(self.workload, self._loss, plan, batch, target, limit_s=limit_s, threads=threads)

            return isolation.isolated(work, self.workload, self.device.is_host, limit_s)

        return self._in_time(traced)

    def _in_time(self, work: Callable[[], Trace]) -> Trace:
        try:
            return self._watch.allowed(work, TRACE_SHARE)
        except Overdue as error:
            raise Untraceable(str(error), "in tracing it") from None

    def record(self, plan: Plan) -> Trace:
        """Runs a few steps of `plan` and returns the allocations that they made; everything is put back afterwards.

        For small micro batches of what cannot be traced.

        Raises:
            Untraceable: a step failed or ran out of memory, or the device keeps no record.
            SpaceError: the plan cannot be applied to this workload.
            DevicePoisoned: the device does not answer; what is on it stays as it is until the bench is left.
        """
        poisoned = False
        try:
            self._make_ready()
            short = ShortRun(
                plan=plan,
                build=self._build,
                source=self._source,
                device=self.device,
                budget_bytes=self.briefing.budget.memory_bytes,
                enforce=self._options.enforce,
                beat=self._beat,
            )
            return self._in_time(short.run)
        except DevicePoisoned:
            poisoned = True
            raise
        finally:
            if not poisoned:
                self._put_back()

    def _beat(self, phase: str) -> None:
        self._watch.beat(phase)
        self._tell(phase)

    def _make_ready(self) -> None:
        """Has everything as a step finds it: no gradients from before, the modules in the mode of the workload."""
        self.workload.set_mode()
        self.workload.model.zero_grad(set_to_none=True)

    @property
    def changed(self) -> tuple[str, ...]:
        """Names what changed and could not be put back, once the bench was left; the caveats had named it."""
        return self._guard.changed

    @property
    def backstop(self) -> Backstop:
        """A second context to hold around the `with` block of the bench: see `guard.Backstop`."""
        return Backstop(self._leave)

    def _reset(self) -> None:
        if len(self._looks) == 1:  # the first steps have run, and what they have changed is about to be put back
            self._looks.append(Reached.of(self.workload))
        self._guard.restore()
        self._make_ready()

    def _put_back(self) -> None:
        self._guard.restore()
        self.device.release()

    def __enter__(self) -> Self:
        self._guard.__enter__()
        self._freeze()
        self._leaks = LeakWatch(self.device)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leave_surely(self._leave, error)

    def _leave(self, error: BaseException | None) -> None:
        """Puts everything back and verifies it, unless that was done."""
        try:
            self._guard.__exit__(None if error is None else type(error), error, None)
            if not isinstance(error, DevicePoisoned):
                self.device.release()
        finally:
            self._unfreeze()

    def _freeze(self) -> None:
        """Takes what is on Python's heap out of garbage collection, which then costs 1 ms a probe instead of 500.

        A user who has frozen the heap himself keeps it as it is.
        """
        if not gc.get_freeze_count():
            gc.collect()
            self._froze = True  # said first: unfreezing a heap that is not frozen does nothing
            gc.freeze()

    def _unfreeze(self) -> None:
        if self._froze:
            gc.unfreeze()
            self._froze = False

    @contextmanager
    def _users_code(self) -> Iterator[None]:
        """Shows whatever the user's objects raise inside as their own error."""
        try:
            yield
        except AutofitError:
            raise
        except Exception as error:
            evidence = collect(error)
            verdict = classify(evidence, device_is_host=self.device.is_host)
            if verdict.status.does_not_fit:
                raise NothingFits(
                    f"not even two samples fit: {verdict.reason}. Give more memory, or use a smaller model or shorter "
                    "samples."
                ) from error
            if (poison := self._poison(verdict)) is not None:
                raise DevicePoisoned(
                    f"the device answers every call with an error: {poison}. If a new process finds it so too, "
                    "the device wants a reset; otherwise your code did it: run one training step of your own to see."
                ) from error
            raise UserCodeError(
                f"your code failed before the first probe: {verdict.reason}. Run one training step of your own to see "
                "it, mend it, then tune again.",
                evidence.traceback_text,
            ) from error

    def _poison(self, verdict: Failure) -> str | None:
        """Returns why the device answers no call any more, or None; a library may have told it in words of its own."""
        if verdict.status is Status.POISONED:
            return verdict.reason
        try:
            self.device.synchronize()
        except RuntimeError as error:
            return str(error).strip().partition("\n")[0]
        return None

    def _build(self, plan: Plan) -> TrainStep:
        draft = Draft.of(self.workload, self._loss, self.device.torch_device, self._weighing)
        return prepare(plan, draft, MEMBERS)

    def _resolve(self) -> LossRule:
        workload, target = self.workload, self.device.torch_device
        batch = map_tensors(self._source.typical(self._source.small_size, 1)[0], lambda t: t.to(target))
        if not workload.training:
            return resolve_forward(batch, workload.step_fn)
        return resolve_loss(workload.model, batch, loss_fn=workload.loss_fn, step_fn=workload.step_fn)

    def _notes(self) -> Iterable[str]:
        if self._loss.inferred:
            yield f"the loss was inferred: {self._loss.about}"
        yield from mode_notes(self._apart)
        if self.workload.optimizer is None and self.workload.training:
            yield "no optimizer was given: measured with torch.optim.AdamW and its defaults"
        if self.device.is_host and devices.choose().is_host:
            yield f"tuned for the CPU ({self.device.name()}): its speeds say nothing of an accelerator's"
        if not self._options.may_move:  # else the objects are this process's own, and end with it
            yield from self._guard.caveats
        yield from self.device.caveats()
        yield from self._source.notes

    def _environment(self, facts: Facts) -> Environment:
        return Environment(
            workload=signature(self.workload.model, self._source.structure(), self._loss.name),
            device_type=self.device.type,
            device_name=self.device.name(),
            capacity_bytes=self.device.capacity_bytes(),
            threads=torch.get_num_threads(),
            versions={
                "python": platform.python_version(),
                "torch": torch.__version__,
                "autofit": own_version(),
                **self.device.versions(),
            },
            settings=settings(self.workload, facts.optimizer, self.device.type, self._source, self._looks)
            | ({} if self._weighing is None else {WEIGHING: str(self._weighing)}),
        )


def place(workload: Workload, device: Device, may_move: bool) -> None:
    """Moves the model and a loss module to `device` if that is allowed, or checks that the model is there.

    Raises:
        WorkloadError: the model is elsewhere, or on several devices.
    """
    model, wanted = workload.model, device.torch_device
    if may_move:
        model.to(wanted)
        if isinstance(workload.loss_fn, nn.Module):
            workload.loss_fn.to(wanted)
        return
    found = {t.device for t in (*model.parameters(), *model.buffers())}
    if any(t.type != wanted.type or (wanted.index is not None and t.index != wanted.index) for t in found):
        names = ", ".join(sorted(map(str, found)))
        raise WorkloadError(
            f"the model is on {names}, but is to be tuned on {wanted}. Move it first: model.to({str(wanted)!r}), "
            f"and make the optimizer afterwards; or pass device={names.split(',')[0]!r}."
        )


def facts_of(
    workload: Workload, source: BatchSource, device: Device, options: Options, dataset_size: int | None
) -> Facts:
    """Returns what strategies look at.

    Raises:
        SpaceError: as `own_batch`.
    """
    # A pass without updates has no global batch to keep.
    total = workload.global_batch_size if workload.training else None
    joinable = source.resizable and source.max_size is None
    micro, steps = own_batch(source.user_batch_size, total, source.resizable, joinable)
    return Facts(
        model=workload.model,
        batch=source.typical(1 if source.resizable else source.user_batch_size, 1)[0],
        optimizer=workload.make_optimizer(),
        device_type=device.type,
        capabilities=device.capabilities(),
        numerics=options.numerics,
        training=workload.training,
        micro_batch_size=micro,
        accumulation_steps=steps,
        global_batch_size=total,
        max_global_batch_size=workload.max_global_batch_size,
        dataset_size=dataset_size,
        resizable=source.resizable,
        cut_from=source.user_batch_size if source.resizable and not joinable else None,
    )


def batch_to_trace(source: BatchSource, plan: Plan) -> Counted:
    """Returns a worst batch for the trace of a plan: a small one where its shapes tell those of any size."""
    size = min(2, plan.micro_batch_size) if source.resizable and source.even else plan.micro_batch_size
    return Counted(source.worst(size), size)


def own_batch(
    user_batch_size: int, global_batch_size: int | None, resizable: bool, joinable: bool = True
) -> tuple[int, int]:
    """Returns micro batch and accumulation steps of the user's own setting.

    Under a global batch that is the largest divisor of it that the user's loader batch reaches, and divides where
    batches are cut and never joined.

    Raises:
        SpaceError: only the loader's own batches can be run, and they do not make up the global batch.
    """
    if global_batch_size is None:
        return user_batch_size, 1
    if not resizable and global_batch_size % user_batch_size:
        raise SpaceError(
            f"found a global batch of {global_batch_size} with a loader whose batches of {user_batch_size} can be "
            "neither cut nor joined; expected a multiple of the loader's batch. Change one of the two, or give a "
            "DataLoader over samples with a collate_fn."
        )
    if not joinable:
        micro = math.gcd(user_batch_size, global_batch_size)
    else:
        micro = max(d for d in range(1, min(user_batch_size, global_batch_size) + 1) if global_batch_size % d == 0)
    return micro, global_batch_size // micro


def chosen(names: Sequence[str] | None) -> tuple[Strategy, ...]:
    """Returns the strategies of these names; None for all.

    Raises:
        SpaceError: one is not known.
    """
    if names is None:
        return MEMBERS
    known = [member.name for member in MEMBERS]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SpaceError(f"unknown strategy {', '.join(map(repr, unknown))}; expected some of {', '.join(known)}.")
    return tuple(member for member in MEMBERS if member.name in names)


def _least(*numbers: int | None) -> int | None:
    known = [n for n in numbers if n is not None]
    return min(known) if known else None
