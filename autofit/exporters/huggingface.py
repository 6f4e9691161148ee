"""Exporter to Hugging Face: maps a plan to the fields of `transformers.TrainingArguments`."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from autofit.core.block_order import read_order
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, Plan
from autofit.core.recommendation import Recommendation
from autofit.exporters.base import Exporter, Settings
from autofit.exporters.code_lines import FLAGS, benchmark_line, padding_line
from autofit.exporters.plan_facts import (
    CHECKPOINT_ORDER,
    CHECKPOINTED_BLOCKS,
    blocks_in_words,
    checkpointing_fields,
    chosen_loading,
    clipping_fields,
    counted,
    dataloader_fields,
    optimizer_name,
    weighing_caveat,
)
from autofit.exporters.target_version import TargetVersion
from autofit.strict_yaml import dump

PRECISION, COMPILE, UPDATE = "precision", "compile", "optimizer_implementation"
STATES, GROUPED, OPERATORS = "optimizer_states", "length_grouping", "recomputed_operators"

_PRECISIONS: dict[KnobValue, Settings] = {
    "fp32": {"bf16": False, "fp16": False},
    "tf32": {"bf16": False, "fp16": False, "tf32": True},
    "bf16": {"bf16": True, "fp16": False},
    "fp16": {"bf16": False, "fp16": True},
}
_MODES: dict[KnobValue, str] = {
    "default": "default",
    "max-autotune-no-cudagraphs": "max-autotune-no-cudagraphs",
    "reduce-overhead": "reduce-overhead",
}
_NOT_COMPILED: Settings = {"torch_compile": False, "torch_compile_backend": None, "torch_compile_mode": None}
"""A backend or a mode alone would switch compilation on."""
_IMPLEMENTATIONS: dict[tuple[KnobValue, str], str] = {
    ("fused", "cpu"): "adamw_torch_fused",
    ("fused", "cuda"): "adamw_torch_fused",
    ("foreach", "cuda"): "adamw_torch",
    ("for-loop", "cpu"): "adamw_torch",
}
"""The AdamW of `optim` that runs an implementation on a device. `adamw_torch` is torch's default, which is foreach on
CUDA and a loop on the CPU; other implementations have no name."""
_LIBRARIES: dict[KnobValue, str] = {
    "torchao-8bit": "torchao.optim.AdamW8bit",
    "bitsandbytes-8bit": "bitsandbytes.optim.AdamW8bit",
}
_ATTENTION: dict[KnobValue, str] = {
    "sdpa": 'load the model with attn_implementation="sdpa"',
    "flash": "call torch.backends.cuda.enable_cudnn_sdp(False) before the training",
}
TORCHAO_SINCE = "4.49"
"""First version with `optim: adamw_torch_8bit`."""
STRATEGY_SINCE = "5.2"
"""First version in which `train_sampling_strategy` replaces `group_by_length`."""
ACTIVATION_SINCE = "5.23"
"""First version in which `activation_checkpointing` replaces `gradient_checkpointing`."""
COUNTED_SINCE = "4.46"
"""First version that passes the number of targets of a whole step to a model that takes it."""
_COUNTED = ", unless the model's forward takes num_items_in_batch, as most of transformers do"
_PACKING = "pass the model to autofit.integrations.huggingface.apply(plan, args, model), which packs its batches"
BLOCKS_SINCE = "4.53"
"""First version in which each block of a model has a switch of its own."""


class HuggingFace(Exporter):
    """A YAML file of `TrainingArguments`, for `HfArgumentParser.parse_yaml_file`.

    A plan for inference is for the evaluation in `Trainer.evaluate`.
    """

    name: ClassVar[str] = "huggingface"
    filename: ClassVar[str] = "training_arguments.yaml"
    infers: ClassVar[bool] = True
    package: ClassVar[str] = "transformers"
    oldest: ClassVar[str] = "4.45"
    newest: ClassVar[str] = "5.24"

    def fields(self, plan: Plan, recommendation: Recommendation, version: TargetVersion) -> Mapping[str, Settings]:
        """Returns the fields for each knob."""
        r = recommendation
        found: dict[str, Settings | None] = {knob: given(value) for knob, (value, given) in _plain(plan, r).items()}
        found |= {
            knob: settings
            for knob, settings in (
                (COMPILE, _compiled(plan)),
                (UPDATE, _implementation(plan, r)),
                (STATES, _states(plan, version)),
                (GROUPED, _grouped(plan, version)),
                *_checkpointing(r, version).items(),
            )
            if knob in plan.values
        }
        return {knob: settings for knob, settings in found.items() if settings is not None}

    def by_hand(self, plan: Plan, recommendation: Recommendation, version: TargetVersion) -> Mapping[str, str]:
        """Returns what to do in the code that makes the model, the optimizer and the collator."""
        values = plan.values
        lines = {
            "attention": _ATTENTION.get(values.get("attention", "")),
            "padding_multiple": padding_line(values.get("padding_multiple")),
            "packing": _PACKING if values.get("packing") is True else None,
            "cudnn_benchmark": benchmark_line(plan),
            UPDATE: _flags_line(values.get(UPDATE, "")),
            STATES: _library_line(values.get(STATES, "")),
            **_blocks_lines(plan, version),
        }
        if values.get(COMPILE) == "blocks":
            lines[COMPILE] = "call .compile() on each repeated layer of the model before the Trainer is made"
        return {knob: line for knob, line in lines.items() if line is not None}

    def caveats(self, recommendation: Recommendation, version: TargetVersion) -> Sequence[str]:
        """Returns how its gradient differs from that of the plan."""
        return weighing_caveat(recommendation, "the Trainer", _COUNTED if version >= COUNTED_SINCE else "")

    def loading(self, recommendation: Recommendation) -> Settings:
        """Returns the fields of the loader's worker processes, if they were chosen."""
        loading = chosen_loading(recommendation)
        lasting = {} if loading is None else {"dataloader_persistent_workers": loading.persistent_workers}
        return {**dataloader_fields(recommendation), **lasting}

    def clipping(self, recommendation: Recommendation) -> Settings:
        """Returns the field of clipping, whose default is the norm 1.0."""
        return clipping_fields(recommendation, "max_grad_norm")

    def render(self, settings: Settings, recommendation: Recommendation, version: TargetVersion) -> str:
        """Returns the YAML text, with comments."""
        lines = ["To load: args, = HfArgumentParser(TrainingArguments).parse_yaml_file(path)"]
        if _evaluates(recommendation):
            lines.append("The batch is that of one device.")
        else:
            samples = recommendation.plan.global_batch_size
            lines.append(
                f"The batch is that of one device: {samples} samples per step. With several, divide its steps."
            )
        if "group_by_length" in (settings.get("train_sampling_strategy"), *settings):
            lines.append("Grouping by length needs samples with input_ids, or a column `length`.")
        comments = "".join(f"{self.comment}{line}\n" for line in lines)
        return comments + dump(settings)


def _plain(
    plan: Plan, recommendation: Recommendation
) -> dict[str, tuple[KnobValue, Callable[[KnobValue], Settings | None]]]:
    """Returns the knobs of a plan whose fields depend on nothing but their value, with the value and its mapping."""
    size = "per_device_eval_batch_size" if _evaluates(recommendation) else "per_device_train_batch_size"
    known: dict[str, Callable[[KnobValue], Settings | None]] = {
        MICRO_BATCH_SIZE: counted(size),
        ACCUMULATION_STEPS: _steps if _evaluates(recommendation) else counted("gradient_accumulation_steps"),
        PRECISION: _PRECISIONS.get,
    }
    return {knob: (plan.values[knob], given) for knob, given in known.items() if knob in plan.values}


def _evaluates(recommendation: Recommendation) -> bool:
    return recommendation.environment.settings.get("mode") == "inference"


def _steps(value: KnobValue) -> Settings | None:
    return {} if type(value) is int and value == 1 else None


def _compiled(plan: Plan) -> Settings | None:
    """Returns the fields of compilation. With it, the Trainer switches TF32 on unless it is switched off."""
    value = plan.values.get(COMPILE)
    if value == "off":
        return _NOT_COMPILED
    if value not in _MODES:
        return None
    chosen = {"torch_compile": True, "torch_compile_backend": "inductor", "torch_compile_mode": _MODES[value]}
    return chosen if plan.values.get(PRECISION) == "tf32" else {**chosen, "tf32": False}


def _implementation(plan: Plan, recommendation: Recommendation) -> Settings | None:
    environment, value = recommendation.environment, plan.values.get(UPDATE)
    if value == "default":
        return {}
    if optimizer_name(recommendation) != "AdamW":
        return None
    optim = _IMPLEMENTATIONS.get((value or "", environment.device_type))
    return None if optim is None else {"optim": optim}


def _states(plan: Plan, version: TargetVersion) -> Settings | None:
    """Returns the optimizer with 8-bit states.

    The Trainer's `adamw_bnb_8bit` keeps the states of embeddings in 32 bits, so that it needs more memory than the
    plan.
    """
    value = plan.values.get(STATES)
    if value == "torchao-8bit" and version >= TORCHAO_SINCE:
        return {"optim": "adamw_torch_8bit"}
    return {} if value == "default" else None


def _grouped(plan: Plan, version: TargetVersion) -> Settings | None:
    value = plan.values.get(GROUPED)
    if type(value) is not bool:
        return None
    if not value:
        return {}
    return {"train_sampling_strategy": "group_by_length"} if version >= STRATEGY_SINCE else {"group_by_length": True}


def _checkpointing(recommendation: Recommendation, version: TargetVersion) -> Mapping[str, Settings]:
    """Returns the fields of checkpointing: that of every block, or of none."""
    name = "activation_checkpointing" if version >= ACTIVATION_SINCE else "gradient_checkpointing"
    every = {name: True, f"{name}_kwargs": {"use_reentrant": False}}
    operators: dict[str, Settings] = {OPERATORS: {}} if recommendation.plan.values.get(OPERATORS) == "all" else {}
    return {**checkpointing_fields(recommendation, {name: False}, every), **operators}


def _blocks_lines(plan: Plan, version: TargetVersion) -> Mapping[str, str]:
    """Returns how to checkpoint some blocks of a model, or all of them if a file does not say how many there are."""
    blocks, order = plan.values.get(CHECKPOINTED_BLOCKS), read_order(plan.values.get(CHECKPOINT_ORDER, ""))
    if type(blocks) is not int or blocks < 1 or order is None or not version >= BLOCKS_SINCE:
        return {}
    kind = "activation" if version >= ACTIVATION_SINCE else "gradient"
    line = (
        f'call model.{kind}_checkpointing_enable({{"use_reentrant": False}}), then set gradient_checkpointing = False '
        f"in each GradientCheckpointingLayer of the model but {blocks_in_words(order, blocks)}"
    )
    return {CHECKPOINTED_BLOCKS: line, CHECKPOINT_ORDER: f"see {CHECKPOINTED_BLOCKS}"}


def _flags_line(value: KnobValue) -> str | None:
    flags = FLAGS.get(value)
    return flags and f"make the optimizer with {flags}, and pass it as Trainer(optimizers=(optimizer, None))"


def _library_line(value: KnobValue) -> str | None:
    kind = _LIBRARIES.get(value)
    return kind and f"make the optimizer by {kind}, and pass it as Trainer(optimizers=(optimizer, None))"
