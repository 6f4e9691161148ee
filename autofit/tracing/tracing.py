"""Tracing: runs a plan's training steps on a fake copy of the workload and returns the sequence of their allocations.

A rehearsal is one forward and backward pass of the user's step on such a copy, for those who only want to watch it.

The traced step is the real `TrainStep`, made by the real `prepare` with the real strategies. Nothing is computed.
Neither the user's objects nor the random state change.

If the device is present, call `trace` in any process: it uses fake tensors of that device type. For a CUDA device that
is not present, call it in a fresh process that ends afterwards, with the device of `standin.install()`.
"""

import gc
import linecache
import logging
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from autofit import devices
from autofit.core.errors import SpaceError, Untraceable
from autofit.core.plan import ACCUMULATION_STEPS, Plan
from autofit.core.work import StepWork, Work
from autofit.memory.trace import MOST_PARTS, Kind, Mark, Trace
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.base import Watch
from autofit.torch_internals import storage_id
from autofit.tracing.cuda.allocator_steps import Chip
from autofit.tracing.cuda.device_spoofing import LIBRARIES, disguised
from autofit.tracing.cuda.standin import NAME, attending
from autofit.tracing.cuda.temporaries import temporary_steps
from autofit.tracing.data_dependent import DataAnswers
from autofit.tracing.fake_copy import fake_batch, fake_mode, fake_workload
from autofit.tracing.host_temporaries import HostTemporaries
from autofit.tracing.operation_count import Tally
from autofit.tracing.plain_tensors import as_plain, has_padding
from autofit.tracing.ranks import fake_ranks, recording_shards
from autofit.tracing.recorder import Recorder, Temporaries
from autofit.tracing.trace_assembly import assembled
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule
from autofit.workloads.step import TRACED_PASSES, Draft, Ranks, StepBatch, TrainStep
from autofit.workloads.tree import Batch, map_tensors, tensors
from autofit.workloads.workload import Workload, each_of, state_tensors

STEPS = 3
"""Number of traced steps. The optimizer's state appears at the end of the first step, so the second has a higher peak.
The third repeats the second but finds other free blocks, so its reserved peak may be higher still."""


def trace(  # noqa: PLR0913  # what a step depends on
    workload: Workload,
    loss: LossRule,
    plan: Plan,
    batch: Batch | Counted,
    device: torch.device,
    chip: Chip | None = None,
    limit_s: float = math.inf,
    threads: int | None = None,
    *,
    ranks: int | Ranks = 1,
) -> Trace:
    """Returns the allocations of `STEPS` optimizer steps of a plan.

    Args:
        workload: the user's objects, which are only read.
        loss: how the loss of a micro batch is computed.
        plan: the plan to apply, including the micro batch size to trace.
        batch: a real worst micro batch on the host. It is resized if its size differs from the plan's.
        device: where the step runs. Its type is that of the model, or of the stand-in.
        chip: the chip of a CUDA device. None reads it from the device that is present.
        limit_s: seconds after which the trace is abandoned.
        threads: number of threads that training uses on the host. None uses the current number of this process.
        ranks: number of ranks that train together. The trace is that of the rank that needs the most memory. Or fake
            ranks of this process, where it already belongs to a process group: the trace is that of this rank.

    Raises:
        Untraceable: something in the step cannot run without data, or fails on fake tensors.
        SpaceError: the plan cannot be applied to this workload.
        UsageError: with several ranks, this process already belongs to a process group.
    """
    check_traceable(workload.model)
    for strategy in members():
        if reason := strategy.untraceable(plan):
            raise Untraceable(reason, f"the technique {strategy.name}")
    if chip is None and device.type == "cuda":
        chip = Chip.of(device)
    run = _Tracing(plan, device, chip, threads or torch.get_num_threads())
    roots = [root for root in (workload.model, workload.loss_fn) if isinstance(root, nn.Module)]
    for tensor in (tensor for root in roots for tensor in (*root.parameters(), *root.buffers())):
        if tensor.layout is torch.strided and not is_lazy(tensor):
            run.recorder.original_storages.add(storage_id(tensor.untyped_storage()))
    disguise = disguised(device, chip or Chip()) if device.type == NAME else nullcontext()
    fake = _on_fake_tensors(run.recorder, batch, limit_s, lambda: run.doing, (SpaceError, Untraceable))
    with ExitStack() as held:
        run.ranks = held.enter_context(_ranks_of(ranks, workload, plan, device))
        if run.ranks is not None:
            held.enter_context(recording_shards(run.recorder, device.type))
        for each in (fake, attending(chip or Chip()), disguise):
            held.enter_context(each)
        return run.trace(workload, loss, batch)


def _ranks_of(
    ranks: int | Ranks, workload: Workload, plan: Plan, device: torch.device
) -> AbstractContextManager[Ranks | None]:
    """Returns a context of the ranks of a trace; None for one alone."""
    if not isinstance(ranks, int):
        return nullcontext(ranks)
    return nullcontext() if ranks == 1 else fake_ranks(ranks, _heaviest(workload, plan, ranks), device.type)


def _heaviest(workload: Workload, plan: Plan, ranks: int) -> int:
    """Returns the rank that needs the most memory."""
    optimizer = workload.make_optimizer()
    if optimizer is None:
        return 0
    return max((each.heaviest_rank(plan, optimizer, ranks) for each in members() if each.acts(plan)), default=0)


def inside_operators(
    device: torch.device, chip: Chip | None, threads: int
) -> tuple[Temporaries | None, tuple[int, int], HostTemporaries | None]:
    """Returns the arguments by which a `Recorder` knows the memory inside the operators of a device.

    Args:
        device: where the operators run.
        chip: the chip of a CUDA device that is imitated; None for a device that is present.
        threads: number of threads that training uses on the host.
    """
    if chip is None and device.type == "cuda":
        chip = Chip.of(device)
    host = HostTemporaries(devices.host(), threads) if device.type == "cpu" else None
    return (None, (0, 0), host) if chip is None else (partial(temporary_steps, chip), chip.workspaces, host)


REHEARSAL_S = 20.0
"""Seconds after which a rehearsal is abandoned."""


def rehearse(workload: Workload, loss: LossRule, batch: Counted, watch: Watch, *, conditions: bool = True) -> bool:
    """Runs the user's step without updates, with no strategy, inside `watch(model)` of a copy without data.

    Nothing is computed. Neither the model nor the random state change, but the user's functions run: what they keep
    outside the model must be restored. Returns whether something asked for a condition that depends on data.

    Args:
        workload: the user's objects, which are only read.
        loss: how the loss is computed.
        batch: a batch on the host.
        watch: the context of the step.
        conditions: how conditions that depend on data are answered.

    Raises:
        Untraceable: something in the step cannot run without data, or it takes too long.
    """
    check_traceable(workload.model)
    device = next((tensor.device for tensor in workload.model.parameters()), torch.device("cpu"))
    answers = DataAnswers(conditions=conditions)
    recorder = Recorder(device.type, answers)
    with _on_fake_tensors(recorder, batch.batch, REHEARSAL_S, lambda: "the inspection of the step"):
        part = fake_batch(batch, batch.samples, torch.device("cpu"))
        copied = fake_workload(workload, loss, part, device)
        copied.workload.set_mode()
        step = TrainStep(Plan(), Draft(copied.workload.model, copied.loss, None, device))
        with recorder, watch(step.model):
            step.backward(StepBatch.alike([part]))
        step.model.zero_grad(set_to_none=True)
    return answers.decided


@contextmanager
def _on_fake_tensors(
    recorder: Recorder,
    batch: Batch | Counted,
    limit_s: float,
    doing: Callable[[], str],
    kept: tuple[type[Exception], ...] = (Untraceable,),
) -> Iterator[None]:
    """Runs a step without data: its errors become `Untraceable` unless `kept`, and the random state is preserved.

    Garbage collection, which would release tensors at arbitrary moments, is off. So is logging: torch logs thirty lines
    about limits of fake tensors, which are not failures here.
    """
    recorder.deadline = perf_counter() + limit_s
    padded, collecting, logged = has_padding(batch), gc.isenabled(), logging.root.manager.disable
    gc.disable()
    logging.disable(logging.CRITICAL)
    try:
        with torch.random.fork_rng(devices=[]), fake_mode(), as_plain(recorder, padded):
            yield
    except kept:
        raise
    except Exception as error:  # any error of the user's code or of torch on fake tensors ends the trace
        raise Untraceable(_reason(error), _where(error, doing())) from error
    finally:
        recorder.stop()
        logging.disable(logged)
        if collecting:
            gc.enable()


@dataclass(slots=True)
class _Tracing:
    """One trace under construction."""

    plan: Plan
    device: torch.device
    chip: Chip | None
    threads: int
    ranks: Ranks | None = None
    doing: str = "making the batch"
    answers: DataAnswers = field(default_factory=DataAnswers)
    marks: list[Mark] = field(default_factory=list)
    recorder: Recorder = field(init=False)
    _number: int = 0
    _passes: int = 1
    _micro: Tally = field(default_factory=Tally)
    _begun: tuple[int, int, int] = (0, 0, 0)

    def __post_init__(self) -> None:
        self.recorder = Recorder(
            self.device.type, self.answers, *inside_operators(self.device, self.chip, self.threads)
        )

    def trace(self, workload: Workload, loss: LossRule, batch: Batch | Counted) -> Trace:
        recorder, count = self.recorder, min(self.plan.accumulation_steps, MOST_PARTS)
        part = fake_batch(batch, self.plan.micro_batch_size, torch.device("cpu"))
        self.doing = "copying the model"
        copied = fake_workload(workload, loss, part, self.device)
        copied.workload.set_mode()
        for tensor, is_parameter in copied.initial_tensors():
            recorder.record(tensor, Kind.PARAMETER if is_parameter else Kind.BUFFER, initial=True)
        self.doing = "preparing the plan"
        draft = Draft.of(copied.workload, copied.loss, self.device)
        draft.ranks = self.ranks
        if draft.optimizer is not None:
            for tensor in state_tensors(draft.optimizer):
                recorder.record(tensor, Kind.OPTIMIZER_STATE, initial=True)
        shorter = Plan(values={**self.plan.values, ACCUMULATION_STEPS: count}) if count > 1 else self.plan
        with recorder.modules.following(draft.model) as names, recorder, prepare(shorter, draft, members()) as step:
            self._ready(step)
            for self._number in range(1, STEPS + 1):
                if self._number < STEPS or not self._repeat():
                    self._step(step, part, count)
            self._mark("end")
            found = self._finish(names)
            # The copy is discarded: restoring the layout of gradients and optimizer state would take long.
            draft.model.zero_grad(set_to_none=True)
            for optimizer in () if draft.optimizer is None else each_of(draft.optimizer):
                optimizer.state.clear()
        return found

    def _ready(self, step: TrainStep) -> None:
        """Makes a prepared step ready to be traced."""
        if self.ranks is not None:  # weights that are divided are not first whole on the device
            self.recorder.begin()
            self.recorder.label(step.model.parameters(), Kind.PARAMETER)
            self._passes = self.ranks.count if step.draft.together else 1
        step.observe = self._observe(step)
        if step.draft.scaler is not None:
            # Whether gradients overflow depends on data. A step that overflows does not update and needs less.
            vars(step.draft.scaler)["_maybe_opt_step"] = lambda optimizer, state, *args: optimizer.step(*args)

    def _repeat(self) -> bool:
        """Repeats the events of the last step if that step left nothing allocated. Returns whether it did."""
        event, mark, given = self._begun
        shift = len(self.recorder.events) - event
        if not self.recorder.repeat(event):
            return False
        for each in self.marks[mark:]:
            phase = each.name.removeprefix(f"step {self._number - 1} ")
            self.marks.append(Mark(name=f"step {self._number} {phase}", event=each.event + shift))
        self.answers.given += self.answers.given - given
        return True

    def _step(self, step: TrainStep, part: Batch, count: int) -> None:
        self._begun = len(self.recorder.events), len(self.marks), self.answers.given
        self._micro = self.recorder.tally = Tally()
        parts = [part] * count
        if self.device.type == "cpu":  # as in a probe, batches on the host are copies, and their memory counts
            self.doing = "copying the batch"
            parts = [map_tensors(part, torch.clone) for _ in range(count)]
            for each in parts:
                self.recorder.label(tensors(each), Kind.BATCH)
        step(StepBatch.alike(parts))
        if step.optimizer is not None:
            self.recorder.label(state_tensors(step.optimizer), Kind.OPTIMIZER_STATE)
        # A step of the user may leave gradients for the next one to clear.
        self.recorder.label((p.grad for p in step.model.parameters() if p.grad is not None), Kind.GRADIENT)
        self.recorder.modules.forget()

    def _observe(self, step: TrainStep) -> Any:
        recorder, begun = self.recorder, 0

        def observe(phase: str) -> None:
            nonlocal begun
            before, self.doing = self.doing, phase
            if before == "transfer":
                _relabel(recorder, begun, Kind.BATCH)
            if before == "forward":
                _relabel(recorder, begun, Kind.ACTIVATION)
            if before == "backward":
                gradients = (p.grad for p in step.model.parameters() if p.grad is not None)
                recorder.label(gradients, Kind.GRADIENT)
            begun = len(recorder.sizes)
            if phase == "optimizer":
                recorder.tally = Tally()
            if phase != "forward":
                self._mark(f"step {self._number} {'forward' if phase == 'transfer' else phase}")

        return observe

    def _mark(self, name: str) -> None:
        self.marks.append(Mark(name=name, event=len(self.recorder.events)))

    def _finish(self, names: Sequence[str]) -> Trace:
        notes = []
        if self.answers.given:
            notes.append(
                f"{self.answers.given} results that depend on data were assumed to have their largest size, and "
                "conditions to be true"
            )
        found = assembled(self.recorder)
        return Trace(
            micro_batch_size=self.plan.micro_batch_size,
            tensors=found.tensors,
            events=found.events,
            marks=tuple(Mark(name=mark.name, event=found.place(mark.event)) for mark in self.marks),
            modules=tuple(names),
            answered=self.answers.given,
            notes=tuple(notes),
            work=self._work(),
        )

    def _work(self) -> StepWork | None:
        """Returns the work of the last step that ran. Two passes have the memory of all, but not their work."""
        update = self.recorder.tally
        if not (self._micro.complete and update.complete):
            return None
        if update is self._micro:  # a pass without updates
            return StepWork(micro=self._micro.work(), update=Work())
        parts = min(self.plan.accumulation_steps, MOST_PARTS) * min(self._passes, TRACED_PASSES)
        return StepWork(micro=self._micro.work(parts, self._passes), update=update.work())


def _relabel(recorder: Recorder, begun: int, kind: Kind) -> None:
    """Sets the kind of the live allocations from handle `begun` on."""
    for handle in recorder.live():
        if handle >= begun and recorder.kinds[handle] is Kind.TEMPORARY:
            recorder.kinds[handle] = kind


def check_traceable(model: nn.Module) -> None:
    """Checks that a trace can show the memory that the model needs.

    It cannot for compiled models, layers that a library runs as a whole in its own memory, and sparse gradients.

    Raises:
        Untraceable: the model has one of these; the error names it and its module.
    """
    if any(type(module).__name__ == "OptimizedModule" for module in model.modules()):
        raise Untraceable("torch.compile decides which tensors are kept in memory", "the model is compiled")
    for name, module in model.named_modules():
        if isinstance(module, nn.RNNBase):
            kind = type(module).__name__
            raise Untraceable(
                f"a library runs the {kind} as a whole, and its memory is not visible in a trace",
                f"the module {name!r}",
            )
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise Untraceable("the size of sparse gradients depends on the data", f"the module {name!r}")


def _reason(error: BaseException) -> str:
    operator = getattr(error, "func", None)
    line = next(iter(str(error).strip().splitlines()), "")
    if operator is not None:
        return f"the result of {operator} depends on data"
    return f"on tensors without data it raises {type(error).__name__}: {line}"


def _where(error: BaseException, doing: str) -> str:
    """Returns the innermost line of a traceback outside torch and autofit, or else the phase that was running."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(LIBRARIES)]
    if not frames:
        return f"in {doing}"
    frame = frames[-1]
    text = linecache.getline(frame.filename, frame.lineno or 0).strip()
    return f"{frame.filename}:{frame.lineno}: {text}" if text else f"{frame.filename}:{frame.lineno}"
