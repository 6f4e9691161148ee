"""Exporter to DeepSpeed: maps a plan to a configuration in JSON, and the rest to lines of the user's code."""

import json
from collections.abc import Mapping, Sequence
from typing import ClassVar

from autofit.core.answer import Answer
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, Plan
from autofit.exporters.base import Exporter, Settings, max_grad_norm
from autofit.exporters.code_lines import code_lines, padding_line
from autofit.exporters.plan_facts import optimizer_name, weighing_caveat
from autofit.exporters.target_version import TargetVersion

AUTOCAST_SINCE = "0.17.2"
"""First version with the section `torch_autocast`, which leaves the weights in float32. `bf16` and `fp16` cast them."""
SCALER_SINCE = "0.18"
"""First version that scales the loss of `torch_autocast` in float16 without ZeRO."""

_LIBRARIES: Mapping[KnobValue, str] = {
    "torchao-8bit": "torchao.optim.AdamW8bit(...)",
    "bitsandbytes-8bit": "bitsandbytes.optim.AdamW8bit(...)",
}


class DeepSpeed(Exporter):
    """A configuration for `deepspeed.initialize(model=model, optimizer=optimizer, config="ds_config.json")`.

    The batch is that of one device. DeepSpeed multiplies it by the number of devices, so that `train_batch_size` is
    left out. Parameters are not partitioned (ZeRO stage 0), as in the measurement, and the optimizer is the one that
    is passed: a section `optimizer` would replace it. The section `activation_checkpointing` is left out too, because
    it switches nothing on.

    `gradient_clipping` is always written, because its default differs between versions: 0, or 1.0 in later ones.
    """

    name: ClassVar[str] = "deepspeed"
    filename: ClassVar[str] = "ds_config.json"
    comment: ClassVar[str] = ""
    package: ClassVar[str] = "deepspeed"
    oldest: ClassVar[str] = "0.15"
    newest: ClassVar[str] = "0.19"
    counts: ClassVar[Mapping[str, str]] = {
        MICRO_BATCH_SIZE: "train_micro_batch_size_per_gpu",
        ACCUMULATION_STEPS: "gradient_accumulation_steps",
    }
    table: ClassVar[Mapping[str, Mapping[KnobValue, Settings]]] = {
        "precision": {
            "fp32": {},
            "bf16": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
            "fp16": {"torch_autocast": {"enabled": True, "dtype": "float16"}},
        },
    }
    lines: ClassVar[Mapping[str, Mapping[KnobValue, str]]] = {
        "precision": {
            "bf16": "with torch.autocast(engine.device.type, torch.bfloat16): around each forward pass",
        },
        "compile": {
            "default": "engine.compile()",
            "blocks": "call .compile() on each repeated block of the model, before deepspeed.initialize",
            "max-autotune-no-cudagraphs": 'engine.compile(compile_kwargs={"mode": "max-autotune-no-cudagraphs"})',
            "reduce-overhead": 'engine.compile(compile_kwargs={"mode": "reduce-overhead"})',
        },
        "activation_budget": {
            "half": "torch._functorch.config.activation_memory_budget = 0.5, before the model is compiled",
            "fifth": "torch._functorch.config.activation_memory_budget = 0.2, before the model is compiled",
        },
        "attention": {
            "sdpa": 'load the model with attn_implementation="sdpa"',
        },
    }

    def fields(self, plan: Plan, answer: Answer, version: TargetVersion) -> Mapping[str, Settings]:
        """Returns the sections for each knob."""
        found = dict(super().fields(plan, answer, version))
        if version < {"bf16": AUTOCAST_SINCE, "fp16": SCALER_SINCE}.get(str(plan.values.get("precision")), "0"):
            found.pop("precision")
        return found

    def by_hand(self, plan: Plan, answer: Answer, version: TargetVersion) -> Mapping[str, str]:
        """Returns lines for the code that makes the model, the optimizer and the engine."""
        lines = {**code_lines(plan, answer), **super().by_hand(plan, answer, version)}
        lines.pop(MICRO_BATCH_SIZE, None)  # a section has it
        more = {
            "padding_multiple": padding_line(plan.values.get("padding_multiple")),
            "optimizer_states": _states_line(plan, answer),
        }
        return {**lines, **{knob: line for knob, line in more.items() if line is not None}}

    def caveats(self, answer: Answer, version: TargetVersion) -> Sequence[str]:
        """Returns how its gradient differs from that of the plan."""
        return weighing_caveat(answer, "DeepSpeed")

    def clipping(self, answer: Answer) -> Settings:
        """Returns the key of clipping, which is written for a plan without it too."""
        return {"gradient_clipping": max_grad_norm(answer) or 0.0}

    def render(self, settings: Settings, answer: Answer, version: TargetVersion) -> str:
        """Returns the configuration."""
        return json.dumps({**settings, "zero_optimization": {"stage": 0}}, indent=2)


def _states_line(plan: Plan, answer: Answer) -> str | None:
    made = _LIBRARIES.get(plan.values.get("optimizer_states", ""))
    return made and f"{made} in place of torch.optim.AdamW(...)" if optimizer_name(answer) == "AdamW" else None
