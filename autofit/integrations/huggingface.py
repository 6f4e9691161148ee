"""Hugging Face: tune what a `Trainer` trains, train it under the plan, and check what the plan promised.

fit = tune_trainer(make_trainer, time_budget="5min")
args = apply(fit, args)
trainer = Trainer(model=model, args=args, callbacks=[PlanCheck(fit)], ...)
"""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import Trainer, TrainerCallback

from autofit import exporters
from autofit.api import tune
from autofit.core.answer import Answer
from autofit.core.errors import UsageError
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.wording import a_type
from autofit.exporters.plan_facts import CHECKPOINTED_BLOCKS, Settings, is_divided
from autofit.fit import Fit
from autofit.integrations.plan_settings import GivenPlan, fit_of, for_trainer, warn_of, with_kept_batch
from autofit.strategies.packable_models import lack, mixing, pack_for_good, packable_models

__all__ = ["PlanCheck", "apply", "tune_trainer"]

PACKING = "packing"
_LENGTHS = (8, 3, 4)
"""Lengths of the samples that are packed to see that the model keeps them apart."""
SWITCH = "gradient_checkpointing"
"""Attribute by which a block is checkpointed."""
_BLOCK = "GradientCheckpointingLayer"
Arguments = TypeVar("Arguments")
PRECISIONS = ("bf16", "fp16")
INHERITED = "ACCELERATE_MIXED_PRECISION"
"""Variable that decides if the arguments ask for nothing. transformers 4 sets it whenever arguments are made, so that
it outlives them."""
ACCUMULATION, CLIPPING = "gradient_accumulation_steps", "max_grad_norm"
MIXED = {"fp32": "no", "tf32": "no", "bf16": "bf16", "fp16": "fp16"}
"""Accelerate's name of each precision of a plan."""
OVERRIDDEN = ("training_step", "_inner_training_loop", "get_batch_samples")
"""Methods of a Trainer that decide what an optimizer step is. A subclass that overrides one has a step that autofit
does not run."""
NOT_IN_A_TRAINER = ("memory_format", "optimizer_in_backward", "activation_offload", "linear_cross_entropy", "layout")
"""Techniques that a Trainer cannot apply. Of several ranks, each has a replica of the model, as is its default."""


def pack(model: nn.Module) -> None:
    """Lets a model pack its batches in training, as long as it exists; refuses one that mixes the samples of a row."""
    reason, found = lack(model), list(packable_models(model))
    mask = torch.stack([torch.arange(max(_LENGTHS)) < length for length in _LENGTHS]).long()
    ids = torch.arange(1, max(_LENGTHS) + 1).expand_as(mask)
    if reason is None and (why := next(filter(None, (mixing(each, ids, mask) for each in found)), "")):
        reason = (
            "it does not keep the samples of a row apart with this version of transformers: tune again with it. "
            f"Found: {why}"
        )
    if reason is not None:
        raise UsageError(
            f"the plan has {PACKING}=True, and this model cannot be packed: {reason}. Pass the model that was tuned."
        )
    pack_for_good(found)


def checkpoint_some(model: nn.Module, plan: Plan) -> None:
    """Switches checkpointing on in the blocks that the plan names, which the model must have, and off in all others."""
    # The class of the blocks exists in transformers 4.53 and later.
    blocks = [each for each in model.modules() if any(c.__name__ == _BLOCK for c in type(each).__mro__)]
    count = plan.values[CHECKPOINTED_BLOCKS]
    if type(count) is not int or count > len(blocks):
        raise UsageError(
            f"found a model with {len(blocks)} blocks that can be checkpointed one by one, and the plan has "
            f"{CHECKPOINTED_BLOCKS}={count}. Pass the model that was tuned."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # transformers 5.23 renamed it
        method: Any = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        method({"use_reentrant": False})
    for place, block in enumerate(blocks):
        setattr(block, SWITCH, place < count)


def apply(plan: GivenPlan, args: Arguments, model: nn.Module | None = None) -> Arguments:
    """Returns a copy of `args` with the fields of the plan. All other fields stay as they are.

    Knobs that `TrainingArguments` has no field for are named in a warning, with what to do in your code. With several
    devices, the accumulation steps are divided among them, so that the plan's global batch is kept. The batch of a plan
    with a layout is that of each device, and is not divided.

    Args:
        plan: a plan file, or what `autofit.tune` or `autofit.load` returned.
        args: a `TrainingArguments`, which is not changed.
        model: the transformers model to train, if the plan checkpoints a part of its blocks or packs its batches:
            both are switched on in the model, which `TrainingArguments` has no field for.

    Raises:
        UsageError: `args` asks for something that contradicts the plan, or the model does not have its blocks or cannot
            be packed.
        PlanFileError: the plan file cannot be read.
    """
    found = fit_of(plan).answer
    export = exporters.by_name("huggingface").export(found)
    for given, planned in _contradictions(args, found, export.settings):
        raise UsageError(f"found {given}, and {planned}. Remove it from the training, or tune again with it.")
    settings = {**export.settings, **_divided(args, found)}
    if getattr(args, "tf32", None) is True and settings.get("tf32") is False:
        del settings["tf32"]  # it was on when the plan was measured
    changed: Arguments = replace(args, **settings)  # type: ignore[type-var]  # a data class
    done = set[str]()
    if model is not None and CHECKPOINTED_BLOCKS in export.by_hand:
        checkpoint_some(model, found.plan)
        name = "activation_checkpointing" if hasattr(changed, "activation_checkpointing") else "gradient_checkpointing"
        changed = replace(changed, **{name: False})  # type: ignore[type-var]  # it would switch every block on
        done.add(CHECKPOINTED_BLOCKS)
    if model is not None and found.plan.values.get(PACKING) is True:
        pack(model)
        done.add(PACKING)
    warn_of(found.plan, replace(export, warnings=()), done)
    training: Any = args
    if (here := training.device.type) != found.environment.device_type:
        warnings.warn(
            f"the plan was proven on {found.environment.device_name} ({found.environment.device_type}), and these "
            f"arguments train on {here}, where its speed and peak memory are unknown. Tune again on this device.",
            stacklevel=2,
        )
    return changed


def _contradictions(args: Any, found: Answer, settings: Settings) -> Iterator[tuple[str, str]]:
    """Yields what the arguments ask for, with the value of the plan that it contradicts."""
    plan = found.plan
    for name in ("fsdp", "deepspeed"):
        if value := getattr(args, name, None):
            yield f"{name}={value!r}", "the plan was measured without sharding"
    ranks = found.environment.ranks
    if ranks not in (1, args.world_size):
        yield f"world_size={args.world_size}", f"the plan has {ranks} ranks"
    if getattr(args, "auto_find_batch_size", False):
        yield "auto_find_batch_size=True", f"the plan has the micro batch {plan.values.get('micro_batch_size')}"
    if plan.values.get(PACKING) is True and getattr(args, "n_gpu", 1) > 1:
        yield (
            f"n_gpu={args.n_gpu}",
            f"the plan has {PACKING}=True, which copies of a model in one process do not follow",
        )
    kwargs = getattr(getattr(args, "accelerator_config", None), "gradient_accumulation_kwargs", None) or {}
    if "num_steps" in kwargs:
        steps = plan.values.get(ACCUMULATION_STEPS, 1)
        yield f"num_steps={kwargs['num_steps']} in accelerator_config", f"the plan has {ACCUMULATION_STEPS}={steps}"
    asked, norm = getattr(args, CLIPPING, None), settings.get(CLIPPING)
    # The default of the arguments asks for nothing: one that was written out looks the same.
    if norm is not None and asked not in (norm, getattr(type(args), CLIPPING, None)):
        yield f"{CLIPPING}={asked}", f"the plan has {CLIPPING}={norm}"
    yield from _other_precisions(args, plan.values.get("precision"))


def _other_precisions(args: Any, precision: object) -> Iterator[tuple[str, str]]:
    """Yields a precision that is asked for and is not that of the plan. A plan without one leaves the user's."""
    inherited = os.environ.get(INHERITED, "no")
    for name in PRECISIONS:
        if precision is None or precision == name:
            continue
        if getattr(args, name, False):
            yield f"{name}=True", f"the plan has precision={precision}"
        elif inherited == name and precision not in PRECISIONS:
            yield f"{INHERITED}={name} in the environment", f"the plan has precision={precision}"


def _sharers(args: Any, found: Answer) -> int:
    """Returns the number of devices that share the plan's batch; 1 if it is that of each device."""
    devices: int = args.world_size * max(args.n_gpu, 1)
    return 1 if is_divided(found) else devices


def _divided(args: Any, found: Answer) -> Mapping[str, int]:
    """Returns the accumulation steps of each device; refuses steps that cannot be divided among the devices."""
    devices, steps = _sharers(args, found), found.plan.accumulation_steps
    if devices == 1 or found.environment.is_inference:
        return {}
    if steps % devices:
        raise UsageError(
            f"found {devices} devices, and the plan has {ACCUMULATION_STEPS}={steps}, which cannot be divided among "
            f"them: a step would train on more than {found.plan.global_batch_size} samples. Train on one device, or "
            f'tune with pinned={{"{ACCUMULATION_STEPS}": {devices}}}.'
        )
    return {ACCUMULATION: steps // devices}


class PlanCheck(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Refuses a training that contradicts its plan, when it begins."""

    def __init__(self, plan: GivenPlan) -> None:
        """Checks against `plan`: a plan file, or what `autofit.tune` or `autofit.load` returned."""
        self.answer: Answer = fit_of(plan).answer

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Compares the batch of the loader, and the precision that Accelerate applies, with those of the plan.

        Raises:
            UsageError: they differ.
        """
        from accelerate.state import AcceleratorState  # noqa: PLC0415  # a Trainer has imported it

        plan, loader = self.answer.plan, others.get("train_dataloader")
        sampler, devices = getattr(loader, "batch_sampler", None), _sharers(args, self.answer)
        size = getattr(loader, "batch_size", None) or getattr(sampler, "batch_size", None) or args.train_batch_size
        precision, mixed = plan.values.get("precision"), AcceleratorState().mixed_precision
        compared = {
            MICRO_BATCH_SIZE: (size // max(args.n_gpu, 1), plan.micro_batch_size),
            ACCUMULATION_STEPS: (args.gradient_accumulation_steps, max(plan.accumulation_steps // devices, 1)),
            "mixed_precision": (mixed, mixed if precision is None else MIXED.get(str(precision), precision)),
        }
        for name, (found, planned) in compared.items():
            if found != planned:
                raise UsageError(
                    f"found {name}={found} in this training, and the plan has {planned}. Build the Trainer with "
                    "autofit.integrations.huggingface.apply(plan, args), or remove PlanCheck."
                )


def tune_trainer(make_trainer: Callable[[], Any], **arguments: Any) -> Fit:
    """Finds the fastest way to train what a Trainer trains. Nothing is trained or saved.

    What is measured: the Trainer's model, its train loader with the collator, its `compute_loss`, the optimizer of its
    `create_optimizer`, and `args.max_grad_norm`. A `compute_loss` of a subclass is called without `num_items_in_batch`.
    Techniques that a Trainer cannot apply are not searched. What `args` asks for is kept where it is bf16, fp16, or a
    fused optimizer; the optimizer's other implementations have no name in `args.optim` on every device.
    Compilation is searched whatever `args.torch_compile` says, and the baseline is not compiled.
    Of several ranks, such as those of torchrun, each calls this, and gets the same plan. Their layout is "replicated",
    as a Trainer trains by default, unless `pinned` has another one, such as {"layout": "full"}.

    Args:
        make_trainer: makes a new Trainer, such as the one that is trained later. It is called once.
        arguments: those of `autofit.tune`, such as `time_budget`, in place of the Trainer's. The default of
            `global_batch_size` is that of `args`: `per_device_train_batch_size` times `gradient_accumulation_steps`,
            on all ranks.

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
            share = args.train_batch_size * args.gradient_accumulation_steps
            chosen.setdefault("global_batch_size", args.world_size * share)
        if args.fp16:  # which needs a gradient scaler; bf16 is a part of the step
            chosen["pinned"] = {"precision": "fp16", **(arguments.get("pinned") or {})}
        chosen["without"] = _without(args, arguments)
        fit = tune(model, _loader_of(trainer), **chosen)
    finally:
        trainer.optimizer = before
    return for_trainer(with_kept_batch(fit, "of the arguments", arguments), "transformers")


def _check(trainer: Any) -> None:
    """Refuses a Trainer whose steps are not those that would be measured."""
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
    splits = args.world_size > 1 and args.accelerator_config.split_batches
    for given, found in (
        ("fsdp", getattr(args, "fsdp", None)),
        ("deepspeed", getattr(args, "deepspeed", None)),
        ("use_liger_kernel", getattr(args, "use_liger_kernel", False)),
        ("split_batches", splits),
        ("n_gpu", args.n_gpu if args.n_gpu > 1 else None),
    ):
        if found:
            raise UsageError(
                f"found {given}={found!r} in the arguments; expected a training without it, in one process for each "
                "device. Tune without it, and start several processes with torchrun."
            )


def _loader_of(trainer: Any) -> Any:
    """Returns the train loader, which Accelerate does not wrap: to move batches, and to leave each rank its part."""
    accelerator = trainer.accelerator
    accelerator.prepare = lambda loader: loader
    try:
        return trainer.get_train_dataloader()
    finally:
        del accelerator.prepare


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
    device, in_bf16 = trainer.args.device.type, bool(trainer.args.bf16)

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        inputs = trainer._prepare_inputs(dict(batch) if isinstance(batch, Mapping) else batch)
        autocast = torch.autocast(device, torch.bfloat16) if in_bf16 else nullcontext()
        with trainer.compute_loss_context_manager(), autocast:
            loss: torch.Tensor = trainer.compute_loss(model, inputs)
        return loss

    return step
