"""Exporter to Axolotl: maps a plan to keys of its configuration."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from autofit.core.answer import Answer
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, Plan
from autofit.exporters.base import Exporter, Settings
from autofit.exporters.plan_facts import (
    checkpointing_fields,
    dataloader_fields,
    optimizer_name,
    weighing_caveat,
)
from autofit.exporters.target_version import TargetVersion
from autofit.strict_yaml import dump

_ADAMW: Mapping[tuple[str, KnobValue, bool], str] = {
    ("optimizer_implementation", "fused", True): "adamw_torch_fused",
    ("optimizer_implementation", "fused", False): "adamw_torch_fused",
    ("optimizer_implementation", "foreach", False): "adamw_torch",
    ("optimizer_implementation", "for-loop", True): "adamw_torch",
    ("optimizer_states", "torchao-8bit", True): "adamw_torch_8bit",
    ("optimizer_states", "torchao-8bit", False): "adamw_torch_8bit",
}
"""Name of AdamW by knob, value, and whether it runs on the host. `adamw_torch` is torch's default: a loop on the host,
else foreach. `adamw_bnb_8bit` keeps the states of embeddings in 32 bits, so that it needs more memory than the plan."""

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
        "optimizer_states": {"default": {}},
    }
    clipping_key: ClassVar[str] = "max_grad_norm"  # without it, the Trainer's default is the norm 1.0

    def fields(self, plan: Plan, answer: Answer, version: TargetVersion) -> Mapping[str, Settings]:
        """Returns the keys for each knob."""
        padding = _padding(plan.values.get("padding_multiple"))
        found = {
            **super().fields(plan, answer, version),
            **_optimizer(plan, answer),
            **checkpointing_fields(answer, _NONE, _EVERY),
            **({} if padding is None else {"padding_multiple": padding}),
        }
        return {knob: settings for knob, settings in found.items() if knob in plan.values}

    def caveats(self, answer: Answer, version: TargetVersion) -> Sequence[str]:
        """Returns how its gradient differs from that of the plan."""
        return weighing_caveat(answer, "Axolotl")

    def loading(self, answer: Answer) -> Settings:
        """Returns the keys of the loader's worker processes, if they were chosen."""
        return dataloader_fields(answer)

    def render(self, settings: Settings, answer: Answer, version: TargetVersion) -> str:
        """Returns the YAML text."""
        batch = f"{self.comment}The batch is that of one device. Axolotl multiplies it by the number of devices.\n"
        use = f"{self.comment}Replace the keys of the same names in your Axolotl configuration; `batch_size` must not "
        return f"{batch}{use}be set.\n{dump(settings)}"


def _padding(value: KnobValue | None) -> Settings | None:
    """Returns the multiple. Axolotl pads to 64 by default, and to the full length unless it is switched off."""
    if type(value) is not int or value < 1:
        return None
    return {"pad_to_multiple_of": value, "pad_to_sequence_len": None} if value > 1 else {}


def _optimizer(plan: Plan, answer: Answer) -> dict[str, Settings]:
    """Returns the name of the optimizer, if the plan chose how it updates and it is AdamW."""
    on_host = answer.environment.is_host
    knobs = ("optimizer_implementation", "optimizer_states")
    names = {knob: _ADAMW.get((knob, plan.values.get(knob, ""), on_host)) for knob in knobs}
    if optimizer_name(answer) != "AdamW":
        return {}
    return {knob: {"optimizer": name} for knob, name in names.items() if name is not None}
