"""Exporter to Hugging Face: maps a plan to the fields of `transformers.TrainingArguments`."""

from collections.abc import Mapping
from typing import ClassVar

from autofit.core.answer import Answer
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue
from autofit.exporters.base import Exporter, TargetVersion
from autofit.exporters.plan_facts import (
    BF16,
    CHECKPOINTED_BLOCKS,
    FLAGS,
    FULL,
    GATHER,
    HYBRID,
    LAYOUT,
    MODES,
    REPLICATED,
    RESHARD,
    SYNC,
    UNUSED,
    Settings,
    adamw_fields,
    averaged_each_time,
    blocks_line,
    checkpointing_fields,
    code_lines,
    divides_each_time,
    gathers_again,
    is_divided,
    looks_for_unused,
    shards,
    worker_settings,
)
from autofit.strict_yaml import dump

_SHARED_LINES = ("attention", "cudnn_benchmark")
"""Knobs whose line is that of a plain loop."""
COMPILE, UPDATE, GROUPED = "compile", "optimizer_implementation", "length_grouping"

STRATEGY_SINCE = "5.2"
"""First version in which `train_sampling_strategy` replaces `group_by_length`."""
SHARDS_SINCE = "5.2"
"""First version that shards with FSDP2, and whose Trainer can divide gradients after each micro batch."""
SWITCH_SINCE = "5.10"
"""First version in which `fsdp` is a switch, and `fsdp_config` says how."""
ACTIVATION_SINCE = "5.23"
"""First version in which `activation_checkpointing` replaces `gradient_checkpointing`."""
_PASS = "and pass it as Trainer(optimizers=(optimizer, None))"


def _compiled(mode: str) -> Settings:
    return {"torch_compile": True, "torch_compile_backend": "inductor", "torch_compile_mode": mode}


def _is_sharded(answer: Answer, version: TargetVersion) -> bool:
    return shards(answer) is not None and version >= SHARDS_SINCE and not answer.environment.is_host


def _sharded(answer: Answer, version: TargetVersion) -> Settings:
    how = {"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "reshard_after_forward": gathers_again(answer)}
    switch = True if version >= SWITCH_SINCE else "full_shard auto_wrap"
    return {"fsdp": switch, "fsdp_config": how, **averaged_each_time(answer)}


class HuggingFace(Exporter):
    """A YAML file of `TrainingArguments`, for `HfArgumentParser.parse_yaml_file`.

    A plan for inference is for the evaluation in `Trainer.evaluate`.
    """

    name: ClassVar[str] = "huggingface"
    filename: ClassVar[str] = "training_arguments.yaml"
    infers: ClassVar[bool] = True
    package: ClassVar[str] = "transformers"
    oldest: ClassVar[str] = "4.53"  # the first version in which each block of a model has a switch of its own
    newest: ClassVar[str] = "5.24"
    weighs_alike: ClassVar[str] = "the Trainer"
    unless: ClassVar[str] = ", unless the model's forward takes num_items_in_batch, as most of transformers do"
    counts: ClassVar[Mapping[str, str]] = {
        MICRO_BATCH_SIZE: "per_device_train_batch_size",
        ACCUMULATION_STEPS: "gradient_accumulation_steps",
    }
    table: ClassVar[Mapping[str, Mapping[KnobValue, Settings]]] = {
        "precision": {
            "fp32": {"bf16": False, "fp16": False},
            "tf32": {"bf16": False, "fp16": False, "tf32": True},
            "bf16": {"bf16": True, "fp16": False},
            "fp16": {"bf16": False, "fp16": True},
        },
        COMPILE: {
            # A backend or a mode alone would switch compilation on.
            "off": {"torch_compile": False, "torch_compile_backend": None, "torch_compile_mode": None},
            **{mode: _compiled(mode) for mode in MODES},
        },
        UPDATE: {"default": {}},
        GROUPED: {False: {}, True: {"train_sampling_strategy": "group_by_length"}},
        "recomputed_operators": {"all": {}},
        # By default, the Trainer looks for unused parameters after each forward pass.
        LAYOUT: {REPLICATED: {"ddp_find_unused_parameters": False}},
        UNUSED: {True: {"ddp_find_unused_parameters": True}},
    }
    lines: ClassVar[Mapping[str, Mapping[KnobValue, str]]] = {
        COMPILE: {"blocks": "call .compile() on each repeated layer of the model before the Trainer is made"},
        "packing": {
            True: "pass the model to autofit.integrations.huggingface.apply(plan, args, model), which packs its batches"
        },
        UPDATE: {value: f"make the optimizer with {flags}, {_PASS}" for value, flags in FLAGS.items()},
    }
    casts_otherwise: ClassVar[Mapping[KnobValue, str]] = {
        **dict.fromkeys(
            (FULL, HYBRID), "the Trainer gathers weights and averages gradients in 16 bits beside autocast"
        ),
        BF16: "the Trainer also averages gradients in 16 bits",
    }
    clipping_key: ClassVar[str] = "max_grad_norm"  # its default is the norm 1.0

    def fields(self, answer: Answer, version: TargetVersion) -> Mapping[str, Settings]:
        """Returns the fields for each knob."""
        values = answer.plan.values
        found: dict[str, Settings | None] = {**adamw_fields(answer, "optim"), **super().fields(answer, version)}
        if answer.environment.is_inference:  # the batch of `Trainer.evaluate`, which has no accumulation
            size, steps = values.get(MICRO_BATCH_SIZE), values.get(ACCUMULATION_STEPS)
            batch = {"per_device_eval_batch_size": size} if type(size) is int and size > 0 else None
            found |= {MICRO_BATCH_SIZE: batch, ACCUMULATION_STEPS: {} if type(steps) is int and steps == 1 else None}
        compiled = found.get(COMPILE)
        if compiled is not None and values[COMPILE] != "off" and values.get("precision") != "tf32":
            found[COMPILE] = {**compiled, "tf32": False}  # else the Trainer switches it on beside compilation
        if found.get(GROUPED) and version < STRATEGY_SINCE:
            found[GROUPED] = {"group_by_length": True}
        looks = found.pop(UNUSED, None)
        if looks and looks_for_unused(answer):
            found[UNUSED] = looks  # last: it replaces the field of the layout
        if _is_sharded(answer, version):
            found |= {LAYOUT: _sharded(answer, version), RESHARD: {}}
            found |= {} if divides_each_time(answer) else {SYNC: {}}
            found |= {GATHER: {}} if values.get("precision") == BF16 else {}  # it gathers in the format of autocast
        name = "activation_checkpointing" if version >= ACTIVATION_SINCE else "gradient_checkpointing"
        every = {name: True, f"{name}_kwargs": {"use_reentrant": False}}
        found |= checkpointing_fields(answer, {name: False}, every)
        return {knob: settings for knob, settings in found.items() if settings is not None and knob in values}

    def by_hand(self, answer: Answer, version: TargetVersion) -> Mapping[str, str]:
        """Returns what to do in the code that makes the model, the optimizer and the collator."""
        lines = code_lines(answer)
        shared = {knob: line for knob, line in lines.items() if knob in _SHARED_LINES}
        found = {**super().by_hand(answer, version), **shared}
        if (grid := shards(answer)) and _is_sharded(answer, version):
            sizes = "ParallelismConfig(dp_replicate_size={}, dp_shard_size={})".format(*grid)
            rows = f"set args.parallelism_config = {sizes} of accelerate, before the Trainer is made, and "
            found[LAYOUT] = rows * (grid[0] > 1) + blocks_line("transformer_layer_cls_to_wrap")
        blocks = answer.plan.values.get(CHECKPOINTED_BLOCKS)
        if type(blocks) is int and blocks > 0:  # some, or all of them if a file does not say how many there are
            kind = "activation" if version >= ACTIVATION_SINCE else "gradient"
            found[CHECKPOINTED_BLOCKS] = (
                f'call model.{kind}_checkpointing_enable({{"use_reentrant": False}}), then set gradient_checkpointing '
                f"= False in each GradientCheckpointingLayer of the model but the first {blocks} blocks"
            )
        return found

    def loading(self, answer: Answer) -> Settings:
        """Returns the fields of the loader's worker processes, if they were chosen."""
        return {f"dataloader_{name}": value for name, value in worker_settings(answer).items()}

    def render(self, settings: Settings, answer: Answer) -> str:
        """Returns the YAML text, with comments."""
        samples = f": {answer.plan.global_batch_size} samples per step. With several, divide its steps"
        alone = answer.environment.is_inference or is_divided(answer)
        lines = [
            "To load: args, = HfArgumentParser(TrainingArguments).parse_yaml_file(path)",
            f"The batch is that of {'each' if is_divided(answer) else 'one'} device{'' if alone else samples}.",
        ]
        if "group_by_length" in (settings.get("train_sampling_strategy"), *settings):
            lines.append("Grouping by length needs samples with input_ids, or a column `length`.")
        return "".join(f"{self.comment}{line}\n" for line in lines) + dump(settings)
