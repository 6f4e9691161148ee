"""A plan in a Lightning training: arguments of the `Trainer`, and callbacks that apply a plan or find one.

    plan = autofit.load("autofit.yaml")
    trainer = Trainer(**trainer_arguments(plan), callbacks=[ApplyPlan(plan)])

    trainer = Trainer(callbacks=[AutofitCallback(memory_budget="20GiB")])  # tunes when `fit` starts

Lightning divides the loss of each micro batch by the accumulation steps. If the data set is not a multiple of the
global batch, the last step of an epoch has fewer micro batches and is divided by the same number.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from autofit.api import tune
from autofit.core.errors import UsageError, WorkloadError
from autofit.fit import Fit
from autofit.guard import Guard
from autofit.integrations.plan_settings import (
    GivenPlan,
    fit_of,
    for_trainer,
    import_package,
    loader_arguments,
    warn_of,
    with_kept_batch,
)
from autofit.workloads.sources import loader_changes, source_of
from autofit.workloads.workload import Workload

__all__ = ["ApplyPlan", "AutofitCallback", "fabric_arguments", "loader_arguments", "trainer_arguments"]

Callback: Any = import_package("lightning.pytorch", "lightning").Callback
_UTILITIES: Any = import_package("lightning.pytorch.utilities", "lightning")

PRECISION = "precision"
"""The strategy, its knob and the argument of the Trainer have one name."""
_PRECISIONS = {"32-true": "fp32", "bf16-mixed": "bf16", "16-mixed": "fp16"}
"""Value of the knob by precision of the Trainer. Others change the module itself."""
CLIPPING = "gradient_clip_val"
_FROM_THE_MODULE = ("step_fn", "loss_fn", "optimizer", "mode", "device")
"""Arguments of `autofit.tune` that the module and the Trainer have already decided."""


def trainer_arguments(plan: GivenPlan) -> dict[str, Any]:
    """Returns precision, accumulation and clipping of a plan, for `Trainer(**trainer_arguments(plan))`.

    The batch belongs to the loader: add the callback `ApplyPlan`, or use `loader_arguments`. Warns of what the plan has
    beyond these.

    Raises:
        PlanFileError: the file is not a plan file.
    """
    fit = fit_of(plan)
    found = fit.export("lightning")
    warn_of(fit.plan, found)
    return {"accumulate_grad_batches": fit.plan.accumulation_steps, **found.settings}


_IN_THE_LOOP = {
    "gradient_clip_val": "fabric.clip_gradients(model, optimizer, max_norm={}) before optimizer.step()",
    "benchmark": "torch.backends.cudnn.benchmark = {} before the first step",
}
"""What to write in place of an argument of the `Trainer` that `Fabric` does not have."""
_OF_THE_TRAINER = {*_IN_THE_LOOP, "accumulate_grad_batches", "gradient_clip_algorithm"}


def fabric_arguments(plan: GivenPlan) -> dict[str, Any]:
    """Returns the precision of a plan, for a loop with Lightning's `Fabric(**fabric_arguments(plan))`.

    Give `loader_arguments(plan)` to the DataLoader, and step once in `plan.accumulation_steps` micro batches. Warns of
    what the plan has beyond these.

    Raises:
        PlanFileError: the file is not a plan file.
    """
    fit = fit_of(plan)
    found = fit.export("lightning")
    warn_of(fit.plan, found)
    for key, line in _IN_THE_LOOP.items():
        if value := found.settings.get(key):
            warnings.warn(f"Fabric has no argument {key}. Write {line.format(value)}.", stacklevel=2)
    return {key: value for key, value in found.settings.items() if key not in _OF_THE_TRAINER}


class _UnderPlan(Callback):  # type: ignore[misc]  # not typed
    """Checks the loader of a training against its plan, `fit`; None if it has none."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Checks that the loader that was made has the plan's batch.

        Raises:
            UsageError: it has another.
        """
        if self.fit is not None:
            _check_loader(trainer.train_dataloader, self.fit.plan.micro_batch_size)


class ApplyPlan(_UnderPlan):
    """Gives a plan's batch, loader workers, accumulation and clipping to the training, and checks its precision.

    The `train_dataloader` of a module or data module must take its batch size from the attribute `batch_arg`. A loader
    that is passed to `fit` is rebuilt at the plan's batch.

    Attributes:
        fit: the plan with its proof.

    Args:
        plan: what `autofit.tune` or `autofit.load` returned, or the path of a plan file.
        batch_arg: attribute of the module, its `hparams` or the data module that holds the batch size.
        workers_arg: attribute that holds the number of loader workers. None leaves it.
    """

    def __init__(self, plan: GivenPlan, batch_arg: str = "batch_size", workers_arg: str | None = None) -> None:
        super().__init__()
        self.fit: Fit = fit_of(plan)
        self._export = self.fit.export("lightning")
        self._batch_arg, self._workers_arg = batch_arg, workers_arg

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Applies the plan before the loaders, the optimizer and its schedule are made.

        Raises:
            UsageError: the plan and the training contradict each other; the message names both values.
            WorkloadError: a loader that was passed to `fit` cannot make batches of the plan's size.
        """
        if stage != "fit":
            return
        _check_trainer(trainer, pl_module, self.fit.answer.environment.ranks)
        _check_precision(trainer, self._export.settings.get(PRECISION, trainer.precision))
        _set_clipping(trainer, self._export.settings.get(CLIPPING))
        warn_of(self.fit.plan, self._export)
        _set_batch(trainer, pl_module, self.fit, self._batch_arg, self._workers_arg)


class AutofitCallback(_UnderPlan):
    """Tunes when `fit` starts, and trains under the plan that it found.

    The measured step is the module's `training_step` with the optimizer of `configure_optimizers`. Everything is
    restored before the training. The Trainer's precision stays: where it is "bf16-mixed" or "16-mixed", plans have that
    precision, and the gain in `fit` is over float32. The global batch is that of the loader and the Trainer's
    accumulation, unless `global_batch_size` is given. Only the batch is searched, because the Trainer can still change
    it; `strategies` names further techniques, which you then apply yourself.

    With `fast_dev_run` nothing is tuned.

    Attributes:
        fit: what was found; None before `fit` starts.

    Args:
        batch_arg: see `ApplyPlan`.
        workers_arg: see `ApplyPlan`.
        arguments: arguments of `autofit.tune`, such as `memory_budget` and `time_budget`, other than the step function,
            the optimizer and the device.
    """

    def __init__(self, batch_arg: str = "batch_size", workers_arg: str | None = None, **arguments: Any) -> None:
        super().__init__()
        misplaced = [name for name in _FROM_THE_MODULE if name in arguments]
        if misplaced:
            raise UsageError(
                f"found {', '.join(misplaced)} among the arguments of AutofitCallback; expected them to come from the "
                "module and the Trainer. Leave them out."
            )
        self.fit: Fit | None = None
        self._batch_arg, self._workers_arg, self._arguments = batch_arg, workers_arg, arguments

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Checks, before anything is measured, that the training can be tuned, and gives it a `max_grad_norm`.

        Raises:
            UsageError: it cannot; the message says why.
        """
        if stage != "fit":
            return
        _check_trainer(trainer, pl_module)
        _set_clipping(trainer, self._arguments.get("max_grad_norm"))
        if trainer.precision not in _PRECISIONS:
            raise UsageError(
                f"found a Trainer with precision={trainer.precision!r}; expected one of {', '.join(_PRECISIONS)}, "
                "which AutofitCallback can measure."
            )
        if trainer.fit_loop._data_source.is_module():
            for name in filter(None, (self._batch_arg, self._workers_arg)):
                _check_attribute(pl_module, name)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Tunes, and applies the plan.

        Raises:
            UsageError: the training cannot be tuned; the message says why. Also what `autofit.tune` raises.
        """
        if trainer.fast_dev_run:
            warnings.warn("fast_dev_run is on: AutofitCallback tunes nothing.", stacklevel=2)
            return
        _check_measurable(trainer, pl_module)
        loader = _train_loader(trainer)
        before = (_batch_size_of(loader) or 0) * trainer.accumulate_grad_batches
        with _without_logging(pl_module):
            fit = tune(pl_module, loader, **self._tuning(trainer, pl_module, before))
        fit = with_kept_batch(fit, "of your loader", self._arguments) if before else fit
        self.fit = fit = for_trainer(fit, "lightning")
        warn_of(fit.plan, fit.export("lightning"))
        _set_batch(trainer, pl_module, fit, self._batch_arg, self._workers_arg)
        if fit.plan.global_batch_size != before and trainer.lr_scheduler_configs:
            trainer.strategy.setup_optimizers(trainer)  # schedules may depend on the number of steps

    def _tuning(self, trainer: Any, module: Any, before: int) -> dict[str, Any]:
        """Returns the arguments of `autofit.tune`; `before` is the global batch of the training, or 0."""
        precision = _PRECISIONS[trainer.precision]
        defaults: dict[str, Any] = {
            "global_batch_size": None if "max_global_batch_size" in self._arguments else before or None,
            "strategies": ("batching",),
            "max_grad_norm": trainer.gradient_clip_val if trainer.gradient_clip_algorithm != "value" else None,
        }
        chosen = {
            **defaults,
            **self._arguments,
            "step_fn": _step_of(trainer, module),
            "optimizer": trainer.optimizers[0],
        }
        others = tuple(name for name in chosen["strategies"] or () if name != PRECISION)
        if precision != "fp32":
            chosen["strategies"] = (*others, PRECISION) if others else None
            chosen["pinned"] = {**(chosen.get("pinned") or {}), PRECISION: precision}
        else:
            chosen["strategies"] = others or None
            chosen["without"] = (*chosen.get("without", ()), PRECISION)
        return chosen


_SCANNED = 64
"""Number of samples inspected to rebuild a loader. Their lengths do not matter here."""
_UNMEASURED = ("backward", "optimizer_step", "optimizer_zero_grad")
"""Hooks of a module that replace a part of the optimizer step, of which the measured step would know nothing."""
_TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def _check_trainer(trainer: Any, module: Any, ranks: int = 1) -> None:
    """Refuses a training whose optimizer step is not that of a plan of this number of ranks."""
    name = type(module).__name__
    if not module.automatic_optimization:
        raise UsageError(
            f"found {name} with manual optimization (automatic_optimization=False), as with several optimizers; "
            "expected automatic optimization, since a plan describes the step of one optimizer. Use "
            "autofit.tune(model, loader, step_fn=...) for one of the models."
        )
    if trainer.world_size != ranks:
        raise UsageError(
            f"found a Trainer with {trainer.world_size} processes; expected {ranks}, as many as the plan is measured "
            f"with, since its global batch would change. Pass devices={ranks}, num_nodes=1, or as many on all nodes."
        )
    scheduled = [c for c in trainer.callbacks if type(c).__name__ == "GradientAccumulationScheduler"]
    if scheduled:
        raise UsageError(
            "found the callback GradientAccumulationScheduler, which changes the accumulation of the plan; expected "
            "one of the two. Remove one of the callbacks."
        )


def _check_precision(trainer: Any, wanted: object) -> None:
    """Refuses a Trainer with another precision than the plan's."""
    if trainer.precision != wanted:
        raise UsageError(
            f"found a Trainer with precision={trainer.precision!r}; the plan needs {wanted!r}, which cannot change "
            f"after the Trainer is made. Pass precision={wanted!r}, or Trainer(**trainer_arguments(plan))."
        )


def _set_clipping(trainer: Any, norm: object) -> None:
    """Gives the plan's clipping to a Trainer that has none, and refuses another. None leaves the Trainer's own."""
    if norm is None:
        return
    given, kind = trainer.gradient_clip_val, "value" if trainer.gradient_clip_algorithm == "value" else "norm"
    if given not in (None, norm) or kind == "value":
        raise UsageError(
            f"found a Trainer with gradient_clip_val={given!r}, by {kind}; the plan clips gradients to the "
            f"L2 norm {norm}. Pass gradient_clip_val={norm} without an algorithm, or tune again with your value."
        )
    trainer.gradient_clip_val = norm


def _check_measurable(trainer: Any, module: Any) -> None:
    """Refuses a module whose step cannot be measured through `training_step` alone."""
    found = [hook for hook in _UNMEASURED if _UTILITIES.model_helpers.is_overridden(hook, module)]
    if found:
        raise UsageError(
            f"found {type(module).__name__}.{found[0]}, which replaces a part of the optimizer step; expected the "
            "step of Lightning, which is what autofit measures. Use autofit.tune(model, loader, step_fn=...)."
        )
    if len(trainer.optimizers) > 1:
        raise UsageError(
            f"found {len(trainer.optimizers)} optimizers in {type(module).__name__}.configure_optimizers; expected 1. "
            "Use autofit.tune(model, loader, step_fn=...) for one of the models."
        )


def _train_loader(trainer: Any) -> Any:
    """Returns the one train loader as the user defines it: passed to `fit`, or made by the data module or module."""
    loader = trainer.fit_loop._data_source.dataloader()
    several = isinstance(loader, _UTILITIES.CombinedLoader | Mapping)
    if several or (isinstance(loader, list | tuple) and all(hasattr(each, "dataset") for each in loader)):
        raise UsageError(
            f"found several train loaders ({type(loader).__name__}); expected one, whose batch is that of the plan. "
            "Return one loader from train_dataloader."
        )
    return loader


def _batch_size_of(loader: Any) -> int | None:
    """Returns the samples per batch of a loader, or None if it does not say."""
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if type(size) is int else None


def _set_batch(trainer: Any, module: Any, fit: Fit, batch_arg: str, workers_arg: str | None) -> None:
    """Gives the plan's batch, loader workers and accumulation to the trainer, before it makes its train loader.

    Loaders passed to `fit` are rebuilt as for `fit.prepare`: the same data set, sampler and collate function.
    """
    trainer.accumulate_grad_batches = fit.plan.accumulation_steps
    source = trainer.fit_loop._data_source
    if source.is_module():
        loading, values = fit.proof.loading, {batch_arg: fit.plan.micro_batch_size}
        if workers_arg is not None and loading is not None and not loading.kept:
            values[workers_arg] = loading.workers
        for name, value in values.items():
            _check_attribute(module, name)
            _UTILITIES.parsing.lightning_setattr(module, name, value)
    else:
        loader = _train_loader(trainer)
        guard = Guard.of(Workload(module, loader))
        with guard.backstop, guard:  # undoes the effects of inspecting samples
            rebuild = source_of(loader, scan=_SCANNED).rebuild
            rebuilt = rebuild(fit.plan.micro_batch_size, changes=loader_changes(fit.proof.loading))
        source.instance = rebuilt  # here, since the guard puts back what the module can reach
    trainer.fit_loop._combined_loader = None  # one that `estimated_stepping_batches` made has the batch of before


def _check_attribute(module: Any, name: str) -> None:
    """Checks that the module, its `hparams` or the data module has an attribute."""
    if not _UTILITIES.parsing.lightning_hasattr(module, name):
        raise UsageError(
            f"found no attribute {name!r} on the module, its hparams or the data module; expected one from which "
            "train_dataloader takes its value. Name it: batch_arg=, workers_arg=."
        )


def _check_loader(loader: Any, size: int) -> None:
    """Refuses a train loader with another micro batch than the plan's."""
    found = _batch_size_of(loader)
    if found is not None and found != size:
        raise UsageError(
            f"found a train loader with batch_size={found}; the plan has micro_batch_size={size}. Let train_dataloader "
            "take its batch size from the attribute that batch_arg= names."
        )


def _step_of(trainer: Any, module: Any) -> Callable[[nn.Module, Any], torch.Tensor]:
    """Returns the module's `training_step` as a step function, with the hooks for batches that it overrides."""
    is_numbered = _UTILITIES.signature_utils.is_param_in_hook_signature
    arguments = (0,) if is_numbered(module.training_step, "batch_idx", min_args=2) else ()
    holders = [holder for holder in (module, trainer.datamodule) if holder is not None]
    is_overridden = _UTILITIES.model_helpers.is_overridden
    hooked = any(is_overridden(hook, holder) for hook in _TRANSFERS for holder in holders)

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        if getattr(model, "_trainer", trainer) is None:
            model._trainer = trainer  # a copy, as for a trace, has lost it
        given = trainer.strategy.batch_to_device(batch, dataloader_idx=0) if hooked else batch
        output = model.training_step(given, *arguments)  # type: ignore[operator]  # a LightningModule
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, torch.Tensor):
            raise WorkloadError(f"training_step returned {type(output).__name__}; expected a loss, or a dict with it.")
        return loss

    return step


@contextmanager
def _without_logging(module: nn.Module) -> Iterator[None]:
    """Makes `self.log` and `self.log_dict` do nothing, in the module and those inside it, until the context is left."""
    names = ("log", "log_dict")
    found = [each for each in module.modules() if all(hasattr(type(each), name) for name in names)]
    missing = [(each, name) for each in found for name in names if name not in vars(each)]
    for each, name in missing:
        setattr(each, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for each, name in missing:
            delattr(each, name)
