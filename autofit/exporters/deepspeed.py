"""Exporter to DeepSpeed: maps a plan to a configuration in JSON, and the rest to lines of the user's code."""

import json
from collections.abc import Mapping
from typing import ClassVar

from autofit.core.answer import Answer
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue
from autofit.exporters.base import Exporter, TargetVersion
from autofit.exporters.plan_facts import Settings, code_lines, max_grad_norm


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
    oldest: ClassVar[str] = "0.18"
    newest: ClassVar[str] = "0.19"
    weighs_alike: ClassVar[str] = "DeepSpeed"
    counts: ClassVar[Mapping[str, str]] = {
        MICRO_BATCH_SIZE: "train_micro_batch_size_per_gpu",
        ACCUMULATION_STEPS: "gradient_accumulation_steps",
    }
    table: ClassVar[Mapping[str, Mapping[KnobValue, Settings]]] = {
        "precision": {  # the sections bf16 and fp16 cast the weights; this one leaves them in float32
            "fp32": {},
            "bf16": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}},
            "fp16": {"torch_autocast": {"enabled": True, "dtype": "float16"}},
        },
    }
    lines: ClassVar[Mapping[str, Mapping[KnobValue, str]]] = {
        "compile": {
            "default": "engine.compile()",
            "blocks": "call .compile() on each repeated block of the model, before deepspeed.initialize",
            "max-autotune-no-cudagraphs": 'engine.compile(compile_kwargs={"mode": "max-autotune-no-cudagraphs"})',
            "reduce-overhead": 'engine.compile(compile_kwargs={"mode": "reduce-overhead"})',
        },
    }

    def by_hand(self, answer: Answer, version: TargetVersion) -> Mapping[str, str]:
        """Returns lines for the code that makes the model, the optimizer and the engine."""
        lines = {**code_lines(answer), **super().by_hand(answer, version)}
        lines.pop(MICRO_BATCH_SIZE, None)  # a section has it
        return lines

    def clipping(self, answer: Answer) -> Settings:
        """Returns the key of clipping, which is written for a plan without it too."""
        return {"gradient_clipping": max_grad_norm(answer) or 0.0}

    def render(self, settings: Settings, answer: Answer) -> str:
        """Returns the configuration."""
        return json.dumps({**settings, "zero_optimization": {"stage": 0}}, indent=2)
