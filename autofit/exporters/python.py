"""Exporter to plain PyTorch: maps a plan to constants and parts of the training loop."""

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import jinja2

from autofit.core.answer import Answer
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue
from autofit.exporters.base import Exporter, TargetVersion
from autofit.exporters.plan_facts import (
    CHECKPOINTED_BLOCKS,
    MODES,
    Settings,
    has_fixed_batches,
    optimizer_name,
    worker_arguments,
)
from autofit.workloads.micro_batch_weights import COLLATED, SAMPLES, Weighing

_LEAST = {MICRO_BATCH_SIZE: 0, ACCUMULATION_STEPS: 1, CHECKPOINTED_BLOCKS: 0}
"""Knobs that are whole numbers, each with its least value, which needs no constant in the loop."""
_PARTS = (
    "micro_batch_size", "accumulation_steps", "autocast_dtype", "checkpointed_blocks",
    "compile_mode", "optimizer_flags", "max_grad_norm", "tf32", "scaler", "channels_last", "benchmark", "grouped",
    "summed", "weighted", "by_samples", "shapes",
)  # fmt: skip
"""Parts of the loop. Those that belong to a constant have its name; the last four say how losses are added up."""
_ONLY_TRAINING = {"optimizer_flags", "checkpointed_blocks", "grouped", "accumulation_steps"}
_SWITCHES = {
    "tf32": (
        'torch.backends.cuda.matmul.fp32_precision = "tf32"',
        'torch.backends.cudnn.conv.fp32_precision = "tf32"',
        'torch.backends.cudnn.rnn.fp32_precision = "tf32"',
    ),
    "benchmark": ("torch.backends.cudnn.benchmark = True",),
    "channels_last": ("model.to(memory_format=torch.channels_last)",),
}
"""Lines of a part that training and inference share."""
_TEMPLATE = Path(__file__).with_name("train_loop.py.jinja")


class Python(Exporter):
    """A module with a function for training, or for inference if the plan was tuned for it.

    Of its settings, upper-case keys are constants at the top of the file, and lower-case keys are parts of the loop.
    """

    name: ClassVar[str] = "python"
    filename: ClassVar[str] = "train_loop.py"
    infers: ClassVar[bool] = True
    table: ClassVar[Mapping[str, Mapping[KnobValue, Settings]]] = {
        "precision": {
            "fp32": {},
            "tf32": {"tf32": True},
            "bf16": {"AUTOCAST_DTYPE": "torch.bfloat16"},
            "fp16": {"AUTOCAST_DTYPE": "torch.float16", "scaler": True},
        },
        "memory_format": {"default": {}, "channels_last": {"channels_last": True}},
        "optimizer_implementation": {
            "default": {},
            "for-loop": {"OPTIMIZER_FLAGS": {"foreach": False, "fused": False}},
            "foreach": {"OPTIMIZER_FLAGS": {"foreach": True, "fused": False}},
            "fused": {"OPTIMIZER_FLAGS": {"foreach": False, "fused": True}},
        },
        "compile": {
            "off": {},
            **{mode: {"COMPILE_MODE": f'"{mode}"'} for mode in MODES},
        },
        "length_grouping": {False: {}, True: {"grouped": True}},
        "cudnn_benchmark": {False: {}, True: {"benchmark": True}},
        "recomputed_operators": {"all": {}},
    }
    clipping_key: ClassVar[str] = "MAX_GRAD_NORM"

    def fields(self, answer: Answer, version: TargetVersion) -> Mapping[str, Settings]:
        """Returns constants and parts of the loop for each knob."""
        values, found = answer.plan.values, dict(super().fields(answer, version))
        for knob, least in _LEAST.items():
            value = values.get(knob)
            if type(value) is int and value >= least:
                found[knob] = {knob.upper(): value} if value > least else {}
        if type(answer.baseline.plan.values.get(CHECKPOINTED_BLOCKS, 0)) is not int:
            found.pop(CHECKPOINTED_BLOCKS, None)  # the loop does not switch the checkpointing of the user's model off
        return found

    def render(self, settings: Settings, answer: Answer) -> str:
        """Returns the module's text."""
        parts, infers = {key.lower() for key in settings}, answer.environment.is_inference
        weighing = Weighing.of(answer.environment.settings)
        if infers:
            parts -= _ONLY_TRAINING
        elif ACCUMULATION_STEPS in parts:  # losses are added up, weighted by useful entries or by samples if means
            if weighing is not None:
                parts.add("summed" if weighing.summed else "weighted")
            else:
                collated = answer.environment.settings.get(SAMPLES) == COLLATED
                parts |= {"by_samples"} if collated else {"by_samples", "shapes"}
        jinja = jinja2.Environment(
            trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined, autoescape=False
        )
        return jinja.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
            {part: part in parts for part in _PARTS},
            constants={key: value for key, value in settings.items() if key.isupper()},
            switches=[line for part, lines in _SWITCHES.items() if part in parts for line in lines],
            infers=infers,
            ranks=answer.environment.ranks,
            optimizer=optimizer_name(answer),
            workers="".join(f", {argument}" for argument in worker_arguments(answer)),
            fixed_batches=has_fixed_batches(answer),
            counted_entries=str(weighing),
        )
