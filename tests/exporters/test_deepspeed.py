"""The exported configuration has DeepSpeed's keys, and DeepSpeed reads the plan's batch and precision from it."""

import json
from importlib import import_module
from typing import Any

import pytest
import torch

from autofit.core.plan import KnobValue
from autofit.exporters.base import Export
from autofit.exporters.deepspeed import DeepSpeed
from tests.conformance.test_exporters import EVIL, OWN, answer

COMMON = {
    "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping", "zero_optimization",
    "zero_allow_untested_optimizer",
}  # fmt: skip
FIELDS = {
    "0.18.0": COMMON | {"torch_autocast"},
    "0.19.8": COMMON | {"torch_autocast"},
}
"""Keys of the configuration that matter here, read from `deepspeed/runtime/constants.py` of each version's sdist."""
BELOW = {"zero_optimization": {"stage"}, "torch_autocast": {"enabled", "dtype"}}
"""Keys of the sections, from `deepspeed/runtime/zero/config.py` and `deepspeed/runtime/constants.py`."""

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
Values = dict[str, KnobValue]
BATCH: Values = {"micro_batch_size": 4, "accumulation_steps": 2}


def exported(values: Values, version: str | None = None, settings: dict[str, str] | None = None) -> Export:
    return DeepSpeed().export(answer(OWN.replace(**values), settings=settings), version)


def read(export: Export) -> dict[str, Any]:
    document = json.loads(export.text)
    assert isinstance(document, dict)
    return document


@pytest.mark.parametrize("version", FIELDS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_key_is_one_of_that_version(precision: str, version: str) -> None:
    export = exported({"precision": precision, **BATCH}, version)
    assert export.warnings == ()
    document = read(export)
    assert document.keys() <= FIELDS[version]
    for key, section in document.items():
        assert not isinstance(section, dict) or section.keys() <= BELOW[key]


def test_only_the_batch_of_one_device_is_given() -> None:
    document = read(exported(BATCH))
    assert document["train_micro_batch_size_per_gpu"] == 4
    assert document["gradient_accumulation_steps"] == 2
    assert "train_batch_size" not in document


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_weights_stay_in_float32_under_autocast(precision: str) -> None:
    section = read(exported({"precision": precision}, "0.18.0"))["torch_autocast"]
    assert section == {"enabled": True, "dtype": {"bf16": "bfloat16", "fp16": "float16"}[precision]}


@pytest.mark.parametrize(
    ("norm", "clipping"), [({}, 0.0), ({"max_grad_norm": "0.5"}, 0.5), ({"max_grad_norm": "x"}, 0)]
)
def test_gradients_are_clipped_as_in_the_measurement(norm: dict[str, str], clipping: float) -> None:
    assert read(exported({}, settings=norm))["gradient_clipping"] == clipping


@pytest.mark.parametrize(
    ("layout", "stage", "words"),
    [("replicated", 0, "buckets of its own"), ("optimizer", 1, "a flat copy"), ("full", 3, "by other means")],
)
def test_a_layout_is_a_stage_of_zero_whose_figures_are_others(layout: str, stage: int, words: str) -> None:
    export = exported({"layout": layout, "precision": "bf16", **BATCH})
    assert read(export)["zero_optimization"] == {"stage": stage}
    assert "train_batch_size" not in export.text
    (warning,) = export.warnings
    assert words in warning
    assert ("in 16 bits" in warning) is (stage > 0)
    keys = read(exported({"layout": layout}, settings={"optimizer": "SGD"})).keys()
    assert ("zero_allow_untested_optimizer" in keys) is (stage > 0)
    assert keys <= FIELDS["0.19.8"]


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("gradient_as_bucket_view", True),
        ("reshard_after_forward", False),
        ("gather_precision", "bf16"),
        ("sync_each_batch", False),
        ("layout", "hybrid"),  # hpZ and MiCS divide in other ways
    ],
)
def test_what_zero_has_no_key_for_is_listed(knob: str, value: KnobValue) -> None:
    layout = "replicated" if knob.startswith("gradient") else "full"
    assert exported({"layout": layout, knob: value}, settings={"ranks": "4", "rows": "2"}).unmapped == (knob,)


LINES: list[tuple[str, KnobValue, str]] = [
    ("precision", "tf32", "set_float32_matmul_precision"),
    ("compile", "default", "engine.compile()"),
    ("compile", "reduce-overhead", '"reduce-overhead"'),
    ("compile", "blocks", "each repeated block"),
    ("memory_format", "channels_last", "torch.channels_last"),
    ("optimizer_implementation", "fused", "torch.optim.SGD(..., foreach=False, fused=True)"),
    ("checkpointed_blocks", 2, "the first 2 blocks"),
    ("attention", "sdpa", 'attn_implementation="sdpa"'),
]


@pytest.mark.parametrize(("knob", "value", "words"), LINES)
def test_what_the_users_code_must_do_is_said(knob: str, value: KnobValue, words: str) -> None:
    export = exported({knob: value}, settings={"optimizer": "SGD"})
    assert export.unmapped == ()
    assert words in export.by_hand[knob]


def test_the_blocks_are_named() -> None:
    export = exported({"checkpointed_blocks": 3})
    assert "for the first 3 blocks" in export.by_hand["checkpointed_blocks"]
    own = OWN.replace(checkpointed_blocks="default")
    off = DeepSpeed().export(answer(OWN, own))
    assert off.by_hand == {"checkpointed_blocks": "switch the model's activation checkpointing off"}


def test_what_only_autofit_does_is_listed() -> None:
    knobs: Values = {
        "activation_offload": True,
        "linear_cross_entropy": "chunked",
        "optimizer_in_backward": True,
    }
    assert exported(knobs).unmapped == tuple(knobs)


def test_no_text_of_a_foreign_plan_is_in_a_line() -> None:
    export = exported({"optimizer_implementation": "fused", "checkpointed_blocks": EVIL}, settings={"optimizer": EVIL})
    assert export.by_hand == {"optimizer_implementation": "torch.optim.AdamW(..., foreach=False, fused=True)"}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_installed_library_reads_the_plan(precision: str) -> None:
    pytest.importorskip("deepspeed", minversion="0.19", reason="deepspeed 0.19 is not installed")
    made = import_module("deepspeed.runtime.config").DeepSpeedConfig
    export = exported({"precision": precision, "micro_batch_size": 4, "accumulation_steps": 8})
    config = made(read(export))
    assert (config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps) == (4, 8)
    assert config.train_batch_size == 32
    assert config.gradient_clipping == 0
    assert config.zero_optimization_stage == 0
    assert not config.bfloat16_config.enabled
    assert not config.float16_config.enabled
    assert config.torch_autocast_enabled is (precision in ("bf16", "fp16"))
    assert config.torch_autocast_dtype == {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
