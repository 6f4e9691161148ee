"""What a Lightning `Trainer` is asked and given before it trains: its train loader, batch, precision and step."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from autofit.core.errors import UsageError, WorkloadError
from autofit.fit import Fit
from autofit.guard import Guard
from autofit.integrations.plan_settings import import_package
from autofit.workloads.batches import BatchSource
from autofit.workloads.dataloaders import loader_changes
from autofit.workloads.workload import Workload

_SCANNED = 64
"""Number of samples inspected to rebuild a loader. Their lengths do not matter here."""
_UNMEASURED = ("backward", "optimizer_step", "optimizer_zero_grad")
"""Hooks of a module that replace a part of the optimizer step, of which the measured step would know nothing."""
_TRANSFERS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")


def check_trainer(trainer: Any, module: Any) -> None:
    """Refuses trainings whose optimizer step is not that of a plan.

    Raises:
        UsageError: manual optimization, which includes several optimizers; several processes; or accumulation that
            another callback schedules.
    """
    name = type(module).__name__
    if not module.automatic_optimization:
        raise UsageError(
            f"found {name} with manual optimization (automatic_optimization=False), as with several optimizers; "
            "expected automatic optimization, since a plan describes the step of one optimizer. Use "
            "autofit.tune(model, loader, step_fn=...) for one of the models."
        )
    if trainer.world_size != 1:
        raise UsageError(
            f"found a Trainer with {trainer.world_size} processes; expected 1, in which the plan was measured: its "
            "global batch would be multiplied. Pass devices=1, num_nodes=1."
        )
    scheduled = [c for c in trainer.callbacks if type(c).__name__ == "GradientAccumulationScheduler"]
    if scheduled:
        raise UsageError(
            "found the callback GradientAccumulationScheduler, which changes the accumulation of the plan; expected "
            "one of the two. Remove one of the callbacks."
        )


def check_precision(trainer: Any, wanted: object) -> None:
    """Checks that the Trainer has the plan's precision.

    Raises:
        UsageError: it has another.
    """
    if trainer.precision != wanted:
        raise UsageError(
            f"found a Trainer with precision={trainer.precision!r}; the plan needs {wanted!r}, which cannot change "
            f"after the Trainer is made. Pass precision={wanted!r}, or Trainer(**trainer_arguments(plan))."
        )


def set_clipping(trainer: Any, norm: object) -> None:
    """Gives the plan's clipping to a Trainer that has none. None as norm leaves the Trainer's own.

    Raises:
        UsageError: the Trainer clips in another way.
    """
    if norm is None:
        return
    given, kind = trainer.gradient_clip_val, "value" if trainer.gradient_clip_algorithm == "value" else "norm"
    if given not in (None, norm) or kind == "value":
        raise UsageError(
            f"found a Trainer with gradient_clip_val={given!r}, by {kind}; the plan clips gradients to the "
            f"L2 norm {norm}. Pass gradient_clip_val={norm} without an algorithm, or tune again with your value."
        )
    trainer.gradient_clip_val = norm


def check_measurable(trainer: Any, module: Any) -> None:
    """Refuses modules whose step cannot be measured through `training_step` alone.

    Raises:
        UsageError: the module replaces a part of the step, or it has several optimizers.
    """
    overridden = import_package("lightning.pytorch.utilities.model_helpers", "lightning").is_overridden
    found = [hook for hook in _UNMEASURED if overridden(hook, module)]
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


def train_loader(trainer: Any) -> Any:
    """Returns the train loader as the user defines it: passed to `fit`, or made by the data module or module.

    Raises:
        UsageError: there are several.
    """
    loader = trainer.fit_loop._data_source.dataloader()
    combined = import_package("lightning.pytorch.utilities", "lightning").CombinedLoader
    several = isinstance(loader, combined | Mapping)
    if several or (isinstance(loader, list | tuple) and all(hasattr(each, "dataset") for each in loader)):
        raise UsageError(
            f"found several train loaders ({type(loader).__name__}); expected one, whose batch is that of the plan. "
            "Return one loader from train_dataloader."
        )
    return loader


def batch_size_of(loader: Any) -> int | None:
    """Returns the samples per batch of a loader, or None if it does not say."""
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if type(size) is int else None


def set_batch(trainer: Any, module: Any, fit: Fit, batch_arg: str, workers_arg: str | None) -> None:
    """Gives the plan's batch, loader workers and accumulation to the trainer, before it makes its train loader.

    Loaders passed to `fit` are rebuilt as for `fit.prepare`: the same data set, sampler and collate function.

    Raises:
        UsageError: neither the module nor the data module has the attribute.
        WorkloadError: a loader that was passed to `fit` cannot make batches of this size.
    """
    trainer.accumulate_grad_batches = fit.plan.accumulation_steps
    source = trainer.fit_loop._data_source
    if source.is_module():
        _set_attribute(module, batch_arg, fit.plan.micro_batch_size)
        loading = fit.proof.loading
        if workers_arg is not None and loading is not None and not loading.kept:
            _set_attribute(module, workers_arg, loading.workers)
    else:
        source.instance = _rebuilt(module, train_loader(trainer), fit)
    trainer.fit_loop._combined_loader = None  # one that `estimated_stepping_batches` made has the batch of before


def check_attribute(module: Any, name: str) -> None:
    """Checks that the module, its `hparams` or the data module has an attribute.

    Raises:
        UsageError: none has it.
    """
    parsing = import_package("lightning.pytorch.utilities.parsing", "lightning")
    if not parsing.lightning_hasattr(module, name):
        raise UsageError(
            f"found no attribute {name!r} on the module, its hparams or the data module; expected one from which "
            "train_dataloader takes its value. Name it: batch_arg=, workers_arg=."
        )


def check_loader(loader: Any, size: int) -> None:
    """Checks that the train loader has the plan's micro batch.

    Raises:
        UsageError: it has another.
    """
    found = batch_size_of(loader)
    if found is not None and found != size:
        raise UsageError(
            f"found a train loader with batch_size={found}; the plan has micro_batch_size={size}. Let train_dataloader "
            "take its batch size from the attribute that batch_arg= names."
        )


def step_of(trainer: Any, module: Any) -> Callable[[nn.Module, Any], torch.Tensor]:
    """Returns the module's `training_step` as a step function, with the hooks for batches that it overrides."""
    helpers = import_package("lightning.pytorch.utilities.model_helpers", "lightning")
    numbered = import_package("lightning.pytorch.utilities.signature_utils", "lightning").is_param_in_hook_signature
    arguments = (0,) if numbered(module.training_step, "batch_idx", min_args=2) else ()
    holders = [holder for holder in (module, trainer.datamodule) if holder is not None]
    hooked = any(helpers.is_overridden(hook, holder) for hook in _TRANSFERS for holder in holders)

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
def without_logging(module: nn.Module) -> Iterator[None]:
    """Makes `self.log` and `self.log_dict` do nothing, in the module and those inside it, until the context is left."""
    names = ("log", "log_dict")
    found = [each for each in module.modules() if all(hasattr(type(each), name) for name in names)]
    missing = [(each, name) for each in found for name in names if name not in vars(each)]
    for each, name in missing:
        setattr(each, name, _ignore)
    try:
        yield
    finally:
        for each, name in missing:
            delattr(each, name)


def _ignore(*_: Any, **__: Any) -> None:
    """Takes the place of a logging method."""


def _set_attribute(module: Any, name: str, value: int) -> None:
    check_attribute(module, name)
    import_package("lightning.pytorch.utilities.parsing", "lightning").lightning_setattr(module, name, value)


def _rebuilt(module: nn.Module, loader: Any, fit: Fit) -> Any:
    guard = Guard.of(Workload(module, loader))
    with guard.backstop, guard:  # undoes the effects of inspecting samples
        source = BatchSource.of(loader, scan=_SCANNED)
        return source.rebuild(fit.plan.micro_batch_size, changes=loader_changes(fit.proof.loading))
