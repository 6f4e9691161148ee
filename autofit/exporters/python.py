"""Exporter to plain PyTorch: maps a plan to constants and parts of the training loop."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

import jinja2

from autofit.core.answer import Answer
from autofit.core.block_order import read_order
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, Plan
from autofit.exporters.base import Exporter, Settings, has_fixed_batches
from autofit.exporters.plan_facts import (
    CHECKPOINT_ORDER,
    CHECKPOINTED_BLOCKS,
    chosen_loading,
)
from autofit.exporters.target_version import TargetVersion
from autofit.workloads.micro_batch_weights import COLLATED, SAMPLES, Weighing

_TABLES: Mapping[str, Mapping[KnobValue, Settings]] = {
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
        "default": {"COMPILE_MODE": '"default"'},
        "max-autotune-no-cudagraphs": {"COMPILE_MODE": '"max-autotune-no-cudagraphs"'},
        "reduce-overhead": {"COMPILE_MODE": '"reduce-overhead"'},
    },
    "length_grouping": {False: {}, True: {"grouped": True}},
    "cudnn_benchmark": {False: {}, True: {"benchmark": True}},
    "recomputed_operators": {"all": {}},
}
"""Settings by knob and value: upper-case keys are constants at the top of the file, lower-case keys are parts of the
loop."""
_PARTS = {
    "MICRO_BATCH_SIZE": "micro",
    "ACCUMULATION_STEPS": "accumulate",
    "AUTOCAST_DTYPE": "autocast",
    "CHECKPOINTED_BLOCKS": "blocks",
    "CHECKPOINT_ORDER": "order",
    "COMPILE_MODE": "compiled",
    "OPTIMIZER_FLAGS": "flags",
    "MAX_GRAD_NORM": "clip",
}
"""Parts of the loop that belong to a constant. A lower-case setting is a part itself."""
_OF_SETTINGS = (*_PARTS.values(), "tf32", "scaler", "channels_last", "benchmark", "grouped")
_OF_WEIGHTS = ("summed", "weighted", "by_samples", "shapes")
_ONLY_TRAINING = ("flags", "blocks", "grouped", "accumulate")
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


def _count(key: str, default: int) -> Callable[[KnobValue], Settings | None]:
    """Returns a mapping for integers of at least `default`. The value `default` needs no constant in the loop."""

    def settings_of(value: KnobValue) -> Settings | None:
        if type(value) is not int or value < default:
            return None
        return {key: value} if value > default else {}

    return settings_of


def _order(value: KnobValue) -> Settings | None:
    """Returns the numbers of blocks in a text such as "0-3,7,4-6"; None if it names none."""
    places = read_order(str(value))
    return {"CHECKPOINT_ORDER": places} if places else None


_SETTINGS: Mapping[str, Callable[[KnobValue], Settings | None]] = {
    MICRO_BATCH_SIZE: _count("MICRO_BATCH_SIZE", 0),
    ACCUMULATION_STEPS: _count("ACCUMULATION_STEPS", 1),
    CHECKPOINTED_BLOCKS: _count("CHECKPOINTED_BLOCKS", 0),
    CHECKPOINT_ORDER: _order,
    **{knob: table.get for knob, table in _TABLES.items()},
}
"""Settings of each knob by its value."""


class Python(Exporter):
    """A module with a function for training, or for inference if the plan was tuned for it."""

    name: ClassVar[str] = "python"
    filename: ClassVar[str] = "train_loop.py"
    infers: ClassVar[bool] = True
    clipping_key: ClassVar[str] = "MAX_GRAD_NORM"

    def fields(self, plan: Plan, answer: Answer, version: TargetVersion) -> Mapping[str, Settings]:
        """Returns constants and parts of the loop for each knob."""
        found = {knob: _SETTINGS[knob](value) for knob, value in plan.values.items() if knob in _SETTINGS}
        if type(answer.baseline.plan.values.get(CHECKPOINTED_BLOCKS, 0)) is not int:
            found.pop(CHECKPOINTED_BLOCKS, None)  # the loop does not switch the checkpointing of the user's model off
        if found.get(CHECKPOINT_ORDER, {}) is None:
            found.pop(CHECKPOINTED_BLOCKS, None)  # the first blocks would be other ones
        elif CHECKPOINT_ORDER in found and not found.get(CHECKPOINTED_BLOCKS):
            found[CHECKPOINT_ORDER] = {}
        return {knob: settings for knob, settings in found.items() if settings is not None}

    def render(self, settings: Settings, answer: Answer, version: TargetVersion) -> str:
        """Returns the module's text."""
        environment = answer.environment.settings
        infers = environment.get("mode") == "inference"
        parts, weighing = {_PARTS.get(key, key) for key in settings}, Weighing.of(environment)
        parts = parts - {*_ONLY_TRAINING} if infers else parts | _weights(parts, weighing, environment)
        name = environment.get("optimizer", "")
        jinja = jinja2.Environment(
            trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined, autoescape=False
        )
        return jinja.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
            {part: part in parts for part in (*_OF_SETTINGS, *_OF_WEIGHTS)},
            constants={key: value for key, value in settings.items() if key.isupper()},
            switches=[line for part, lines in _SWITCHES.items() if part in parts for line in lines],
            infers=infers,
            optimizer=name if name.isidentifier() else "AdamW",
            workers=_workers(answer),
            fixed_batches=has_fixed_batches(answer),
            counted_entries=str(weighing),
        )


def _workers(answer: Answer) -> str:
    """Returns the arguments of the loader's worker processes, if they were chosen."""
    loading = chosen_loading(answer)
    if loading is None:
        return ""
    pinned = ", pin_memory=True" if loading.pin_memory else ""
    return f", num_workers={loading.workers}{pinned}"


def _weights(parts: set[str], weighing: Weighing | None, environment: Mapping[str, str]) -> set[str]:
    """Returns the parts that add up accumulated losses, weighted by useful entries or by samples if they are means."""
    if "accumulate" not in parts:
        return set()
    if weighing is not None:
        return {"summed"} if weighing.summed else {"weighted"}
    return {"by_samples"} if environment.get(SAMPLES) == COLLATED else {"by_samples", "shapes"}
