"""Exporter to Hugging Face: maps a plan to the fields of `transformers.TrainingArguments`."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from autofit.core.answer import Answer
from autofit.core.block_order import read_order
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, Plan
from autofit.exporters.base import Exporter, Settings
from autofit.exporters.code_lines import FLAGS, benchmark_line, padding_line
from autofit.exporters.plan_facts import (
    CHECKPOINT_ORDER,
    CHECKPOINTED_BLOCKS,
    blocks_in_words,
    checkpointing_fields,
    chosen_loading,
    dataloader_fields,
    optimizer_name,
    weighing_caveat,
)
from autofit.exporters.target_version import TargetVersion
from autofit.strict_yaml import dump

COMPILE, UPDATE, STATES, GROUPED = "compile", "optimizer_implementation", "optimizer_states", "length_grouping"

_IMPLEMENTATIONS: dict[tuple[KnobValue, str], str] = {
    ("fused", "cpu"): "adamw_torch_fused",
    ("fused", "cuda"): "adamw_torch_fused",
    ("foreach", "cuda"): "adamw_torch",
    ("for-loop", "cpu"): "adamw_torch",
}
"""The AdamW of `optim` that runs an implementation on a device. `adamw_torch` is torch's default, which is foreach on
CUDA and a loop on the CPU; other implementations have no name."""
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
_PASS = "and pass it as Trainer(optimizers=(optimizer, None))"
BLOCKS_SINCE = "4.53"
"""First version in which each block of a model has a switch of its own."""


def _compiled(mode: str) -> Settings:
    return {"torch_compile": True, "torch_compile_backend": "inductor", "torch_compile_mode": mode}


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
            **{mode: _compiled(mode) for mode in ("default", "max-autotune-no-cudagraphs", "reduce-overhead")},
        },
        UPDATE: {"default": {}},
        STATES: {"default": {}, "torchao-8bit": {"optim": "adamw_torch_8bit"}},
        GROUPED: {False: {}, True: {"train_sampling_strategy": "group_by_length"}},
        "recomputed_operators": {"all": {}},
    }
    lines: ClassVar[Mapping[str, Mapping[KnobValue, str]]] = {
        COMPILE: {"blocks": "call .compile() on each repeated layer of the model before the Trainer is made"},
        "attention": {
            "sdpa": 'load the model with attn_implementation="sdpa"',
        },
        "packing": {True: _PACKING},
        UPDATE: {value: f"make the optimizer with {flags}, {_PASS}" for value, flags in FLAGS.items()},
        # The Trainer's adamw_bnb_8bit keeps the states of embeddings in 32 bits: it needs more memory than the plan.
        STATES: {
            "torchao-8bit": f"make the optimizer by torchao.optim.AdamW8bit, {_PASS}",
            "bitsandbytes-8bit": f"make the optimizer by bitsandbytes.optim.AdamW8bit, {_PASS}",
        },
    }
    clipping_key: ClassVar[str] = "max_grad_norm"  # its default is the norm 1.0

    def fields(self, plan: Plan, answer: Answer, version: TargetVersion) -> Mapping[str, Settings]:
        """Returns the fields for each knob."""
        found: dict[str, Settings | None] = {
            **_implementation(plan, answer),
            **super().fields(plan, answer, version),
        }
        if _evaluates(answer):
            found |= _evaluation(plan)
        if COMPILE in found and plan.values[COMPILE] != "off" and plan.values.get("precision") != "tf32":
            found[COMPILE] = {
                **(found[COMPILE] or {}),
                "tf32": False,
            }  # else the Trainer switches it on beside compilation
        if plan.values.get(STATES) == "torchao-8bit" and version < TORCHAO_SINCE:
            del found[STATES]
        if found.get(GROUPED) and version < STRATEGY_SINCE:
            found[GROUPED] = {"group_by_length": True}
        found |= _checkpointing(answer, version)
        return {knob: settings for knob, settings in found.items() if settings is not None and knob in plan.values}

    def by_hand(self, plan: Plan, answer: Answer, version: TargetVersion) -> Mapping[str, str]:
        """Returns what to do in the code that makes the model, the optimizer and the collator."""
        more = {
            "padding_multiple": padding_line(plan.values.get("padding_multiple")),
            "cudnn_benchmark": benchmark_line(plan),
            **_blocks_lines(plan, version),
        }
        found = super().by_hand(plan, answer, version)
        return {**found, **{knob: line for knob, line in more.items() if line is not None}}

    def caveats(self, answer: Answer, version: TargetVersion) -> Sequence[str]:
        """Returns how its gradient differs from that of the plan."""
        return weighing_caveat(answer, "the Trainer", _COUNTED if version >= COUNTED_SINCE else "")

    def loading(self, answer: Answer) -> Settings:
        """Returns the fields of the loader's worker processes, if they were chosen."""
        loading = chosen_loading(answer)
        lasting = {} if loading is None else {"dataloader_persistent_workers": loading.persistent_workers}
        return {**dataloader_fields(answer), **lasting}

    def render(self, settings: Settings, answer: Answer, version: TargetVersion) -> str:
        """Returns the YAML text, with comments."""
        lines = ["To load: args, = HfArgumentParser(TrainingArguments).parse_yaml_file(path)"]
        if _evaluates(answer):
            lines.append("The batch is that of one device.")
        else:
            samples = answer.plan.global_batch_size
            lines.append(
                f"The batch is that of one device: {samples} samples per step. With several, divide its steps."
            )
        if "group_by_length" in (settings.get("train_sampling_strategy"), *settings):
            lines.append("Grouping by length needs samples with input_ids, or a column `length`.")
        comments = "".join(f"{self.comment}{line}\n" for line in lines)
        return comments + dump(settings)


def _evaluates(answer: Answer) -> bool:
    return answer.environment.settings.get("mode") == "inference"


def _evaluation(plan: Plan) -> dict[str, Settings | None]:
    """Returns the fields of the batch of `Trainer.evaluate`, which has no accumulation."""
    size, steps = plan.values.get(MICRO_BATCH_SIZE), plan.values.get(ACCUMULATION_STEPS)
    return {
        MICRO_BATCH_SIZE: {"per_device_eval_batch_size": size} if type(size) is int and size > 0 else None,
        ACCUMULATION_STEPS: {} if type(steps) is int and steps == 1 else None,
    }


def _implementation(plan: Plan, answer: Answer) -> dict[str, Settings | None]:
    if optimizer_name(answer) != "AdamW":
        return {}
    optim = _IMPLEMENTATIONS.get((plan.values.get(UPDATE, ""), answer.environment.device_type))
    return {} if optim is None else {UPDATE: {"optim": optim}}


def _checkpointing(answer: Answer, version: TargetVersion) -> dict[str, Settings]:
    """Returns the fields of checkpointing: that of every block, or of none."""
    name = "activation_checkpointing" if version >= ACTIVATION_SINCE else "gradient_checkpointing"
    every = {name: True, f"{name}_kwargs": {"use_reentrant": False}}
    return checkpointing_fields(answer, {name: False}, every)


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
