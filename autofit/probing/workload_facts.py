"""The facts about a workload on a device that strategies need, including the baseline's batch.

Memory that stays allocated between two training steps, and what that leaves of the budget for an evaluation.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches

import torch

from autofit import devices
from autofit.core.briefing import Options
from autofit.core.budget import Budget
from autofit.core.errors import NothingFits, SpaceError, UsageError
from autofit.core.plan import Plan
from autofit.core.units import format_bytes
from autofit.devices.base import Device
from autofit.strategies import members
from autofit.strategies.base import Facts, Strategy, Watch
from autofit.tracing.tracing import rehearse
from autofit.workloads.batches import BatchSource
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule
from autofit.workloads.step import TrainStep
from autofit.workloads.tree import pieces
from autofit.workloads.update import WHOLE
from autofit.workloads.workload import Workload, state_tensors


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
        SpaceError: see `baseline_batch`.
    """
    # A pass without updates has no global batch to keep.
    total = workload.global_batch_size if workload.training else None
    joinable = source.resizable and source.max_size is None
    lengths = [size for size in (source.length, source.max_size) if size is not None]
    whole = loss.update is not None
    micro, steps = baseline_batch(source.user_batch_size, total, source.resizable, joinable, whole=whole)

    def rehearsed(watch: Watch) -> None:
        try:
            source.on_small(lambda size: rehearse(workload, loss, Counted(source.typical(size, 1)[0], size), watch))
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
    why = f"the global batch of {total} is not a multiple of the loader's batch of {user_batch_size}"
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


def static_bytes(step: TrainStep) -> int:
    """Returns the bytes of the distinct storages that stay allocated between two steps, on the step's device."""
    model, optimizer = step.draft.model, step.draft.optimizer
    found: list[torch.Tensor] = [*model.parameters(), *model.buffers()]
    found += [p.grad for p in model.parameters() if p.grad is not None and p.grad.layout is torch.strided]
    if optimizer is not None:
        found += state_tensors(optimizer)
    return storage_bytes(found, step.draft.device)


def storage_bytes(found: Iterable[torch.Tensor], device: torch.device) -> int:
    """Returns the bytes of the distinct storages of tensors, of those that are on a device of this type."""
    here = [piece for t in found if t.device.type == device.type for piece in pieces(t)]
    storages = {storage.data_ptr(): storage.nbytes() for storage in (piece.untyped_storage() for piece in here)}
    return sum(storages.values())


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
    kept = max(options.resident_bytes - _held_bytes(workload, device), 0)
    text = f"{format_bytes(budget.memory_bytes)} of the training - {format_bytes(kept)} that it keeps beside the model"
    if kept >= budget.memory_bytes:
        raise NothingFits(f"nothing is left of the budget for evaluation: {text}. Give a larger memory budget.")
    left = budget.memory_bytes - kept
    return budget.model_copy(update={"memory_bytes": left, "memory_note": f"{text} = {format_bytes(left)}"})


def _held_bytes(workload: Workload, device: Device) -> int:
    """Returns the resident bytes that the readings of a probe of `workload` contain.

    These are the model, and on a device that counts all live tensors also the state that the user's optimizer has now.
    """
    found: list[torch.Tensor] = [*workload.model.parameters(), *workload.model.buffers()]
    if device.live_bytes() is not None and isinstance(workload.optimizer, torch.optim.Optimizer):
        found += state_tensors(workload.optimizer)
    return storage_bytes(found, device.torch_device)
