"""The public calls: they turn the user's objects into a workload and wire the parts."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import nn

from autofit import planfile
from autofit.core.briefing import DOCTOR, Examiner, Layout, Options
from autofit.core.budget import TIME_BUDGET, Clock
from autofit.core.errors import UsageError, WorkloadError
from autofit.core.objective import Objective
from autofit.core.plan import KnobValue
from autofit.core.units import parse_time
from autofit.devices.of_model import device_for, device_it_is_on
from autofit.estimation import estimate as estimating
from autofit.estimation.estimation import Estimation
from autofit.fit import Fit
from autofit.guard import Guard
from autofit.in_process import search_with_evaluation
from autofit.probing.opening import check_names
from autofit.probing.remote.bench import Target
from autofit.probing.standin_bench import StandInBench
from autofit.reports.applying import tuning_call
from autofit.reports.writing import attached
from autofit.search.request import Listen, Request
from autofit.search.search import SearchInterrupted
from autofit.trackers.following import following
from autofit.workloads.batches import checked_loader
from autofit.workloads.factory import record_of
from autofit.workloads.workload import OptimizerRecipe, Terms, Workload

if TYPE_CHECKING:  # a search does without the doctor
    from autofit.doctor.diagnosis import Diagnosis
    from autofit.doctor.loops import WatchedLoader

Item = TypeVar("Item")


def tune(  # noqa: PLR0913  # the public call: each argument is a choice of the user's
    model: nn.Module,
    loader: Any,
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    step_fn: Callable[..., torch.Tensor] | None = None,
    update_fn: Callable[..., Any] | None = None,
    optimizer: OptimizerRecipe = None,
    global_batch_size: int | None = None,
    max_global_batch_size: int | None = None,
    memory_budget: int | float | str | None = None,
    time_budget: float | str | None = TIME_BUDGET,
    prove: float | str | None = None,
    numerics: Literal["exact", "mixed", "any"] = "mixed",
    strategies: Sequence[str] | None = None,
    without: Sequence[str] = (),
    pinned: Mapping[str, KnobValue] | None = None,
    worst_case: Any = None,
    mode: Literal["train", "inference"] = "train",
    eval_loader: Any = None,
    max_grad_norm: float | None = None,
    extras: Sequence[Any] = (),
    device: str | torch.device | None = None,
    seed: int = 0,
    study: str | Path | None = None,
    searcher: str | None = None,
    objective: Literal["samples", "tokens"] = "samples",
    planned_steps: int | None = None,
    progress: bool | Listen = True,
    listeners: Sequence[Listen | str] = (),
) -> Fit:
    """Finds the fastest way to train `model` on batches of `loader` within the memory budget.

    The search decides by short runs on this device. Afterwards everything passed in is bit-identical, and so is
    everything reachable from it: attributes, containers, closures, bound objects, hooks, and the globals that your
    functions use in your own modules. The caveats name what cannot be restored: open files, iterators in progress, a
    data set of more than 256 MiB in memory. Ctrl-C also restores everything; the next call resumes from the trials in
    the study.

    Args:
        model: a module on the device to train on.
        loader: a `DataLoader`, a list of batches, or any other iterable that can be iterated repeatedly. Batches are
            made from its data set and `collate_fn`, so the loader itself is never advanced; see `autofit.Workload`.
        loss_fn: `loss_fn(outputs, targets) -> scalar tensor`, for batches `(inputs, targets)`. Without `loss_fn` and
            `step_fn`, the loss is the output's `.loss`, or cross-entropy for integer targets, or the mean squared
            error for targets of the output's shape. The caveats name the choice.
        step_fn: `step_fn(model, batch) -> scalar tensor`, for every other kind of loss or batch.
        update_fn: `update_fn(model, optimizer, batch) -> scalar tensor`, which does a whole optimizer step by itself,
            for several models or optimizers. See `autofit.Workload`.
        optimizer: an optimizer over the model's parameters, or a callable that makes one from parameters, such as
            `lambda params: torch.optim.SGD(params, lr=0.1)`. None uses AdamW. With `update_fn` also a dict of several.
        global_batch_size: samples per optimizer step, kept exactly. None leaves the batch free: the search keeps the
            baseline's batch size unless another is faster beyond the noise. It then takes the smallest one that is
            within the tie margin of the fastest.
        max_global_batch_size: largest number of samples per optimizer step if the batch is free. None uses 1/50 of the
            data set, so that an epoch keeps at least 50 steps. The baseline's batch size is always allowed.
        memory_budget: bytes, "20GiB", or a fraction of the capacity. None uses the available memory less a safety
            margin.
        time_budget: limit for the whole search: seconds, or a text such as "5min". None searches as long as it pays.
            The best plan that is proven by then is the answer.
        prove: seconds, or a text such as "5min", for which the answer runs once more at the end, on batches as they
            come, while its memory is watched; not a part of `time_budget`. `fit.answer.long_proof` says what it showed,
            and a caveat if memory grew or a step failed. None for no such run.
        numerics: "exact" keeps the arithmetic. "mixed" also tries tf32, bf16 and fp16 autocast, and packing, each
            checked against the float32 gradient on your batch; this is a smoke test and says nothing about convergence.
            "any" also keeps techniques that change the result, such as another order of the samples; the plan and the
            caveats name them.
        strategies: names of the techniques to search: "batching", "precision", "checkpointing", "memory_format",
            "optimizer_implementation", "optimizer_in_backward", "activation_offload", "linear_cross_entropy",
            "attention", "compilation", "packing", "length_grouping", "cudnn_benchmark". None searches all that apply.
        without: names of techniques not to search.
        pinned: values that the plan must have, such as `{"precision": "bf16", "micro_batch_size": 16}`. The baseline
            is measured as it is, for comparison.
        worst_case: the sample that needs the most memory, or a callable `size -> batch` that makes such a batch. None
            scans the data set for its longest samples.
        mode: "train", or "inference" for the forward pass alone.
        eval_loader: batches on which you evaluate the model between epochs. A second search, in inference mode, then
            finds the plan for evaluation: `fit.evaluation`. It is kept inside the memory budget with the optimizer's
            state in memory, and a fifth of the time budget is reserved for it. `strategies`, `without` and `numerics`
            hold for it too; `pinned`, `worst_case` and `planned_steps` do not. It runs the forward pass, or `step_fn`.
        max_grad_norm: clip gradients to this L2 norm, as your training does. None does not clip.
        extras: further objects to restore after the search, if a caveat says that they were not found or not
            followed: any object with attributes, a tensor, or an object with `state_dict` and `load_state_dict`.
        device: "cuda", "cuda:1", "cpu". None uses the model's device.
        seed: makes the search repeatable.
        study: where trials are kept: a path, an Optuna storage URL, or ":memory:". None uses `.autofit/study.journal`.
        searcher: name of the search method: "guided" (default), "tpe", "gp", "random", "grid", or a plugin's.
        objective: what to maximise per second: "samples", or "tokens" that are not padding.
        planned_steps: number of optimizer steps (in inference, batches) that you plan to train, at the baseline's
            global batch size. Warm-up cost (compilation, kernel tuning) is amortised over the samples of these steps,
            and the shortest whole training wins. None assumes 10,000 steps if compilation can be searched;
            otherwise it ignores warm-up and compares steady steps.
        progress: True shows finished trials above a live line on a terminal, and as plain lines elsewhere. False shows
            nothing. A callable receives each event, and an exception that it raises ends the search. If a run makes no
            progress for long, an event of kind "waiting" comes from another thread.
        listeners: callables that receive each event (`autofit.trackers.following.Listener`), and experiment trackers to
            log to: "tensorboard:DIR", "mlflow:URI", "wandb:PROJECT", or a plugin's; ":PLACE" may be left out. A
            listener or tracker that fails never ends the search: you get one warning.

    Returns:
        The proven plan with its proof, and the baseline, the alternatives and the caveats.

    Raises:
        WorkloadError, SpaceError, StudyError, UsageError: an argument cannot be used; the message says why.
        NothingFits: no plan runs inside the memory budget.
        UserCodeError: the model, loss or data raised an exception at every size.
        BudgetSpent: the time budget ended before one step of the baseline. A run that hangs is stopped at that point,
            except inside a single library call that never returns.
        SearchInterrupted: a `KeyboardInterrupt` after there was an answer, which is its attribute `fit`.
        Busy: another tuner used the device or the study for half of the time budget (10 minutes without a budget).
        DevicePoisoned: the device stopped responding. The study keeps all finished trials.
        RestoreError: something could not be restored.
    """
    clock, prove_s = Clock(limit_s=parse_time(time_budget)), parse_time(prove) or 0.0
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
        eval_loader=eval_loader,
        max_grad_norm=max_grad_norm,
        extras=extras,
        update_fn=update_fn,
    )
    _check_evaluation(workload)
    chosen = device_for(model, device)
    options = options_of(
        memory_budget=memory_budget,
        numerics=numerics,
        strategies=strategies,
        without=without,
        pinned=pinned,
        seed=seed,
        enforce=not chosen.is_host,
        cold=planned_steps is not None,
    )
    title, command = type(model).__name__, tuning_call(tune, locals())
    asked = Request(clock.limit_s, None, study, searcher, planned_steps=planned_steps, seed=seed, prove_s=prove_s)
    request = replace(asked, objective=record_of(Objective, unit=objective), title=title, command=command)
    terms = Terms(loss_fn, step_fn, optimizer, update_fn)
    try:
        with following(listeners, attach=attached, time_s=request.time_s) as followers:
            found, result = _searched(workload, chosen, options, request, clock, progress, followers)
    except SearchInterrupted as interrupted:
        interrupted.fit = Fit(interrupted.answer, terms)
        interrupted.add_note("autofit: the best plan that is proven so far is the attribute `fit` of this exception")
        raise
    return Fit(found, terms, result)


_searched = partial(
    search_with_evaluation, examiner=Examiner(function=DOCTOR, more="`autofit.diagnose(model, loader)`")
)


def _check_evaluation(workload: Workload) -> None:
    """Rejects an `eval_loader` that cannot be used before the training is searched, which may take long."""
    if workload.eval_loader is None:
        return
    if not workload.training:
        raise UsageError(
            'found eval_loader with mode="inference"; expected it for a training. Pass that loader as loader alone.'
        )
    try:
        checked_loader(workload.eval_loader)
    except WorkloadError as error:
        raise WorkloadError(f"eval_loader: {error}") from None


def estimate(  # noqa: PLR0913  # the public call: each argument is a choice of the user's
    workload: str | Path | nn.Module,
    loader: Any = None,
    *,
    device: str | torch.device | None = None,
    memory_budget: int | float | str | None = None,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    step_fn: Callable[..., torch.Tensor] | None = None,
    update_fn: Callable[..., Any] | None = None,
    optimizer: OptimizerRecipe = None,
    global_batch_size: int | None = None,
    numerics: Literal["exact", "mixed", "any"] = "mixed",
    strategies: Sequence[str] | None = None,
    worst_case: Any = None,
    mode: Literal["train", "inference"] | None = None,
    max_grad_norm: float | None = None,
    arguments: Mapping[str, Any] | None = None,
    seed: int = 0,
    ranks: int = 1,
    layout: Layout | None = None,
) -> Estimation:
    """Estimates the memory that training needs on a device, from traces alone. The device need not be present.

    A step that cannot be traced is run a few times at small micro batch sizes if the device is the CPU.

    Args:
        workload: "train.py:make_workload" or "package.module:make_workload", which runs in a child process; or a
            model, on the CPU unless it is for the device that the model is on.
        loader: see `tune`. Only with a model, like the functions, `optimizer` and `worst_case`.
        device: a device such as "H100 SXM", which need not be present, or "cpu" for this machine. None means any
            device with `memory_budget` of memory with a factory, and the device that the model is on with a model.
        memory_budget: bytes, "20GiB", or a fraction of the capacity. None uses the capacity less a safety margin.
        loss_fn: see `tune`.
        step_fn: see `tune`.
        update_fn: see `tune`.
        optimizer: see `tune`.
        global_batch_size: samples per optimizer step, kept exactly. None uses the factory's, if it has one.
        numerics: see `tune`.
        strategies: see `tune`.
        worst_case: see `tune`.
        mode: "train" or "inference". None uses the factory's, or "train".
        max_grad_norm: see `tune`.
        arguments: keyword arguments for the factory.
        seed: selects the samples that are inspected.
        ranks: number of processes that train together, each on a device of its own. Memory is that of one of them, and
            the loader's batches are those of one; the global batch is ranks x micro batch x accumulation steps.
        layout: what of the model each rank has: "replicated" (`DistributedDataParallel`), "optimizer" (also, but the
            optimizer's state is divided: `ZeroRedundancyOptimizer`), "full" (everything is divided: `fully_shard`),
            "hybrid" (the same, in each row of ranks) or "tensor" (the layers that the model's `tp_plan` names are
            divided). None compares all.

    Returns:
        For each precision, and each value of any other knob that changes memory, the largest micro batch size that fits
        and the number of blocks to checkpoint for larger ones; and the parts of the baseline's peak. `print` shows it
        as text.

    Raises:
        Untraceable: the step cannot be traced; the message says what stopped it and where.
        UsageError, WorkloadError, SpaceError: an argument cannot be used; the message says why.
        UserCodeError: the factory, model, loss or data raised an exception.
    """
    estimating.check_ranks(ranks, layout)
    options = options_of(
        memory_budget=memory_budget, numerics=numerics, strategies=strategies, seed=seed, ranks=ranks, layout=layout
    )
    common: dict[str, Any] = {"global_batch_size": global_batch_size, "max_grad_norm": max_grad_norm}
    user: dict[str, Any] = {"loader": loader, "loss_fn": loss_fn, "step_fn": step_fn, "update_fn": update_fn}
    user |= {"optimizer": optimizer, "worst_case": worst_case}
    if isinstance(workload, (str, Path)):
        if misplaced := [name for name, value in user.items() if value is not None]:
            raise UsageError(
                f"found {', '.join(misplaced)} beside the factory {str(workload)!r}; expected the factory to have "
                "them. Return them from it: as an autofit.Workload, or a dict of tune's arguments."
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
    opened: Callable[..., StandInBench]
    if chosen := device_it_is_on(workload, device):
        opened = partial(StandInBench, device=chosen)
    else:
        opened = partial(StandInBench.of, described=estimating.described(str(device), memory_budget), alone=False)
    made = Workload(model=workload, mode=mode or "train", **user, **common)
    guard = Guard.of(made)
    with guard.backstop, guard:
        bench = opened(made, options=options)
        return estimating.estimate(bench.briefing, bench.trace, fixed_parts=bench.fixed_parts, ranks=ranks)


def diagnose(  # noqa: PLR0913  # the public call: each argument is a choice of the user's
    model: nn.Module,
    loader: Any,
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    step_fn: Callable[..., torch.Tensor] | None = None,
    update_fn: Callable[..., Any] | None = None,
    optimizer: OptimizerRecipe = None,
    global_batch_size: int | None = None,
    max_grad_norm: float | None = None,
    worst_case: Any = None,
    extras: Sequence[Any] = (),
    device: str | torch.device | None = None,
    seed: int = 0,
    steps: int = 6,
    time: str | float | None = "30s",
) -> "Diagnosis":
    """Finds what wastes memory in a training step: the line, the variable that holds it, and its size at the peak.

    Seven steps of the baseline run on this device, on the worst batch that is known, and then some with a change, such
    as a teacher under `torch.no_grad`, to measure what it saves. Afterwards everything passed in is bit-identical, as
    after `tune`. The arguments are those of `tune`, and two more. `steps`, at least 6, is the number of steps to watch
    after the first: with more than ten, a list of the last ten outputs does not look like one that grows. After
    `time`, such as "2min", no further steps with a change are begun; None sets no limit.

    Returns:
        What was found, the costliest first, and what could not be checked. `print` shows it as text.

    Raises:
        WorkloadError, UsageError: an argument cannot be used; the message says why.
        UserCodeError: the model, loss or data raised an exception.
        NothingFits: not even one small batch fits on the device.
        DevicePoisoned: the device stopped responding.
        RestoreError: something could not be restored.
    """
    from autofit.doctor.diagnose import diagnose_workload  # noqa: PLC0415
    from autofit.doctor.session import Scope  # noqa: PLC0415

    workload = Workload(
        model=model,
        loader=loader,
        loss_fn=loss_fn,
        step_fn=step_fn,
        optimizer=optimizer,
        global_batch_size=global_batch_size,
        max_grad_norm=max_grad_norm,
        worst_case=worst_case,
        extras=extras,
        update_fn=update_fn,
    )
    limit_s = parse_time(time)
    scope = Scope(steps=steps, time_s=math.inf if limit_s is None else limit_s).checked()
    return diagnose_workload(workload, device_for(model, device), type(model).__name__, scope, seed=seed)


def watch(loader: Iterable[Item], *, steps: int = 6, show: bool = True) -> "WatchedLoader[Item]":
    """Observes a loop over `loader`, such as one in a notebook, and finds what wastes memory in it.

        for batch in autofit.watch(loader):
            ...

    The first pass is observed for seven optimizer steps. Where nothing is optimized, as in an evaluation, each batch is
    a step. The loop is slower meanwhile, but computes the same, and gets every batch. The result is the attribute
    `diagnosis` of what is returned.

    Args:
        loader: what the loop iterates over.
        steps: number of steps to watch after the first, as for `diagnose`.
        show: whether to print the result when it is complete.
    """
    from autofit.doctor.loops import WatchedLoader  # noqa: PLC0415

    return WatchedLoader(loader, steps=steps, show=show)


def load(path: str | Path) -> Fit:
    """Loads a plan file, ready to `prepare`.

    Raises:
        PlanFileError: the file is missing, damaged, or of another schema.
    """
    return Fit(planfile.load(path), plan_file=str(path))


def options_of(
    *,
    strategies: Sequence[str] | str | None = None,
    without: Sequence[str] | str = (),
    pinned: Mapping[str, KnobValue] | None = None,
    **rest: object,
) -> Options:
    """Returns the options of a search; a single name stands for a list of one.

    Raises:
        UsageError: an argument has a value that is not allowed.
        SpaceError: a strategy or a knob is unknown.
    """
    options = record_of(
        Options, strategies=_names(strategies), without=_names(without), pinned=dict(pinned or {}), **rest
    )
    check_names(options)
    return options


def _names(given: Sequence[str] | str | None) -> tuple[str, ...] | None:
    return (given,) if isinstance(given, str) else None if given is None else tuple(given)
