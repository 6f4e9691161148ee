"""The public calls: the user's objects become nouns, and the parts are wired together."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from pydantic import BaseModel, ValidationError
from torch import nn

from autofit import devices, locks, planfile
from autofit.core.briefing import Options
from autofit.core.budget import Clock
from autofit.core.errors import BudgetSpent, UsageError, WorkloadError
from autofit.core.event import Event
from autofit.core.objective import Objective
from autofit.core.units import parse_duration
from autofit.devices.base import Device
from autofit.estimation import estimate as estimating
from autofit.estimation.estimation import Estimation
from autofit.fit import Fit, Terms
from autofit.guard import Guard
from autofit.probing.bench import Bench
from autofit.probing.remote.bench import Target
from autofit.probing.standin_bench import StandInBench
from autofit.probing.watchdog import Overdue, Watchdog
from autofit.search.search import Listen, Request, search
from autofit.trackers.progress import Progress
from autofit.trackers.search_state import Yardstick
from autofit.workloads.workload import OptimizerRecipe, Workload

_Record = TypeVar("_Record", bound=BaseModel)


def tune(  # noqa: PLR0913  # the public call: each argument is a choice of the user's
    model: nn.Module,
    loader: Any,
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    step_fn: Callable[..., torch.Tensor] | None = None,
    optimizer: OptimizerRecipe = None,
    global_batch_size: int | None = None,
    max_global_batch_size: int | None = None,
    memory_budget: int | float | str | None = None,
    time_budget: float | str | None = None,
    numerics: Literal["exact", "mixed", "any"] = "mixed",
    strategies: Sequence[str] | None = None,
    worst_case: Any = None,
    mode: Literal["train", "inference"] = "train",
    max_grad_norm: float | None = None,
    extras: Sequence[Any] = (),
    device: str | torch.device | None = None,
    seed: int = 0,
    study: str | Path | None = None,
    searcher: str | None = None,
    objective: Literal["samples", "tokens"] = "samples",
    planned_steps: int | None = None,
    progress: bool | Listen = True,
) -> Fit:
    """Finds the fastest way to train `model` on batches of `loader` within the memory budget.

    Short runs on this device decide. Everything passed in is bit-identical afterwards, with what it reaches:
    attributes, containers, closures, bound objects, hooks, and the globals that your functions name in your own
    modules. What cannot be put back (open files, iterators in progress, a data set of more than 256 MiB in memory) is
    named in the caveats. Interrupted with Ctrl-C it puts everything back too; called again it goes on from the trials
    in the study.

    Args:
        model: a module on the device to train on.
        loader: a `DataLoader`, a list of batches, or anything that can be iterated again and again.
        loss_fn: `loss_fn(outputs, targets) -> scalar tensor` for batches `(inputs, targets)`. Without it, and without
            `step_fn`, the loss is the output's `.loss`, or cross-entropy for integer targets, or the mean squared
            error for targets of the output's shape; the choice is named in the caveats.
        step_fn: `step_fn(model, batch) -> scalar tensor`, for everything else.
        optimizer: an optimizer over the model's parameters, or a callable that makes one; None: AdamW.
        global_batch_size: samples per optimizer step, kept exactly. None leaves the batch free: the smallest batch is
            taken of those that are fastest within the tie margin, and yours unless another is faster beyond the noise.
        max_global_batch_size: samples per optimizer step at most where the batch is free. None: a fiftieth of the data
            set, so that an epoch keeps 50 steps; your own batch is always possible.
        memory_budget: bytes, "20GiB", or a fraction of the capacity. None: what is available less the headroom.
        time_budget: seconds, or "5min", for the whole search. None: until nothing left can win.
        numerics: "exact" keeps the arithmetic; "mixed" also tries tf32, bf16 and fp16 autocast, each behind a
            gradient check; "any" also what changes the result, named in the caveats.
        strategies: names of the techniques to search: "batching", "precision", "checkpointing", "memory_format",
            "optimizer_implementation". None: all that apply.
        worst_case: a sample, or a callable `size -> batch`, that needs the most memory. None: the data set is scanned
            for its longest samples.
        mode: "train", or "inference" for the forward pass alone.
        max_grad_norm: clip gradients to this L2 norm, as your training does.
        extras: further objects to put back, where a caveat says that they are not found or not followed: anything with
            attributes, a tensor, or an object with `state_dict` and `load_state_dict`.
        device: "cuda", "cuda:1", "cpu". None: the device the model is on.
        seed: makes the search repeatable.
        study: where trials are kept: a path, an Optuna storage URL, or ":memory:". None: `.autofit/study.db`.
        searcher: name of the searcher.
        objective: what is counted per second: "samples", or "tokens" that are not padding.
        planned_steps: optimizer steps (in inference, batches) that your training will have, at your own global batch.
            Where a plan's first steps take longer than steady ones (a model that compiles, kernels to be tuned), that
            time is spread over as many samples, and the shortest whole training wins. None: steady steps alone count.
        progress: True shows finished trials above a live line on a terminal, plain lines elsewhere; False nothing; a
            callable gets each event. What gives no sign of life for long is told from another thread, by an event of
            kind "waiting".

    Returns:
        The proven plan, with its proof, the baseline, the alternatives and the caveats.

    Raises:
        WorkloadError, SpaceError, StudyError, UsageError: what was given cannot be used; the message says why.
        NothingFits: no plan runs inside the memory budget.
        UserCodeError: the model, loss or data raised an error of their own at every size.
        BudgetSpent: the time ended before any plan was measured, or proven. What hangs is ended for that, unless it
            is one call into a library that does not return.
        Busy: another tuner uses the device or the study, and did so for half of the time budget (10 minutes without).
        DevicePoisoned: the device stopped answering; the study keeps all finished trials.
        RestoreError: something could not be put back.
    """
    clock = Clock(limit_s=None if time_budget is None else parse_duration(time_budget))
    workload = Workload(
        model=model,
        loader=loader,
        loss_fn=loss_fn,
        step_fn=step_fn,
        optimizer=optimizer,
        global_batch_size=global_batch_size,
        max_global_batch_size=max_global_batch_size,
        worst_case=worst_case,
        mode=mode,
        max_grad_norm=max_grad_norm,
        extras=extras,
    )
    chosen = _device(model, device)
    options = _options(
        memory_budget, numerics, strategies, seed, enforce=not chosen.is_host, cold=planned_steps is not None
    )
    request = Request(
        time_s=clock.limit_s,
        study=study,
        searcher=searcher,
        objective=_record(Objective, unit=objective),
        planned_steps=planned_steps,
        seed=seed,
    )
    about, wait_s = f"{chosen.name()} ({chosen.type})", locks.patience_s(request.time_s)
    with ExitStack() as held:
        with Progress.of(progress) as waiting:
            held.enter_context(locks.held(chosen.lock_key, about, wait_s, lambda text: waiting(Event("stage", text))))
            watch = held.enter_context(Watchdog(clock))
            with watch.telling(lambda text: waiting(Event("waiting", text))):
                bench = _opened(workload, chosen, options, watch)
        with bench.backstop, bench:
            against = Yardstick.of(bench.briefing, request.objective, request.time_s, clock)
            with Progress.of(progress, against) as listen, watch.telling(lambda text: listen(Event("waiting", text))):
                listeners = [listen, lambda event: watch.beat("choosing the next plan")]
                recommendation = search(
                    bench.briefing, bench.evaluate, request, listeners, clock, bench.trace, bench.record
                )
    if bench.changed:
        note = f"changed while tuning, and could not be put back: {', '.join(bench.changed)}"
        recommendation = recommendation.model_copy(update={"caveats": (*recommendation.caveats, note)})
    return Fit(recommendation, Terms(loss_fn, step_fn, optimizer))


def estimate(  # noqa: PLR0913  # the public call: each argument is a choice of the user's
    workload: str | Path | nn.Module,
    loader: Any = None,
    *,
    device: str | torch.device | None = None,
    memory_budget: int | float | str | None = None,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    step_fn: Callable[..., torch.Tensor] | None = None,
    optimizer: OptimizerRecipe = None,
    global_batch_size: int | None = None,
    numerics: Literal["exact", "mixed", "any"] = "mixed",
    strategies: Sequence[str] | None = None,
    worst_case: Any = None,
    mode: Literal["train", "inference"] | None = None,
    max_grad_norm: float | None = None,
    arguments: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Estimation:
    """Returns what training will need on a device, from traces alone: nothing runs there, and it need not be here.

    Args:
        workload: "train.py:make_workload" or "package.module:make_workload", which runs in a process of its own; or a
            model, for the device that it is on.
        loader: with a model: as in `tune`, and so are `loss_fn`, `step_fn`, `optimizer` and `worst_case`.
        device: with a factory: a device such as "H200", or "cpu" for this machine; None for one with `memory_budget`
            of memory. With a model: the device that it is on.
        memory_budget: bytes, "20GiB", or a fraction of the capacity. None: the device less the headroom.
        loss_fn: see `tune`.
        step_fn: see `tune`.
        optimizer: see `tune`.
        global_batch_size: samples per optimizer step, kept exactly. None leaves it to the factory, or free.
        numerics: see `tune`.
        strategies: see `tune`.
        worst_case: see `tune`.
        mode: "train" or "inference"; None: what the factory says, or "train".
        max_grad_norm: see `tune`.
        arguments: keyword arguments for the factory.
        seed: chooses the samples that are looked at.

    Returns:
        By precision, the largest micro batch that fits, and how many blocks have to be checkpointed for larger ones;
        what makes up the peak of your own plan. `print` draws it.

    Raises:
        Untraceable: the step cannot be traced; the message says what stopped it and where.
        UsageError, WorkloadError, SpaceError: what was given cannot be used; the message says why.
        UserCodeError: the factory, model, loss or data raised an error of their own.
    """
    options = _options(memory_budget, numerics, strategies, seed)
    common: dict[str, Any] = {"global_batch_size": global_batch_size, "max_grad_norm": max_grad_norm}
    own = {"loader": loader, "loss_fn": loss_fn, "step_fn": step_fn, "optimizer": optimizer, "worst_case": worst_case}
    if isinstance(workload, (str, Path)):
        if misplaced := [name for name, value in own.items() if value is not None]:
            raise UsageError(
                f"found {', '.join(misplaced)} beside the factory {str(workload)!r}; expected that the factory returns "
                "them: as an autofit.Workload, or a dict of tune's arguments."
            )
        wanted = None if device is None else str(device)
        return estimating.estimate_target(
            Target(
                name=str(workload),
                arguments=arguments or {},
                overrides={**common, "mode": mode},
                options=options,
                stand_in=estimating.described(wanted, memory_budget),
            )
        )
    chosen = _where_it_is(workload, device)
    made = Workload(model=workload, mode=mode or "train", **own, **common)
    guard = Guard.of(made)
    with guard.backstop, guard:
        bench = StandInBench(made, chosen, options, on=chosen.torch_device)
        next_best = estimating.NextBest(bench.record, bench.standing)
        return estimating.estimate(bench.briefing, bench.trace, next_best=next_best)


def load(path: str | Path) -> Fit:
    """Returns the recommendation that a plan file holds, ready to `prepare`.

    Raises:
        PlanFileError: the file is missing, damaged, or of another schema.
    """
    return Fit(planfile.load(path))


def _opened(workload: Workload, device: Device, options: Options, watch: Watchdog) -> Bench:
    """Returns a bench, as long as opening it does not use up the time.

    Raises:
        BudgetSpent: it did.
    """
    try:
        return watch.allowed(lambda: Bench(workload, device, options, watch=watch))
    except Overdue as error:
        raise BudgetSpent(f"{error}. Nothing was measured yet: give more time, or look for what hangs there.") from None


def _options(
    memory_budget: object, numerics: str, strategies: Sequence[str] | None, seed: int, **rest: bool
) -> Options:
    names = (strategies,) if isinstance(strategies, str) else strategies
    return _record(
        Options,
        memory_budget=memory_budget,
        numerics=numerics,
        strategies=None if names is None else tuple(names),
        seed=seed,
        **rest,
    )


def _record(kind: type[_Record], **values: object) -> _Record:
    """Returns a record of what the user gave.

    Raises:
        UsageError: a value is none of those that are possible.
    """
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = "objective" if kind is Objective else first["loc"][0]
        raise UsageError(f"{name} is {first['input']!r}: {first['msg']}. See autofit.tune for its values.") from None


def _where_it_is(model: nn.Module, asked: str | torch.device | None) -> Device:
    """Returns the device that the model is on, which alone can be estimated for in the user's own process.

    Raises:
        UsageError: another one is asked for.
    """
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f'found a {type(model).__name__}; expected a factory such as "train.py:make_workload", or a '
            "torch.nn.Module and its loader."
        )
    found = _home(model)
    if asked is not None and str(asked).partition(":")[0] != found.type:
        raise UsageError(
            f"found device={str(asked)!r} for a model on {found}. A device that is not here needs a stand-in, which "
            "would stay in this process; expected a factory, which runs in a process of its own: "
            f'autofit.estimate("train.py:make_workload", device={str(asked)!r}).'
        )
    return devices.choose(str(found))


def _home(model: nn.Module) -> torch.device:
    return next((t.device for t in (*model.parameters(), *model.buffers())), torch.device("cpu"))


def _device(model: nn.Module, asked: str | torch.device | None) -> Device:
    """Returns the device asked for, or the one that the model is on."""
    if asked is not None:
        return devices.choose(str(asked))
    if not isinstance(model, nn.Module):
        raise WorkloadError(
            f"model is a {type(model).__name__}; expected a torch.nn.Module. Pass the model first, the loader second."
        )
    found = _home(model)
    best = devices.choose()
    if found.type == "cpu" and not best.is_host:
        raise WorkloadError(
            f"the model is on the CPU, while {best.name()} ({best.type}) is available. Move it first: "
            f'model.to("{best.type}"), and make the optimizer afterwards; or pass device="cpu" to tune for the CPU.'
        )
    return devices.choose(str(found))
