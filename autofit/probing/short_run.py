"""Recording: a few small real steps of one plan, with all that they ask of the device's allocator.

For what cannot be traced. It runs as a probe does: the real `TrainStep`, on the worst batch, inside the limit, from an
empty cache; the caller's guard puts everything back.
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
from autofit.probing.short_run_trace import RecordedMark, Standing, trace_of
from autofit.probing.static_bytes import static_bytes
from autofit.probing.window import run_step
from autofit.tracing.tracing import STEPS, uncollected
from autofit.workloads.batch_store import fresh
from autofit.workloads.batches import BatchSource
from autofit.workloads.step import StepBatch, TrainStep, state_tensors
from autofit.workloads.tree import Batch, tensors

MOST_REQUESTS = 1_000_000
"""A step of more loops over samples: at another size its requests would be others, and these alone take seconds."""
NEVER_OVERFLOWS = {"scale": 1.0}
"""With this scale fp16 gradients stay finite, so that the steps update: one that does not needs less memory."""
KEPT = {"transfer": Kind.BATCH, "forward": Kind.ACTIVATION}
"""What holds that was taken in a phase and is there at its end."""


@dataclass(slots=True)
class ShortRun:
    """One recorded run of one plan.

    Attributes:
        plan: what to run.
        build: makes the train step of a plan; called inside the failure handling.
        source: gives the worst batch.
        device: where the step runs.
        budget_bytes: what the device may hold in this process.
        enforce: whether the device limits this process to the budget.
        beat: called as a sign of life, as in `Probe`.
    """

    plan: Plan
    build: Callable[[Plan], TrainStep]
    source: BatchSource
    device: Device
    budget_bytes: int
    enforce: bool
    beat: Callable[[str], None] = field(default=lambda phase: None)
    _phase: str = "fetch"

    def run(self) -> Trace:
        """Runs `STEPS` steps and returns their requests; what the steps trained stays trained.

        Raises:
            Untraceable: a step failed or ran out of memory, or nothing can be recorded here.
            SpaceError: the plan cannot be applied to this workload.
            DevicePoisoned: the device answers no call any more.
        """
        found = self._attempt(self.device.counters())
        gc.collect()  # the handler has ended: only now are the frames gone that held the tensors of a failed step
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
        except BaseException as error:  # noqa: BLE001  # as in a probe: whatever a step raises ends the run
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
        worst = self.source.worst(self.plan.micro_batch_size)
        self._enter("prepare")
        with self.build(self.plan) as step, uncollected():
            if step.draft.scaler is not None:
                step.draft.scaler.load_state_dict({**step.draft.scaler.state_dict(), **NEVER_OVERFLOWS})
            self.device.release()
            with self._limited(step):
                found = self._steps(step, worst)
        if self.device.counters() != before:
            raise Untraceable("memory was so tight that the allocator had to give its cache back", self._where())
        return found

    def _steps(self, step: TrainStep, worst: Batch) -> Trace:
        there = standing(step)
        with self.device.recording() as recording:
            watch = _PhaseMarks(step, recording)
            try:
                for number in range(1, STEPS + 1):
                    watch.number = number
                    run_step(step, watch.known(self._batch(worst)), self.device)
                    self.beat("step")
                watch.end()
            except BaseException:
                self._phase = step.phase
                raise
            finally:
                step.observe = None
        if len(recording.requests) > MOST_REQUESTS:
            raise Untraceable(f"{STEPS} steps asked for memory {len(recording.requests)} times", self._where())
        return trace_of(recording, watch.points, there, self.plan.micro_batch_size)

    def _batch(self, worst: Batch) -> StepBatch:
        """Returns the batch of a step; as in a probe a copy, where bringing it to the device makes none."""
        count = min(self.plan.accumulation_steps, MOST_PARTS)
        is_there = any(tensor.device.type == self.device.type for tensor in tensors(worst))
        return StepBatch.alike([fresh(worst) if is_there else worst for _ in range(count)])

    def _limited(self, step: TrainStep) -> AbstractContextManager[None]:
        if not self.enforce or self.device.is_host:  # a host's limit wants a process of its own
            return nullcontext()
        return self.device.limit(self.budget_bytes, lambda: static_bytes(step))

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self.beat(phase)

    def _where(self) -> str:
        return f"at micro batch {self.plan.micro_batch_size}, in {self._phase}"


class _PhaseMarks:
    """Marks the recording at each phase of the steps, with what is known there of what is alive."""

    def __init__(self, step: TrainStep, recording: Recording) -> None:
        self.points: list[RecordedMark] = []
        self.number = 0
        self._step, self._recording = step, recording
        self._before = ""
        self._kinds: dict[int, Kind] = {}
        step.observe = self._observe

    def known(self, batch: StepBatch) -> StepBatch:
        """Returns a batch, whose tensors it takes down: on a host they are in the memory that is recorded."""
        self._take_down(chain.from_iterable(tensors(part) for part in batch.parts), Kind.BATCH)
        return batch

    def end(self) -> None:
        """Marks the end of the last step."""
        self._point("end")

    def _observe(self, phase: str) -> None:
        if self._before == "backward":
            self._take_down((p.grad for p in self._step.model.parameters() if p.grad is not None), Kind.GRADIENT)
        if self._before == "optimizer":
            self._take_down(_state(self._step), Kind.OPTIMIZER_STATE)
        name = "" if phase == "forward" else f"step {self.number} {'forward' if phase == 'transfer' else phase}"
        self._point(name)
        self._before = phase

    def _point(self, name: str) -> None:
        if name == "end":
            self._take_down(_state(self._step), Kind.OPTIMIZER_STATE)
        self._recording.mark()
        self.points.append(RecordedMark(name, KEPT.get(self._before), self._kinds))
        self._kinds = {}

    def _take_down(self, found: Iterable[torch.Tensor], kind: Kind) -> None:
        device_type = self._step.draft.device.type
        for tensor in found:
            if tensor.device.type == device_type and tensor.layout is torch.strided:
                self._kinds[tensor.untyped_storage().data_ptr()] = kind


def standing(step: TrainStep) -> dict[int, Standing]:
    """Returns the storages on the device that a step has before it runs, by address."""
    model, device_type = step.model, step.draft.device.type
    gradients = (p.grad for p in model.parameters() if p.grad is not None)
    groups = (
        (model.parameters(), Kind.PARAMETER),
        (model.buffers(), Kind.BUFFER),
        (gradients, Kind.GRADIENT),
        (_state(step), Kind.OPTIMIZER_STATE),
    )
    found: dict[int, Standing] = {}
    for group, kind in groups:
        for tensor in group:
            if tensor.device.type == device_type and tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                if storage.nbytes():
                    found.setdefault(storage.data_ptr(), Standing(storage.nbytes(), kind))
    return found


def _state(step: TrainStep) -> Iterator[torch.Tensor]:
    if step.optimizer is not None:
        yield from state_tensors(step.optimizer)
