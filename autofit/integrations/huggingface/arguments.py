"""Applies a plan to `TrainingArguments` and to the model, and refuses a training that is not under its plan."""

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import TrainerCallback

from autofit import exporters
from autofit.core.answer import Answer
from autofit.core.errors import UsageError
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.exporters.plan_facts import CHECKPOINTED_BLOCKS, Settings
from autofit.integrations.plan_settings import GivenPlan, fit_of
from autofit.strategies.packable_models import lack, mixing, pack_for_good, packable_models

PACKING = "packing"
_LENGTHS = (8, 3, 4)
"""Lengths of the samples that are packed to see that the model keeps them apart."""


def pack(model: nn.Module) -> None:
    """Lets a model pack its batches in training, as long as it exists.

    Raises:
        UsageError: the model cannot run packed rows, or mixes the samples of a row.
    """
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


SWITCH = "gradient_checkpointing"
"""Attribute by which a block is checkpointed."""
_BLOCK = "GradientCheckpointingLayer"


def checkpoint_some(model: nn.Module, plan: Plan) -> None:
    """Switches checkpointing on in the blocks that the plan names, and off in all others.

    Raises:
        UsageError: the model does not have the blocks of the plan.
    """
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


Arguments = TypeVar("Arguments")

PRECISIONS = ("bf16", "fp16")
INHERITED = "ACCELERATE_MIXED_PRECISION"
"""Variable that decides if the arguments ask for nothing. transformers 4 sets it whenever arguments are made, so that
it outlives them."""
ACCUMULATION, CLIPPING = "gradient_accumulation_steps", "max_grad_norm"


def apply(plan: GivenPlan, args: Arguments, model: nn.Module | None = None) -> Arguments:
    """Returns a copy of `args` with the fields of the plan. All other fields stay as they are.

    Knobs that `TrainingArguments` has no field for are named in a warning, with what to do in your code. With several
    devices, the accumulation steps are divided among them, so that the plan's global batch is kept.

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
    unmapped = {knob: f"{found.plan.values[knob]} has no equivalent in the Trainer" for knob in export.unmapped}
    left = {**export.by_hand, **unmapped}
    if model is not None and CHECKPOINTED_BLOCKS in left:
        checkpoint_some(model, found.plan)
        name = "activation_checkpointing" if hasattr(changed, "activation_checkpointing") else "gradient_checkpointing"
        changed = replace(changed, **{name: False})  # type: ignore[type-var]  # it would switch every block on
        left = {knob: line for knob, line in left.items() if knob != CHECKPOINTED_BLOCKS}
    if model is not None and found.plan.values.get(PACKING) is True:
        pack(model)
        del left[PACKING]
    _warn(left, args, found)
    return changed


def _contradictions(args: Any, found: Answer, settings: Settings) -> Iterator[tuple[str, str]]:
    """Yields what the arguments ask for, with the value of the plan that it contradicts."""
    plan = found.plan
    for name in ("fsdp", "deepspeed"):
        if value := getattr(args, name, None):
            yield f"{name}={value!r}", "the plan was measured without sharding"
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
    yield from _other_norms(args, settings.get(CLIPPING))
    yield from _other_precisions(args, plan)


def _other_norms(args: Any, norm: object) -> Iterator[tuple[str, str]]:
    """Yields a norm of clipping that is asked for and is not that of the plan. A plan without one leaves the user's.

    The default of the arguments asks for nothing: one that was written out looks the same.
    """
    asked, default = getattr(args, CLIPPING, None), getattr(type(args), CLIPPING, None)
    if norm is not None and asked not in (norm, default):
        yield f"{CLIPPING}={asked}", f"the plan has {CLIPPING}={norm}"


def _other_precisions(args: Any, plan: Plan) -> Iterator[tuple[str, str]]:
    """Yields a precision that is asked for and is not that of the plan. A plan without one leaves the user's."""
    precision, inherited = plan.values.get("precision"), os.environ.get(INHERITED, "no")
    for name in PRECISIONS:
        if precision is None or precision == name:
            continue
        if getattr(args, name, False):
            yield f"{name}=True", f"the plan has precision={precision}"
        elif inherited == name and precision not in PRECISIONS:
            yield f"{INHERITED}={name} in the environment", f"the plan has precision={precision}"


def _divided(args: Any, found: Answer) -> Mapping[str, int]:
    """Returns the accumulation steps of each device.

    Raises:
        UsageError: the plan's steps cannot be divided among the devices.
    """
    devices, steps = args.world_size * max(args.n_gpu, 1), found.plan.accumulation_steps
    if devices == 1 or found.environment.is_inference:
        return {}
    if steps % devices:
        raise UsageError(
            f"found {devices} devices, and the plan has {ACCUMULATION_STEPS}={steps}, which cannot be divided among "
            f"them: a step would train on more than {found.plan.global_batch_size} samples. Train on one device, or "
            f'tune with pinned={{"{ACCUMULATION_STEPS}": {devices}}}.'
        )
    return {ACCUMULATION: steps // devices}


def _warn(left: Mapping[str, str], args: Any, found: Answer) -> None:
    if left:
        lines = "; ".join(f"{knob}: {line}" for knob, line in left.items())
        warnings.warn(
            f"TrainingArguments has no field for a part of the plan, on which its speed and memory depend: {lines}",
            stacklevel=3,
        )
    proven = found.environment
    if args.device.type != proven.device_type:
        warnings.warn(
            f"the plan was proven on {proven.device_name} ({proven.device_type}), and these arguments train on "
            f"{args.device.type}, where its speed and peak memory are unknown. Tune again on this device.",
            stacklevel=3,
        )


MIXED = {"fp32": "no", "tf32": "no", "bf16": "bf16", "fp16": "fp16"}
"""Accelerate's name of each precision of a plan."""


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
        sampler, devices = getattr(loader, "batch_sampler", None), args.world_size * max(args.n_gpu, 1)
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
