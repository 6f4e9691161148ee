"""The exported keys are those of Axolotl's configuration, and its schema accepts them."""

from importlib import import_module
from typing import Any

import pytest
import yaml

from autofit.core.answer import Answer
from autofit.core.loading import Loading, LoadingTrial
from autofit.core.plan import KnobValue
from autofit.exporters.axolotl import Axolotl
from autofit.exporters.base import Export
from tests.conformance.test_exporters import OWN, answer, with_blocks

FIELDS = frozenset(
    {
        "micro_batch_size", "gradient_accumulation_steps", "bf16", "fp16", "tf32", "gradient_checkpointing",
        "gradient_checkpointing_kwargs", "torch_compile", "torch_compile_mode", "optimizer", "attn_implementation",
        "group_by_length", "pad_to_multiple_of", "pad_to_sequence_len", "dataloader_num_workers",
        "dataloader_pin_memory", "dataloader_prefetch_factor", "max_grad_norm", "ddp", "ddp_find_unused_parameters",
        "fsdp_version", "fsdp_config", "accelerator_config",
    }
)  # fmt: skip
"""Fields of `AxolotlInputConfig` that matter here, read from `axolotl/utils/schemas/` of the wheels 0.17.0, 0.18.0 and
0.19.0, which all have them."""
MODES = {"default", "reduce-overhead", "max-autotune"}
"""Values of `torch_compile_mode` in the same files."""

Values = dict[str, KnobValue]
WHOLE: Values = {"checkpointed_blocks": 4}
PLANS: dict[str, Values] = {
    "plain": {},
    "accumulated in tf32": {"micro_batch_size": 2, "accumulation_steps": 8, "precision": "tf32"},
    "checkpointed": WHOLE,
    "compiled": {"compile": "default"},
    "compiled to graphs": {"compile": "reduce-overhead"},
    "not compiled": {"compile": "off"},
    "fused": {"optimizer_implementation": "fused"},
    "sdpa": {"attention": "sdpa"},
    "grouped": {"length_grouping": True},
    "replicated": {"layout": "replicated"},
    "sharded": {"layout": "full", "reshard_after_forward": False, "accumulation_steps": 2},
    "whole gradients": {"layout": "full", "accumulation_steps": 2, "sync_each_batch": False},
}


def found(values: Values, device: str = "cuda", settings: dict[str, str] | None = None) -> Answer:
    made = with_blocks(answer(OWN.replace(**values), settings=settings))
    environment = made.environment.model_copy(update={"device_type": device})
    return made.model_copy(update={"environment": environment})


def exported(values: Values, device: str = "cuda", settings: dict[str, str] | None = None) -> Export:
    return Axolotl().export(found(values, device, settings))


def keys_of(export: Export) -> dict[str, Any]:
    read = yaml.safe_load(export.text)
    assert isinstance(read, dict)
    return read


@pytest.mark.parametrize("plan", PLANS)
def test_each_key_is_a_field_of_the_schema(plan: str) -> None:
    export = exported(PLANS[plan], settings={"max_grad_norm": "0.5"})
    keys = keys_of(export)
    assert keys.keys() <= FIELDS
    assert keys["max_grad_norm"] == 0.5
    assert keys.get("torch_compile_mode", "default") in MODES
    assert export.unmapped == ()
    assert "of one device" in export.text


def test_the_defaults_that_would_choose_another_precision_are_switched_off() -> None:
    for precision, tf32 in (("fp32", False), ("tf32", True)):
        keys = keys_of(exported({"precision": precision}))
        assert (keys["bf16"], keys["fp16"], keys["tf32"]) == (False, False, tf32)


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("precision", "bf16"),
        ("precision", "fp16"),
        ("checkpointed_blocks", 2),
        ("compile", "blocks"),
        ("compile", "max-autotune-no-cudagraphs"),
        ("optimizer_implementation", "for-loop"),
        ("activation_offload", True),
        ("optimizer_in_backward", True),
        ("layout", "optimizer"),
        ("gradient_as_bucket_view", True),
    ],
)
def test_what_axolotl_does_in_another_way_is_listed(knob: str, value: KnobValue) -> None:
    assert exported({knob: value}).unmapped == (knob,)


@pytest.mark.parametrize("looks", [True, False])
def test_its_trainer_looks_for_unused_parameters_where_a_plan_does(looks: bool) -> None:
    export = exported({"layout": "replicated", "find_unused_parameters": looks})
    assert f"ddp_find_unused_parameters: {str(looks).lower()}" in export.text


@pytest.mark.parametrize(
    ("device", "value", "name"),
    [
        ("cuda", "fused", "adamw_torch_fused"),
        ("cuda", "foreach", "adamw_torch"),
        ("cpu", "for-loop", "adamw_torch"),
        ("cpu", "foreach", None),
    ],
)
def test_the_name_of_adamw_selects_its_implementation(device: str, value: str, name: str | None) -> None:
    export = exported({"optimizer_implementation": value}, device)
    assert keys_of(export).get("optimizer") == name
    assert export.unmapped == (() if name else ("optimizer_implementation",))


def test_another_optimizer_is_not_replaced_by_adamw() -> None:
    export = exported({"optimizer_implementation": "fused"}, settings={"optimizer": "SGD"})
    assert "optimizer" not in keys_of(export)
    assert export.unmapped == ("optimizer_implementation",)


@pytest.mark.parametrize(("pin", "pinned"), [(None, {}), (True, {"dataloader_pin_memory": True})])
def test_workers_that_were_chosen_are_in_the_file(pin: bool | None, pinned: dict[str, bool]) -> None:
    loading = Loading(
        needed_per_s=10.0, trials=(LoadingTrial(workers=3),), workers=3, prefetch_factor=4, pin_memory=pin
    )
    made = found({})
    proof = made.proof.model_copy(update={"loading": loading})
    keys = keys_of(Axolotl().export(made.model_copy(update={"proof": proof})))
    chosen = {key: value for key, value in keys.items() if key.startswith("dataloader_")}
    assert chosen == {"dataloader_num_workers": 3, "dataloader_prefetch_factor": 4, **pinned}


CONFIG = {
    "base_model": "model",
    "datasets": [{"path": "data", "type": "alpaca"}],
    "learning_rate": 1e-3,
    "bf16": "auto",
    "optimizer": "adamw_torch_fused",
}
"""A user's configuration, in which the keys are replaced."""


@pytest.mark.parametrize("plan", PLANS)
def test_the_installed_schema_accepts_the_keys(plan: str) -> None:
    pytest.importorskip("axolotl", reason="axolotl is not installed")
    schema = import_module("axolotl.utils.schemas.config").AxolotlInputConfig
    keys = keys_of(exported(PLANS[plan]))
    config = schema(**{**CONFIG, **keys})
    assert keys.keys() <= schema.model_fields.keys()
    assert {key: getattr(config, key) for key in keys} == keys
