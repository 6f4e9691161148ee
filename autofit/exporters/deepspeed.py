"""Exporter to DeepSpeed: maps a plan to a configuration in JSON, and the rest to lines of the user's code."""

import json
from collections.abc import Mapping
from typing import ClassVar

from autofit.core.answer import Answer
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue
from autofit.exporters.base import Exporter, TargetVersion
from autofit.exporters.plan_facts import (
    FULL,
    LAYOUT,
    OPTIMIZER,
    REPLICATED,
    Settings,
    code_lines,
    max_grad_norm,
    optimizer_name,
)

_ZERO = "zero_optimization"
_TESTED = ("Adam", "AdamW", "Adagrad")
"""Optimizers of torch that ZeRO accepts without a further key: `ZERO_SUPPORTED_OPTIMIZERS` of its `zero/utils.py`."""
_IN_16_BITS = "DeepSpeed sends the weights and gradients of linear layers and convolutions in 16 bits"


class DeepSpeed(Exporter):
    """A configuration for `deepspeed.initialize(model=model, optimizer=optimizer, config="ds_config.json")`.

    The batch is that of one device. DeepSpeed multiplies it by the number of devices, so that `train_batch_size` is
    left out. The optimizer is the one that is passed: a section `optimizer` would replace it. The section
    `activation_checkpointing` is left out too, because it switches nothing on.

    Nothing is partitioned (ZeRO stage 0) without a layout. Stage 1 divides the optimizer state, and stage 3 everything,
    as the layouts do, but by DeepSpeed's own code: its buffers, buckets and order of communication are others, and
    stage 3 decides itself for how long it keeps what it gathered. So a warning says that the plan's figures do not
    hold. `reshard_after_forward` and `gather_precision` have no key there.

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
        LAYOUT: {layout: {_ZERO: {"stage": stage}} for layout, stage in ((REPLICATED, 0), (OPTIMIZER, 1), (FULL, 3))},
    }
    divides_otherwise: ClassVar[Mapping[KnobValue, str]] = {
        REPLICATED: "DeepSpeed averages gradients after the backward pass, in buckets of its own",
        OPTIMIZER: "ZeRO stage 1 divides a flat copy of the weights",
        FULL: "ZeRO stage 3 divides the same by other means",
    }
    casts_otherwise: ClassVar[Mapping[KnobValue, str]] = {OPTIMIZER: _IN_16_BITS, FULL: _IN_16_BITS}
    lines: ClassVar[Mapping[str, Mapping[KnobValue, str]]] = {
        "compile": {
            "default": "engine.compile()",
            "blocks": "call .compile() on each repeated block of the model, before deepspeed.initialize",
            "max-autotune-no-cudagraphs": 'engine.compile(compile_kwargs={"mode": "max-autotune-no-cudagraphs"})',
            "reduce-overhead": 'engine.compile(compile_kwargs={"mode": "reduce-overhead"})',
        },
    }

    def fields(self, answer: Answer, version: TargetVersion) -> Mapping[str, Settings]:
        """Returns the keys for each knob. ZeRO asks for a further key with an optimizer that it does not know."""
        found = dict(super().fields(answer, version))
        if answer.plan.values.get(LAYOUT) in (OPTIMIZER, FULL) and optimizer_name(answer) not in _TESTED:
            found[LAYOUT] = {**found[LAYOUT], "zero_allow_untested_optimizer": True}
        return found

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
        return json.dumps({**settings, _ZERO: settings.get(_ZERO, {"stage": 0})}, indent=2)
