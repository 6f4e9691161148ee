"""What it takes to open a workload on a device: its place, its budget, and the facts that strategies need.

Among the facts is the baseline's batch. What the user's own code raises meanwhile is raised as such.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches

import torch
from torch import nn

from autofit import devices
from autofit.core.briefing import Options
from autofit.core.budget import Budget
from autofit.core.errors import (
    AutofitError,
    DevicePoisoned,
    NothingFits,
    RestoreError,
    SpaceError,
    UsageError,
    UserCodeError,
    WorkloadError,
)
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.space import SpaceFacts
from autofit.core.units import format_bytes, format_names
from autofit.devices.base import Device
from autofit.failures.classify import classify
from autofit.failures.evidence import collect
from autofit.strategies import members
from autofit.strategies.base import Facts, Strategy, Watch
from autofit.tracing.tracing import rehearse
from autofit.workloads.batches import BatchSource
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule
from autofit.workloads.step import storage_bytes
from autofit.workloads.update import WHOLE
from autofit.workloads.workload import Workload, state_tensors

NAMED = 3
"""Maximum number of modules that a note names."""


def place(workload: Workload, device: Device, may_move: bool) -> None:
    """Moves the model and a loss module to `device` if `may_move`; otherwise checks that the model is there.

    Raises:
        WorkloadError: the model is on another device, or on several.
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
            f"the model is on {names}, but it is to be tuned on {wanted}. Move it first with model.to({str(wanted)!r}) "
            f"and create the optimizer afterwards; or pass device={names.split(',')[0]!r}."
        )


def facts_of(
    workload: Workload,
    source: BatchSource,
    device: Device,
    options: Options,
    budget: Budget,
    loss: LossRule,
    restore: Callable[[], None] = lambda: None,
) -> Facts:
    """Returns the facts that strategies need. `restore` puts back what the user's code changes in a rehearsal.

    Raises:
        SpaceError: see `share_of` and `baseline_batch`.
    """
    # A pass without updates has no global batch to keep.
    total = share_of(workload.global_batch_size, options.ranks) if workload.training else None
    joinable = source.resizable and source.max_size is None
    lengths = [size for size in (source.length, source.max_size) if size is not None]
    whole = loss.update is not None
    micro, steps = baseline_batch(source.user_batch_size, total, source.resizable, joinable, whole=whole)

    def rehearsed(watch: Watch, *, conditions: bool = True) -> bool:
        def on(size: int) -> bool:
            return rehearse(workload, loss, Counted(source.typical(size, 1)[0], size), watch, conditions=conditions)

        try:
            return source.on_small(on)
        finally:
            restore()  # the user's functions may have kept a tensor without data

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
        dataset_size=min(lengths, default=None),
        resizable=source.resizable,
        varies=source.varies,
        cut_from=source.user_batch_size if source.resizable and not joinable else None,
        max_grad_norm=workload.max_grad_norm,
        memory_budget_bytes=budget.memory_bytes,
        host_memory_bytes=devices.available_host_bytes() if device.is_available() else None,
        source=source,
        rehearse=rehearsed,
        update_fn=whole,
        own_process=options.own_process,
        on_host=device.is_host,
        ranks=options.ranks,
        layout=options.layout,
        pinned=options.pinned,
    )


def share_of(global_batch_size: int | None, ranks: int) -> int | None:
    """Returns the samples per optimizer step of one rank; None if the batch is free.

    Raises:
        SpaceError: the ranks cannot have equal shares.
    """
    if global_batch_size is None:
        return None
    if global_batch_size % ranks:
        raise SpaceError(
            f"found a global batch of {global_batch_size} for {ranks} ranks; expected a multiple of {ranks}, so that "
            "each rank has as many samples. Change one of the two."
        )
    return global_batch_size // ranks


def check_divided(
    space: SpaceFacts, layout: str | None, ranks: int, otherwise: str = "choose another layout, or estimate one rank"
) -> None:
    """Checks that a training can be divided among ranks.

    Raises:
        SpaceError: no layout is offered; the message says why.
    """
    techniques = [member for member in members() if member.for_ranks]
    owned = {knob for member in techniques for knob in member.owns}
    if any(knob.name in owned for knob in space.knobs):
        return
    names = {member.name for member in techniques}
    reasons = [each.reason for each in space.refused if each.name.partition("=")[0] in names]
    found = "no layout can" if layout is None else f"the layout {layout} cannot"
    raise SpaceError(
        f"{found} be applied to {ranks} ranks: {'; '.join(reasons) or 'its technique is excluded'}. Change that, "
        f"{otherwise}."
    )


def baseline_batch(
    user_batch_size: int, global_batch_size: int | None, resizable: bool, joinable: bool = True, *, whole: bool = False
) -> tuple[int, int]:
    """Returns the micro batch size and the accumulation steps of the baseline.

    Under a global batch, the micro batch is the largest divisor of it that is not above the loader's batch. If batches
    can be cut but not joined, it also divides the loader's batch. A step that is done as a whole (`whole`) has one
    micro batch.

    Raises:
        SpaceError: only the loader's own batches can be run, and the global batch is not a multiple of them.
    """
    if global_batch_size is None:
        return user_batch_size, 1
    found = f"found a global batch of {global_batch_size} with a loader whose batches of {user_batch_size}"
    if whole and global_batch_size != user_batch_size and not (resizable and joinable):
        raise SpaceError(
            f"{found} cannot be joined; expected equal ones, since {WHOLE}. Change one of the two, or give a "
            "DataLoader over samples with a collate_fn."
        )
    if whole:
        return global_batch_size, 1
    if not resizable and global_batch_size % user_batch_size:
        raise SpaceError(
            f"{found} can be neither cut nor joined; expected a multiple of the loader's batch. Change one of the two, "
            "or give a DataLoader over samples with a collate_fn."
        )
    if not joinable:
        micro = math.gcd(user_batch_size, global_batch_size)
    else:
        micro = max(d for d in range(1, min(user_batch_size, global_batch_size) + 1) if global_batch_size % d == 0)
    return micro, global_batch_size // micro


def baseline_notes(facts: Facts, user_batch_size: int) -> Iterator[str]:
    """Yields a note if the baseline does not run in the loader's batches."""
    total, steps = facts.global_batch_size, facts.accumulation_steps
    if total is None or facts.micro_batch_size == user_batch_size:
        return
    whose = "global batch" if facts.ranks == 1 else "share of each rank"
    why = f"the {whose} of {total} is not a multiple of the loader's batch of {user_batch_size}"
    if facts.update_fn:
        why = f"{WHOLE} of {total} samples, and the loader has batches of {user_batch_size}"
    yield f"{why}: the baseline is measured as {steps} micro batch{'es' * (steps > 1)} of {facts.micro_batch_size}"


def batch_to_trace(source: BatchSource, plan: Plan) -> Counted:
    """Returns a worst batch for the trace of a plan. It is a small one if its shapes determine those of any size."""
    size = min(source.small_size, plan.micro_batch_size) if source.even else plan.micro_batch_size
    return Counted(source.worst(size), size)


def check_names(options: Options) -> None:
    """Checks the names of strategies and knobs in options, for which neither the model nor the device is needed.

    Raises:
        SpaceError: a name is unknown.
        UsageError: no strategy is left.
    """
    chosen(options.strategies, options.without)
    knobs = [knob for member in members() for knob in member.owns]
    for name in options.pinned:
        if name not in knobs:
            raise SpaceError(f"unknown knob {name!r}. {_expected(name, knobs)}")


def chosen(names: Sequence[str] | None, without: Sequence[str] = ()) -> tuple[Strategy, ...]:
    """Returns the strategies with these names, or all for None, except those in `without`.

    Raises:
        SpaceError: a name is unknown.
        UsageError: `without` leaves none.
    """
    known = [member.name for member in members()]
    unknown = [name for name in (*(names or ()), *without) if name not in known]
    if unknown:
        raise SpaceError(f"unknown strategy {', '.join(map(repr, unknown))}. {_expected(unknown[0], known)}")
    wanted = known if names is None else names
    found = tuple(member for member in members() if member.name in wanted and member.name not in without)
    if without and not found:
        raise UsageError(
            f"found no technique to search: of {', '.join(wanted) or 'none'}, {', '.join(without)} is excluded. "
            f"Expected at least one of {', '.join(known)}. Exclude fewer, or choose others."
        )
    return found


def _expected(name: str, known: Sequence[str]) -> str:
    """Returns the names that were expected, after the one that an unknown name is like."""
    near = get_close_matches(name, known, n=1)
    return f"{f'Did you mean {near[0]!r}? ' if near else ''}Expected some of {', '.join(known)}."


def budget_of(workload: Workload, device: Device, options: Options, *, varies: bool) -> Budget:
    """Returns the memory budget of a search, with its arithmetic in words.

    If the workload is the evaluation of a training, what the training keeps beside the model is taken off: above all
    the state of the optimizer, which stays on the device while the model is evaluated.

    Raises:
        UsageError: as `Device.budget`.
        NothingFits: the training keeps as much as the budget allows.
    """
    budget = device.budget(options.memory_budget, varies)
    if not options.resident_bytes:
        return budget
    # The readings of a probe contain the model; where all live tensors count, also the state of the user's optimizer.
    held: list[torch.Tensor] = [*workload.model.parameters(), *workload.model.buffers()]
    if device.live_bytes() is not None and isinstance(workload.optimizer, torch.optim.Optimizer):
        held += state_tensors(workload.optimizer)
    kept = max(options.resident_bytes - storage_bytes(held, device.torch_device), 0)
    text = f"{format_bytes(budget.memory_bytes)} of the training - {format_bytes(kept)} that it keeps beside the model"
    if kept >= budget.memory_bytes:
        raise NothingFits(f"nothing is left of the budget for evaluation: {text}. Give a larger memory budget.")
    left = budget.memory_bytes - kept
    return budget.model_copy(update={"memory_bytes": left, "memory_note": f"{text} = {format_bytes(left)}"})


def training_notes(workload: Workload, loss: LossRule, eval_modules: Sequence[str], done: str) -> Iterator[str]:
    """Yields what was assumed about the training; with an assumed optimizer it was `done`: "measured" or "estimated".

    `eval_modules` are the names of modules of a model in training mode that were in evaluation mode.
    """
    if loss.inferred:
        yield f"the loss was inferred: {loss.about}"
    if eval_modules:
        yield (
            f"found {format_names(eval_modules, NAMED)} in evaluation mode in a model that is in training mode: "
            "measured in training mode, because model.train() in a training loop sets every module to training mode. "
            "To keep modules in evaluation mode, override train() of your model"
        )
    if workload.optimizer is None and workload.training:
        yield f"no optimizer was given: {done} with torch.optim.AdamW and its defaults"


@contextmanager
def as_users_errors(device: Device) -> Iterator[None]:
    """Turns any error that the user's objects raise inside into an error that says so.

    Raises:
        UserCodeError: the user's objects raised an error.
        NothingFits: they ran out of memory.
        DevicePoisoned: the device no longer responds.
    """
    try:
        with as_poison(device):
            yield
    except AutofitError:
        raise
    except Exception as error:
        evidence = collect(error)
        failure = classify(evidence, device_is_host=device.is_host)
        if failure.status.does_not_fit:
            raise NothingFits(
                f"not even two samples fit: {failure.reason}. Give more memory, or use a smaller model or shorter "
                "samples."
            ) from error
        where = " on the CPU" if device.is_host else ""
        raise UserCodeError(
            f"your code failed before the first probe: {failure.reason}. Run one training step of your own{where} to "
            "reproduce it, fix it, then run this again.",
            evidence.traceback_text,
        ) from error


@contextmanager
def as_poison(device: Device) -> Iterator[None]:
    """Turns whatever fails inside because the device no longer responds into an error that says so.

    A `RestoreError` becomes a note on it, which lists what was lost.

    Raises:
        DevicePoisoned: the device no longer responds.
    """
    try:
        yield
    except DevicePoisoned:
        raise
    except Exception as error:
        if (poison := poison_of(error, device)) is None:
            raise
        poisoned = DevicePoisoned(
            f"the device answers every call with an error: {poison}. Run one training step of your own in a new "
            "process. If that works, your code poisoned the device in this process; if not, reset the device."
        )
        if isinstance(error, RestoreError):
            poisoned.add_note(str(error))
        raise poisoned from error


def poison_of(error: Exception, device: Device) -> str | None:
    """Returns why the device no longer responds after an error, or None. Not every error says so: it is asked."""
    try:
        device.synchronize()
    except RuntimeError as answer:
        return str(answer).strip().partition("\n")[0]
    failure = classify(collect(error), device_is_host=device.is_host)
    return failure.reason if failure.status is Status.POISONED else None
