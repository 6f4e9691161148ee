"""Exporter to plain PyTorch: maps a plan to constants and parts of the training loop."""

from collections.abc import Callable, Mapping
from typing import ClassVar

from autofit.core.block_order import read_order
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, KnobValue, Plan
from autofit.core.recommendation import Recommendation
from autofit.exporters.base import Exporter, Settings, has_fixed_batches
from autofit.exporters.plan_facts import (
    CHECKPOINT_ORDER,
    CHECKPOINTED_BLOCKS,
    chosen_loading,
    clipping_fields,
)
from autofit.exporters.python.templates import CONSTANTS, COUNTED, HELPERS, IMPORTS, PREDICT, TO_DEVICE, TRAIN, select
from autofit.exporters.target_version import TargetVersion
from autofit.workloads.micro_batch_weights import COLLATED, SAMPLES, Weighing

_PRECISIONS: dict[KnobValue, Settings] = {
    "fp32": {},
    "tf32": {"tf32": True},
    "bf16": {"AUTOCAST_DTYPE": "torch.bfloat16"},
    "fp16": {"AUTOCAST_DTYPE": "torch.float16", "scaler": True},
}
_MEMORY_FORMATS: dict[KnobValue, Settings] = {"default": {}, "channels_last": {"channels_last": True}}
_OPTIMIZERS: dict[KnobValue, Settings] = {
    "default": {},
    "for-loop": {"OPTIMIZER_FLAGS": {"foreach": False, "fused": False}},
    "foreach": {"OPTIMIZER_FLAGS": {"foreach": True, "fused": False}},
    "fused": {"OPTIMIZER_FLAGS": {"foreach": False, "fused": True}},
}
_COMPILED: dict[KnobValue, Settings] = {
    "off": {},
    **{mode: {"COMPILE_MODE": f'"{mode}"'} for mode in ("default", "max-autotune-no-cudagraphs", "reduce-overhead")},
}
_GROUPED: dict[KnobValue, Settings] = {False: {}, True: {"grouped": True}}
_BENCHMARKS: dict[KnobValue, Settings] = {False: {}, True: {"benchmark": True}}
_RECOMPUTED: dict[KnobValue, Settings] = {"all": {}}


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
    "precision": _PRECISIONS.get,
    CHECKPOINTED_BLOCKS: _count("CHECKPOINTED_BLOCKS", 0),
    CHECKPOINT_ORDER: _order,
    "recomputed_operators": _RECOMPUTED.get,
    "memory_format": _MEMORY_FORMATS.get,
    "optimizer_implementation": _OPTIMIZERS.get,
    "compile": _COMPILED.get,
    "length_grouping": _GROUPED.get,
    "cudnn_benchmark": _BENCHMARKS.get,
}
"""Settings of each knob: upper-case keys are constants at the top of the file, lower-case keys are parts of the
loop."""
_LOADER = "torch.utils.data.DataLoader(dataset, batch_size=MICRO_BATCH_SIZE, shuffle=True)"
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
"""Parts of the templates that belong to a constant. A lower-case setting is a part itself."""


class Python(Exporter):
    """A module with a function `train`, or `predict` for a plan that was tuned for inference."""

    name: ClassVar[str] = "python"
    filename: ClassVar[str] = "train_loop.py"
    infers: ClassVar[bool] = True

    def fields(self, plan: Plan, recommendation: Recommendation, version: TargetVersion) -> Mapping[str, Settings]:
        """Returns constants and parts of the loop for each knob."""
        found = {knob: _SETTINGS[knob](value) for knob, value in plan.values.items() if knob in _SETTINGS}
        if type(recommendation.baseline.plan.values.get(CHECKPOINTED_BLOCKS, 0)) is not int:
            found.pop(CHECKPOINTED_BLOCKS, None)  # the loop does not switch the checkpointing of the user's model off
        if found.get(CHECKPOINT_ORDER, {}) is None:
            found.pop(CHECKPOINTED_BLOCKS, None)  # the first blocks would be other ones
        elif CHECKPOINT_ORDER in found and not found.get(CHECKPOINTED_BLOCKS):
            found[CHECKPOINT_ORDER] = {}
        return {knob: settings for knob, settings in found.items() if settings is not None}

    def clipping(self, recommendation: Recommendation) -> Settings:
        """Returns the constant of clipping."""
        return clipping_fields(recommendation, "MAX_GRAD_NORM")

    def render(self, settings: Settings, recommendation: Recommendation, version: TargetVersion) -> str:
        """Returns the module's text."""
        environment = recommendation.environment.settings
        predicts = environment.get("mode") == "inference"
        weighing = Weighing.of(environment)
        parts = frozenset(_PARTS.get(key, key) for key in settings)
        parts = parts - HELPERS.keys() if predicts else parts | _weights(parts, weighing, environment)
        constants = "".join(f"{key} = {value}\n" for key, value in settings.items() if key.isupper())
        loop = PREDICT if predicts else TRAIN
        name = environment.get("optimizer", "")
        helpers = [text for part, text in HELPERS.items() if part in parts]
        text = "".join([IMPORTS, CONSTANTS, loop, *helpers, TO_DEVICE])
        if has_fixed_batches(recommendation):
            text = text.replace(_LOADER, "your own, whose batches stay as they are")
        text = text.replace("AdamW", name if name.isidentifier() else "AdamW")
        for batches in ("batch_size=MICRO_BATCH_SIZE", "batch_sampler=ByLength(lengths)"):
            text = text.replace(batches, f"{batches}{_workers(recommendation)}")
        return select(text, parts).replace(CONSTANTS, constants).replace(COUNTED, str(weighing))


def _workers(recommendation: Recommendation) -> str:
    """Returns the arguments of the loader's worker processes, if they were chosen."""
    loading = chosen_loading(recommendation)
    if loading is None:
        return ""
    pinned = ", pin_memory=True" if loading.pin_memory else ""
    return f", num_workers={loading.workers}{pinned}"


def _weights(parts: frozenset[str], weighing: Weighing | None, environment: Mapping[str, str]) -> set[str]:
    """Returns the parts that add up accumulated losses, weighted by useful entries or by samples if they are means."""
    if "accumulate" not in parts:
        return set()
    if weighing is not None:
        return {"summed"} if weighing.summed else {"weighted"}
    return {"by_samples"} if environment.get(SAMPLES) == COLLATED else {"by_samples", "shapes"}
