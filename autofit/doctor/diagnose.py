"""Diagnoses a workload: its steps run on its device under the watch, and everything is put back afterwards."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property, partial
from itertools import count as counting
from itertools import islice
from time import monotonic

import torch

from autofit.core.briefing import Options
from autofit.core.errors import WorkloadError
from autofit.core.loading import Loading
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, Plan
from autofit.core.trial import Purpose
from autofit.devices.base import Device
from autofit.doctor.diagnosis import Diagnosis
from autofit.doctor.session import EVERYTHING, Scope, Session, is_compiled, uncompiled
from autofit.doctor.what_if import Change, WhatIf
from autofit.failures.evidence import named_error
from autofit.guard import Guard
from autofit.memory.trace import MOST_PARTS
from autofit.prepare import PlanBatches, prepare
from autofit.probing.compilation import Recompilations, recompilations
from autofit.probing.loading import FREE_RATIO, LoaderTrials, WorkerGrowth, worker_growth
from autofit.probing.opening import as_poison, as_users_errors, baseline_batch, budget_of, facts_of, place
from autofit.probing.probe import Probe
from autofit.strategies import members
from autofit.strategies.base import Facts
from autofit.workloads.batches import BatchSource
from autofit.workloads.first_loss import loss_of
from autofit.workloads.loss import LossRule
from autofit.workloads.sources import source_of
from autofit.workloads.step import Draft, StepBatch, TrainStep
from autofit.workloads.tree import Batch
from autofit.workloads.workload import Workload

COMPILED_FROM = "_torchdynamo_orig_callable"
"""Attribute of a function that torch.compile returned."""
HOOKS_REFUSED = "saved tensor hooks"
"""Part of the error with which `torch.func` refuses to run under hooks on saved tensors."""
COMPILED_STEPS = 8
"""Number of steps on other batches of the loader in which compilations are counted."""


def diagnose_workload(
    workload: Workload,
    device: Device,
    target: str,
    scope: Scope = EVERYTHING,
    *,
    may_move: bool = False,
    seed: int = 0,
) -> Diagnosis:
    """Returns what the doctor finds in a training.

    Args:
        workload: what is trained. It is restored bit-identically.
        device: where it is trained.
        target: name of the workload.
        scope: what to look for.
        may_move: whether the model may be moved to the device for good.
        seed: selects the samples.

    Raises:
        WorkloadError: the workload does not train, or cannot be run as it is given.
        UserCodeError: its code raised an error.
        NothingFits: not even one small batch fits on the device.
        DevicePoisoned: the device does not respond.
    """
    if not workload.training:
        raise WorkloadError(
            'found mode="inference"; expected a training, since the doctor looks at gradients and updates. For an '
            "evaluation, use `for batch in autofit.watch(loader)`."
        )
    with as_users_errors(device):
        place(workload, device, may_move)
        guard = Guard.of(workload)
    with as_poison(device), guard.backstop, guard, as_users_errors(device):
        workload.set_mode()
        source = source_of(workload.loader, worst_case=workload.worst_case, seed=seed)
        loss = loss_of(workload, source, device.torch_device)
        guard.restore()
        micro, count = _batch(workload, source, loss)
        batch = partial(_batch_of, source, micro, count)
        parts = partial(roots_of, workload), [workload.model], device, micro * count
        for saves in (True, False):
            workload.model.zero_grad(set_to_none=True)
            step = TrainStep(Plan(), Draft.of(workload, loss, device.torch_device))
            plans = _OtherSteps(workload, device, source, loss, (micro, count), step.optimizer, guard.restore)
            further = plans.what_if(partial(_run, step, batch), scope.time_s) if scope.runs else None
            try:
                session = Session(target, *parts, scope=scope, what_if=further, saves=saves)
                workload.set_mode()  # the session has seen the mode before
                return observed(session, step, batch)
            except RuntimeError as error:
                if not saves or HOOKS_REFUSED not in str(error):
                    raise
            finally:
                step.model.zero_grad(set_to_none=True)
                guard.restore()
                device.release()
        raise AssertionError("the second observation has returned or raised")


def _batch(workload: Workload, source: BatchSource, loss: LossRule) -> tuple[int, int]:
    """Returns the samples of a micro batch, and the number of micro batches of an observed step."""
    joinable = source.resizable and source.max_size is None
    total, whole = workload.global_batch_size, loss.update is not None
    micro, count = baseline_batch(source.user_batch_size, total, source.resizable, joinable, whole=whole)
    return micro, min(count, MOST_PARTS)


def roots_of(workload: Workload) -> dict[str, object]:
    """Returns the objects of a workload, beside its model, that may hold tensors, by name."""
    named = {name: getattr(workload, name) for name in ("step_fn", "loss_fn", "update_fn", "loader")}
    return {name: value for name, value in named.items() if value is not None}


def _batch_of(source: BatchSource, micro: int, count: int) -> StepBatch:
    return StepBatch.alike([source.worst(micro) for _ in range(count)])


def _run(step: TrainStep, batch: Callable[[], StepBatch]) -> None:
    step(batch())


def observed(session: Session, step: TrainStep, batch: Callable[[], StepBatch]) -> Diagnosis:
    """Runs steps until the observation is complete, and returns what was found. The session is closed.

    If a step fails after one was observed, the diagnosis of those before it is returned.
    """
    try:
        for number in counting():
            try:
                with uncompiled():  # the first, which is not watched, too
                    step(_loaded(session, batch))  # no variable holds the batch
            except Exception as error:
                found = session.end(f"step {number + 1} failed: {type(error).__name__}: {error}", failed=True)
                if found is None:
                    raise
                return found
            if (found := session.boundary()) is not None:
                return found
        raise AssertionError("an observation ends")
    finally:
        session.close()


def _loaded(session: Session, batch: Callable[[], StepBatch]) -> StepBatch:
    with session.loading():
        return batch()


class _OtherSteps:
    """Steps of a training under plans with one other value of a knob."""

    def __init__(
        self,
        workload: Workload,
        device: Device,
        source: BatchSource,
        loss: LossRule,
        batch: tuple[int, int],
        optimizer: torch.optim.Optimizer | None,
        restore: Callable[[], None],
    ) -> None:
        self._workload, self._device, self._source, self._loss = workload, device, source, loss
        self._batch, self._optimizer, self._restore = batch, optimizer, restore

    def what_if(
        self, run: Callable[[], None], time_s: float
    ) -> Callable[[Callable[[], Iterable[torch.Tensor]]], WhatIf]:
        """Returns what makes a bench of these steps and that of the training, given the tensors that are kept."""

        def made(held: Callable[[], Iterable[torch.Tensor]]) -> WhatIf:
            return WhatIf(
                run,
                self._device,
                held,
                plan=self.step,
                loading=self.loading,
                padding=cache(self.padding),
                batch=cache(self.batch),
                recompilations=cache(self.recompilations),
                worker_growth=cache(self.worker_growth),
                until_s=monotonic() + time_s,
            )

        return made

    def step(self, knob: str, value: KnobValue) -> Change | None:
        """Returns the step with this value; None if the workload does not offer it."""
        offers = [member.offered(self._facts) for member in members() if knob in member.owns]
        if not any(value in each.values for offer in offers for each in offer.knobs if each.name == knob):
            return None
        return Change(f"{knob}={value}", opened=partial(self._opened, Plan(values={knob: value})))

    def loading(self) -> Loading | None:
        """Returns how fast the loader is with more workers, after a probe of the baseline; None if it needs no more."""
        micro, count = self._batch
        _, fetch_s = self._device.timed(lambda: self._source.typical(micro, count))
        with self._opened(Plan()) as run:
            _, step_s = self._device.timed(run)
        if fetch_s <= FREE_RATIO * step_s:
            return None
        plan = Plan(values={MICRO_BATCH_SIZE: micro, ACCUMULATION_STEPS: count})
        budget = budget_of(self._workload, self._device, Options(), varies=self._source.varies)
        batches, most_bytes = PlanBatches(self._source), budget.memory_bytes
        outcome = Probe(plan, Purpose.PROBE, self._build, batches, self._device, most_bytes, enforce=False).run()
        if outcome.measurement is None or not outcome.measured:
            return None
        found = LoaderTrials(self._source, self._device).run(outcome.measurement, micro)
        present = getattr(self._source.loader, "num_workers", 0)
        return None if found is None or found.kept or found.workers <= present else found

    def batch(self) -> Batch:
        """Returns a batch as the loader makes it."""
        return self._source.worst(self._batch[0])

    def padding(self) -> float | None:
        """Returns the share of padding in a batch; None if samples cannot be batched anew."""
        try:
            return self._source.padding(self._batch[0]) if self._source.varies else 0.0
        except WorkloadError:
            return None

    def recompilations(self) -> Recompilations | str:
        """Returns what is compiled again in steps on batches as they come; why not, if nothing is compiled."""
        workload = self._workload
        written = (workload.step_fn, workload.loss_fn, workload.update_fn)
        models = (workload.model, *(each for each in written if isinstance(each, torch.nn.Module)))
        compiled = any(is_compiled(part) for model in models for part in model.modules())
        if not compiled and not any(hasattr(each, COMPILED_FROM) for each in written):
            return "the model is not compiled"
        try:
            with self._build(Plan()) as step:
                runs = (partial(self._device.timed, partial(step, batch)) for batch in self._as_they_come())
                return recompilations((lambda run=run: run()[1]) for run in runs)  # type: ignore[misc]  # bound early
        except Exception as error:  # noqa: BLE001  # the user's code, which compiled code may break
            return f"steps on other batches of the loader failed: {named_error(error)}"

    def worker_growth(self) -> WorkerGrowth | str:
        """Returns the memory of the loader's workers over time; why not, if it cannot be watched."""
        return worker_growth(self._source, math.prod(self._batch))

    def _as_they_come(self) -> Iterator[StepBatch]:
        """Yields batches of steps as the loader makes them, and near the end the incomplete last one of a pass."""
        micro, count = self._batch
        drawn = self._source.fresh(micro, 0)
        for number in range(COMPILED_STEPS):
            rest = self._source.remainder(micro) if number == COMPILED_STEPS - 2 and count == 1 else 0
            if rest and self._source.resizable:
                yield StepBatch.alike(self._source.typical(rest, 1))
            else:
                yield StepBatch.alike(list(islice(drawn, count)))

    @cached_property
    def _facts(self) -> Facts:
        options = Options()
        budget = budget_of(self._workload, self._device, options, varies=self._source.varies)
        source, loss, restore = self._source, self._loss, self._restore
        return facts_of(self._workload, source, self._device, options, budget, loss, restore=restore)

    def _build(self, plan: Plan) -> TrainStep:
        draft = Draft.of(self._workload, self._loss, self._device.torch_device)
        draft.optimizer = self._optimizer  # its state is in memory already
        return prepare(plan, draft, members())

    @contextmanager
    def _opened(self, plan: Plan) -> Iterator[Callable[[], None]]:
        with self._build(plan) as step:
            yield partial(_run, step, partial(_batch_of, self._source, *self._batch))
