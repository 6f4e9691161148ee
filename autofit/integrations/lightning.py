"""A plan in a Lightning training: arguments of the `Trainer`, and callbacks that apply a plan or find one.

    plan = autofit.load("autofit.yaml")
    trainer = Trainer(**trainer_arguments(plan), callbacks=[ApplyPlan(plan)])

    trainer = Trainer(callbacks=[AutofitCallback(memory_budget="20GiB")])  # tunes when `fit` starts

Lightning divides the loss of each micro batch by the accumulation steps. If the data set is not a multiple of the
global batch, the last step of an epoch has fewer micro batches and is divided by the same number.
"""

import warnings
from typing import Any

from autofit.api import tune
from autofit.core.errors import UsageError
from autofit.fit import Fit
from autofit.integrations.fabric import fabric_arguments
from autofit.integrations.given_plan import GivenPlan
from autofit.integrations.lightning_trainer import (
    batch_size_of,
    check_attribute,
    check_loader,
    check_measurable,
    check_precision,
    check_trainer,
    set_batch,
    set_clipping,
    step_of,
    train_loader,
    without_logging,
)
from autofit.integrations.plan_settings import PlanSettings, import_package, loader_arguments
from autofit.integrations.trainer_fit import for_trainer, with_kept_batch

__all__ = ["ApplyPlan", "AutofitCallback", "fabric_arguments", "loader_arguments", "trainer_arguments"]

Callback: Any = import_package("lightning.pytorch", "lightning").Callback

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
    found = PlanSettings.of(plan, "lightning")
    found.warn()
    return {"accumulate_grad_batches": found.fit.plan.accumulation_steps, **found.values}


class _UnderPlan(Callback):  # type: ignore[misc]  # not typed
    """Checks the loader of a training against its plan."""

    def plan_in_effect(self) -> Fit | None:
        """Returns the plan that the training is under, if there is one."""
        raise NotImplementedError

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Checks that the loader that was made has the plan's batch.

        Raises:
            UsageError: it has another.
        """
        fit = self.plan_in_effect()
        if fit is not None:
            check_loader(trainer.train_dataloader, fit.plan.micro_batch_size)


class ApplyPlan(_UnderPlan):
    """Gives a plan's batch, loader workers, accumulation and clipping to the training, and checks its precision.

    The `train_dataloader` of a module or data module must take its batch size from the attribute `batch_arg`. A loader
    that is passed to `fit` is rebuilt at the plan's batch.

    Args:
        plan: what `autofit.tune` or `autofit.load` returned, or the path of a plan file.
        batch_arg: attribute of the module, its `hparams` or the data module that holds the batch size.
        workers_arg: attribute that holds the number of loader workers. None leaves it.
    """

    def __init__(self, plan: GivenPlan, batch_arg: str = "batch_size", workers_arg: str | None = None) -> None:
        super().__init__()
        self._settings = PlanSettings.of(plan, "lightning")
        self._batch_arg, self._workers_arg = batch_arg, workers_arg

    @property
    def fit(self) -> Fit:
        """The plan with its proof."""
        return self._settings.fit

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Applies the plan before the loaders, the optimizer and its schedule are made.

        Raises:
            UsageError: the plan and the training contradict each other; the message names both values.
            WorkloadError: a loader that was passed to `fit` cannot make batches of the plan's size.
        """
        if stage != "fit":
            return
        check_trainer(trainer, pl_module)
        check_precision(trainer, self._settings.values.get(PRECISION, trainer.precision))
        set_clipping(trainer, self._settings.values.get(CLIPPING))
        self._settings.warn()
        set_batch(trainer, pl_module, self.fit, self._batch_arg, self._workers_arg)

    def plan_in_effect(self) -> Fit:
        """Returns the plan that was given."""
        return self.fit


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
        check_trainer(trainer, pl_module)
        set_clipping(trainer, self._arguments.get("max_grad_norm"))
        if trainer.precision not in _PRECISIONS:
            raise UsageError(
                f"found a Trainer with precision={trainer.precision!r}; expected one of {', '.join(_PRECISIONS)}, "
                "which AutofitCallback can measure."
            )
        if trainer.fit_loop._data_source.is_module():
            for name in filter(None, (self._batch_arg, self._workers_arg)):
                check_attribute(pl_module, name)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Tunes, and applies the plan.

        Raises:
            UsageError: the training cannot be tuned; the message says why. Also what `autofit.tune` raises.
        """
        if trainer.fast_dev_run:
            warnings.warn("fast_dev_run is on: AutofitCallback tunes nothing.", stacklevel=2)
            return
        check_measurable(trainer, pl_module)
        loader = train_loader(trainer)
        before = (batch_size_of(loader) or 0) * trainer.accumulate_grad_batches
        with without_logging(pl_module):
            fit = tune(pl_module, loader, **self._tuning(trainer, pl_module, before))
        fit = with_kept_batch(fit, "of your loader", self._arguments) if before else fit
        self.fit = fit = for_trainer(fit, "lightning")
        PlanSettings.of(fit, "lightning").warn()
        set_batch(trainer, pl_module, fit, self._batch_arg, self._workers_arg)
        if fit.plan.global_batch_size != before and trainer.lr_scheduler_configs:
            trainer.strategy.setup_optimizers(trainer)  # schedules may depend on the number of steps

    def plan_in_effect(self) -> Fit | None:
        """Returns the plan that was found."""
        return self.fit

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
            "step_fn": step_of(trainer, module),
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
