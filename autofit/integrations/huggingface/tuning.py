"""Tunes what a `Trainer` trains: its model, batches, loss and optimizer."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from transformers import Trainer

from autofit.api import tune
from autofit.core.errors import UsageError
from autofit.core.wording import a_type
from autofit.fit import Fit
from autofit.integrations.trainer_fit import for_trainer, with_kept_batch

OVERRIDDEN = ("training_step", "_inner_training_loop", "get_batch_samples")
"""Methods of a Trainer that decide what an optimizer step is. A subclass that overrides one has a step that autofit
does not run."""
NOT_IN_A_TRAINER = (
    "memory_format", "optimizer_in_backward", "activation_offload",
    "linear_cross_entropy",
)  # fmt: skip
"""Techniques that a Trainer cannot apply."""


def tune_trainer(make_trainer: Callable[[], Any], **arguments: Any) -> Fit:
    """Finds the fastest way to train what a Trainer trains, on one device. Nothing is trained or saved.

    What is measured: the Trainer's model, its train loader with the collator, its `compute_loss`, the optimizer of its
    `create_optimizer`, and `args.max_grad_norm`. A `compute_loss` of a subclass is called without `num_items_in_batch`.
    Techniques that a Trainer cannot apply are not searched. What `args` asks for is kept where it is bf16, fp16, or a
    fused optimizer; the optimizer's other implementations have no name in `args.optim` on every device.
    Compilation is searched whatever `args.torch_compile` says, and the baseline is not compiled.

    Args:
        make_trainer: makes a new Trainer, such as the one that is trained later. It is called once.
        arguments: those of `autofit.tune`, such as `time_budget`, in place of the Trainer's. The default of
            `global_batch_size` is that of `args`: `per_device_train_batch_size` times `gradient_accumulation_steps`.

    Returns:
        The proven plan, for `apply` and `PlanCheck`.

    Raises:
        UsageError: the Trainer overrides what an optimizer step is, or trains in a way that is not measured here.
        AutofitError: as for `autofit.tune`.
    """
    trainer = make_trainer()
    _check(trainer)
    args, model = trainer.args, trainer.model
    _checkpoint_as_asked(trainer)
    before = trainer.optimizer
    try:
        chosen = {
            "step_fn": _step_of(trainer),
            "optimizer": trainer.create_optimizer() or trainer.optimizer,
            "max_grad_norm": args.max_grad_norm if args.max_grad_norm and args.max_grad_norm > 0 else None,
            **arguments,
        }
        if arguments.get("max_global_batch_size") is None:
            chosen.setdefault("global_batch_size", args.train_batch_size * args.gradient_accumulation_steps)
        if args.fp16:  # which needs a gradient scaler; bf16 is a part of the step
            chosen["pinned"] = {"precision": "fp16", **(arguments.get("pinned") or {})}
        chosen["without"] = _without(args, arguments)
        loader = trainer.get_train_dataloader()  # Accelerate wraps it, and moves batches to the device
        fit = tune(model, getattr(loader, "base_dataloader", loader), **chosen)
    finally:
        trainer.optimizer = before
    return for_trainer(with_kept_batch(fit, "of the arguments", arguments), "transformers")


def _check(trainer: Any) -> None:
    """Refuses a Trainer whose steps are not those that would be measured.

    Raises:
        UsageError: see `tune_trainer`.
    """
    name = type(trainer).__name__
    if not isinstance(trainer, Trainer):
        raise UsageError(
            f"make_trainer returned {a_type(trainer)}; expected a transformers.Trainer. Return the Trainer."
        )
    for method in OVERRIDDEN:
        theirs = getattr(Trainer, method, None)
        if method in vars(trainer) or getattr(type(trainer), method, None) is not theirs:
            raise UsageError(
                f"found {name}.{method}, which replaces the step of Trainer; expected a Trainer with the original "
                f"{method}. Override compute_loss instead, or describe the step in an autofit.Workload."
            )
    args = trainer.args
    devices = args.world_size * max(args.n_gpu, 1)
    for given, found in (
        ("fsdp", getattr(args, "fsdp", None)),
        ("deepspeed", getattr(args, "deepspeed", None)),
        ("use_liger_kernel", getattr(args, "use_liger_kernel", False)),
        ("devices", devices if devices > 1 else None),
    ):
        if found:
            raise UsageError(
                f"found {given}={found!r} in the arguments; expected a training on one device without it. Tune without "
                "it, for one device."
            )


def _checkpoint_as_asked(trainer: Any) -> None:
    """Switches checkpointing on if `args` asks for it, as `Trainer.train` does, so that the baseline has it."""
    args, model = trainer.args, trainer.model
    for kind in ("activation", "gradient"):
        enable = getattr(model, f"{kind}_checkpointing_enable", None)
        if enable is not None and getattr(args, f"{kind}_checkpointing", False):
            kwargs = dict(getattr(args, f"{kind}_checkpointing_kwargs", None) or {})
            more = {key: kwargs.pop(key) for key in ("every_n_layers", "offload") if key in kwargs}
            enable(kwargs or None, **more)
            return


def _without(args: Any, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the techniques that are not searched."""
    kept = ("precision",) if args.bf16 else ()
    if "fused" in str(args.optim.value):
        kept = (*kept, "optimizer_implementation")
    return tuple(dict.fromkeys((*arguments.get("without", ()), *NOT_IN_A_TRAINER, *kept)))


def _step_of(trainer: Any) -> Callable[[nn.Module, Any], torch.Tensor]:
    """Returns the loss of a batch as `Trainer.training_step` computes it."""
    in_bf16 = bool(trainer.args.bf16)

    def autocast() -> AbstractContextManager[object]:
        return torch.autocast(trainer.args.device.type, torch.bfloat16) if in_bf16 else nullcontext()

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        inputs = trainer._prepare_inputs(dict(batch) if isinstance(batch, Mapping) else batch)
        with trainer.compute_loss_context_manager(), autocast():
            loss: torch.Tensor = trainer.compute_loss(model, inputs)
        return loss

    return step
