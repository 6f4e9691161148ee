"""Exporter to Axolotl: maps a plan to keys of its configuration."""

from collections.abc import Mapping
from typing import ClassVar

from autofit.core.answer import Answer
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue
from autofit.exporters.base import Exporter, TargetVersion
from autofit.exporters.plan_facts import (
    FULL,
    LAYOUT,
    REPLICATED,
    RESHARD,
    SYNC,
    UNUSED,
    Settings,
    adamw_fields,
    averaged_each_time,
    checkpointing_fields,
    gathers_again,
    looks_for_unused,
    worker_settings,
)
from autofit.strict_yaml import dump

_NONE: Settings = {"gradient_checkpointing": False}
_EVERY: Settings = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}


class Axolotl(Exporter):
    """Keys to copy into the file that is passed to `axolotl train config.yaml`, in place of those with the same name.

    Axolotl reads one file, so that both cannot be passed. With `sample_packing`, a sample is a packed row of
    `sequence_len` tokens.

    Its trainer passes num_items_in_batch only to a model whose forward names this argument, which the models of
    transformers do not: they take it in **kwargs. So micro batches are weighted alike, unless the loss is that of the
    knowledge distillation plugin or `use_eaft`.
    """

    name: ClassVar[str] = "axolotl"
    filename: ClassVar[str] = "autofit_axolotl.yaml"
    package: ClassVar[str] = "axolotl"
    oldest: ClassVar[str] = "0.17"
    newest: ClassVar[str] = "0.19"
    weighs_alike: ClassVar[str] = "Axolotl"
    counts: ClassVar[Mapping[str, str]] = {
        MICRO_BATCH_SIZE: "micro_batch_size",
        ACCUMULATION_STEPS: "gradient_accumulation_steps",
    }
    table: ClassVar[Mapping[str, Mapping[KnobValue, Settings]]] = {
        # "bf16: true" and "fp16: true" also load the weights in 16 bits, which autocast does not: they are left out.
        # The defaults are "auto", which would choose bf16 and TF32.
        "precision": {
            "fp32": {"bf16": False, "fp16": False, "tf32": False},
            "tf32": {"bf16": False, "fp16": False, "tf32": True},
        },
        "compile": {
            "off": {"torch_compile": False},
            "default": {"torch_compile": True, "torch_compile_mode": "default"},
            "reduce-overhead": {"torch_compile": True, "torch_compile_mode": "reduce-overhead"},
        },
        "attention": {"default": {}, "sdpa": {"attn_implementation": "sdpa"}},
        "length_grouping": {False: {}, True: {"group_by_length": True}},
        "recomputed_operators": {"all": {}},
        "optimizer_implementation": {"default": {}},
        LAYOUT: {REPLICATED: {"ddp": True, "ddp_find_unused_parameters": False}},
        UNUSED: {True: {"ddp_find_unused_parameters": True}},
    }
    clipping_key: ClassVar[str] = "max_grad_norm"  # without it, the Trainer's default is the norm 1.0

    def fields(self, answer: Answer, version: TargetVersion) -> Mapping[str, Settings]:
        """Returns the keys for each knob."""
        found = {
            **super().fields(answer, version),
            **adamw_fields(answer, "optimizer"),
            **checkpointing_fields(answer, _NONE, _EVERY),
        }
        looks = found.pop(UNUSED, None)
        if looks and looks_for_unused(answer):
            found[UNUSED] = looks  # last: it replaces the key of the layout
        if answer.plan.values.get(LAYOUT) == FULL:
            how = {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "reshard_after_forward": gathers_again(answer)}
            found[LAYOUT] = {"fsdp_version": 2, "fsdp_config": how, **averaged_each_time(answer)}
            found |= {RESHARD: {}, SYNC: {}}
        return {knob: settings for knob, settings in found.items() if knob in answer.plan.values}

    def loading(self, answer: Answer) -> Settings:
        """Returns the keys of the loader's worker processes, if they were chosen."""
        workers = worker_settings(answer)
        return {f"dataloader_{name}": value for name, value in workers.items() if name != "persistent_workers"}

    def render(self, settings: Settings, answer: Answer) -> str:
        """Returns the YAML text."""
        batch = f"{self.comment}The batch is that of one device. Axolotl multiplies it by the number of devices.\n"
        use = f"{self.comment}Replace the keys of the same names in your Axolotl configuration; `batch_size` must not "
        return f"{batch}{use}be set.\n{dump(settings)}"
