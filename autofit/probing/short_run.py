"""ShortRun: a few small real steps of one plan, with a record of every request to the device's allocator.

It is used for workloads that cannot be traced. It runs as a probe does: the real `TrainStep`, on the worst batch,
within the limit, from an empty cache. The caller's guard puts everything back.
"""

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain

import torch

from autofit.core.errors import AutofitError, DevicePoisoned, SpaceError, Untraceable
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.devices.base import Counters, Device, Recording
from autofit.failures.classify import classify
from autofit.failures.evidence import Evidence, collect, scrub
from autofit.memory.trace import MOST_PARTS, Kind, Trace
from autofit.probing.plan_batches import PlanBatches
from autofit.probing.short_run_trace import InitialStorage, RecordedMark, trace_of
from autofit.probing.static_bytes import static_bytes
from autofit.probing.timing_window import run_step
from autofit.tracing.tracing import STEPS, uncollected
from autofit.workloads.batch_store import fresh
from autofit.workloads.optimizer_set import state_tensors
from autofit.workloads.step import StepBatch, TrainStep
from autofit.workloads.tree import Batch, tensors

MOST_REQUESTS = 1_000_000
"""Maximum number of allocator requests in a recording. Steps with more loop over samples: their requests differ at
other batch sizes, and processing them takes seconds."""
NEVER_OVERFLOWS = {"scale": 1.0}
"""Scaler state with which fp16 gradients stay finite, so that each step updates. Skipped updates need less memory."""
KEPT = {"transfer": Kind.BATCH, "forward": Kind.ACTIVATION}
"""Kind of the memory that was taken in a phase and is still allocated at its end."""


@dataclass(slots=True)
class ShortRun:
    """One recorded run of one plan.

    Attributes:
        plan: what to run.
        build: makes the train step of a plan; called inside the failure handling.
        batches: provides the worst batch of each plan.
        device: where the step runs.
        budget_bytes: maximum memory of this process on the device.
        enforce: whether the device limits this process to the budget.
        beat: called as a sign of life, as in `Probe`.
    """

    plan: Plan
    build: Callable[[Plan], TrainStep]
    batches: PlanBatches
    device: Device
    budget_bytes: int
    enforce: bool
    beat: Callable[[str], None] = field(default=lambda phase: None)
    _phase: str = "fetch"

    def run(self) -> Trace:
        """Runs `STEPS` steps and returns their requests. The steps really train the model.

        Raises:
            Untraceable: a step failed or ran out of memory, or the device cannot record.
            SpaceError: the plan cannot be applied to this workload.
            DevicePoisoned: the device no longer responds.
        """
        found = self._attempt(self.device.counters())
        gc.collect()  # the exception handler has ended, and with it the frames that held a failed step's tensors
        try:
            self.device.synchronize()
            self.device.release()
        except RuntimeError as error:
            found = DevicePoisoned(f"the device no longer answers: {str(error).strip().partition(chr(10))[0]}")
        if isinstance(found, AutofitError):
            raise found
        return found

    def _attempt(self, before: Counters) -> Trace | AutofitError:
        evidence: Evidence
        try:
            return self._recorded(before)
        except KeyboardInterrupt:
            raise
        except (SpaceError, Untraceable) as error:
            scrub(error)
            return error
        except BaseException as error:  # noqa: BLE001  # as in a probe: any error in a step ends the run
            now = self.device.counters()
            evidence = collect(
                error, phase=self._phase, new_ooms=now.ooms - before.ooms, new_retries=now.retries - before.retries
            )
            scrub(error)
        verdict = classify(evidence, device_is_host=self.device.is_host)
        if verdict.status is Status.POISONED:
            return DevicePoisoned(verdict.reason)
        return Untraceable(f"a short run ended with {verdict.status.value}: {verdict.reason}", self._where())

    def _recorded(self, before: Counters) -> Trace:
        self._enter("fetch")
        worst = self.batches.source(self.plan).worst(self.plan.micro_batch_size)
        self._enter("prepare")
        with self.build(self.plan) as step, uncollected():
            if step.draft.scaler is not None:
                step.draft.scaler.load_state_dict({**step.draft.scaler.state_dict(), **NEVER_OVERFLOWS})
            self.device.release()
            with self._limited(step):
                found = self._steps(step, worst)
        if self.device.counters() != before:
            raise Untraceable("memory was so tight that the allocator had to flush its cache", self._where())
        return found

    def _steps(self, step: TrainStep, worst: Batch) -> Trace:
        existing = initial_storages(step)
        with self.device.recording() as recording:
            watch = _PhaseMarks(step, recording)
            try:
                for number in range(1, STEPS + 1):
                    watch.number = number
                    run_step(step, watch.registered(self._batch(worst)), self.device)
                    self.beat("step")
                watch.end()
            except BaseException:
                self._phase = step.phase
                raise
            finally:
                step.observe = None
        if len(recording.requests) > MOST_REQUESTS:
            raise Untraceable(f"{STEPS} steps made {len(recording.requests)} memory requests", self._where())
        return trace_of(recording, watch.points, existing, self.plan.micro_batch_size)

    def _batch(self, worst: Batch) -> StepBatch:
        """Returns the batch of a step. As in a probe, it is a copy if moving it to the device does not make one."""
        count = min(self.plan.accumulation_steps, MOST_PARTS)
        is_there = any(tensor.device.type == self.device.type for tensor in tensors(worst))
        return StepBatch.alike([fresh(worst) if is_there else worst for _ in range(count)])

    def _limited(self, step: TrainStep) -> AbstractContextManager[None]:
        if not self.enforce or self.device.is_host:  # a host's limit needs a separate process
            return nullcontext()
        return self.device.limit(self.budget_bytes, lambda: static_bytes(step))

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self.beat(phase)

    def _where(self) -> str:
        return f"at micro batch {self.plan.micro_batch_size}, in {self._phase}"


class _PhaseMarks:
    """Marks the recording at each phase of the steps, with the kinds of the live storages that are known."""

    def __init__(self, step: TrainStep, recording: Recording) -> None:
        self.points: list[RecordedMark] = []
        self.number = 0
        self._step, self._recording = step, recording
        self._before = ""
        self._kinds: dict[int, Kind] = {}
        step.observe = self._observe

    def registered(self, batch: StepBatch) -> StepBatch:
        """Registers the tensors of a batch and returns it: on a host they are in the recorded memory."""
        self._register(chain.from_iterable(tensors(part) for part in batch.parts), Kind.BATCH)
        return batch

    def end(self) -> None:
        """Marks the end of the last step."""
        self._point("end")

    def _observe(self, phase: str) -> None:
        if self._before == "backward" or phase == "transfer":  # a step of the user may leave gradients
            self._register((p.grad for p in self._step.model.parameters() if p.grad is not None), Kind.GRADIENT)
        if self._before == "optimizer":
            self._register(_state(self._step), Kind.OPTIMIZER_STATE)
        name = "" if phase == "forward" else f"step {self.number} {'forward' if phase == 'transfer' else phase}"
        self._point(name)
        self._before = phase

    def _point(self, name: str) -> None:
        if name == "end":
            self._register(_state(self._step), Kind.OPTIMIZER_STATE)
        self._recording.mark()
        self.points.append(RecordedMark(name, KEPT.get(self._before), self._kinds))
        self._kinds = {}

    def _register(self, found: Iterable[torch.Tensor], kind: Kind) -> None:
        device_type = self._step.draft.device.type
        for tensor in found:
            if tensor.device.type == device_type and tensor.layout is torch.strided:
                self._kinds[tensor.untyped_storage().data_ptr()] = kind


def initial_storages(step: TrainStep) -> dict[int, InitialStorage]:
    """Returns the storages that a step has on the device before it runs, by address."""
    model, device_type = step.model, step.draft.device.type
    gradients = (p.grad for p in model.parameters() if p.grad is not None)
    groups = (
        (model.parameters(), Kind.PARAMETER),
        (model.buffers(), Kind.BUFFER),
        (gradients, Kind.GRADIENT),
        (_state(step), Kind.OPTIMIZER_STATE),
    )
    found: dict[int, InitialStorage] = {}
    for group, kind in groups:
        for tensor in group:
            if tensor.device.type == device_type and tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                if storage.nbytes():
                    found.setdefault(storage.data_ptr(), InitialStorage(storage.nbytes(), kind))
    return found


def _state(step: TrainStep) -> Iterator[torch.Tensor]:
    if step.optimizer is not None:
        yield from state_tensors(step.optimizer)
