"""The exported keys are those of torchtune's recipes, and its parser merges them into a recipe's configuration."""

import re
import sys
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from autofit.core.plan import KnobValue
from autofit.exporters.base import Export
from autofit.exporters.torchtune import Torchtune
from tests.conformance.test_exporters import EVIL, OWN, recommendation

COMMON = frozenset(
    {
        "batch_size", "gradient_accumulation_steps", "dtype", "compile", "enable_activation_checkpointing",
        "enable_activation_offloading", "optimizer_in_bwd", "optimizer", "clip_grad_norm",
    }
)  # fmt: skip
FIELDS = {"0.4.0": COMMON, "0.5.0": COMMON, "0.6.1": COMMON}
"""Keys that matter here, read from the recipes in `recipes/configs/` of each version's wheel: all 110, 131 and 139 of
them have the first five, most have `enable_activation_offloading`, and those of full fine-tuning `optimizer_in_bwd`.
The recipes for fine-tuning of each version read `clip_grad_norm`, whether the configuration has it or not."""

Values = dict[str, KnobValue]
WHOLE: Values = {"checkpointed_blocks": 4, "checkpoint_order": "0-3"}
PLANS: dict[str, Values] = {
    "plain": {},
    "accumulated": {"micro_batch_size": 2, "accumulation_steps": 8},
    "checkpointed": WHOLE,
    "offloaded": {**WHOLE, "activation_offload": True},
    "compiled": {"compile": "blocks"},
    "not compiled": {"compile": "off"},
    "in backward": {"optimizer_in_backward": True},
    "fused": {"optimizer_implementation": "fused"},
    "foreach": {"optimizer_implementation": "foreach"},
}


def exported(values: Values, version: str | None = None, settings: dict[str, str] | None = None) -> Export:
    return Torchtune().export(recommendation(OWN.replace(**values), settings=settings), version)


def keys_of(export: Export) -> dict[str, Any]:
    read = yaml.safe_load(export.text)
    assert isinstance(read, dict)
    return read


def overrides_of(export: Export) -> list[str]:
    """Returns the words of the command line in the file."""
    found = re.search(r"^# Use: tune run RECIPE --config CONFIG (.*)$", export.text, re.MULTILINE)
    assert found is not None
    return found[1].split()


@pytest.mark.parametrize("version", FIELDS)
@pytest.mark.parametrize("plan", PLANS)
def test_each_key_is_one_of_the_recipes(plan: str, version: str) -> None:
    export = exported(PLANS[plan], version)
    assert export.warnings == ()
    assert keys_of(export).keys() <= FIELDS[version]
    assert (export.unmapped, dict(export.by_hand)) == ((), {})
    assert "of one device" in export.text


@pytest.mark.parametrize("version", FIELDS)
def test_clipping_is_a_key_that_some_recipes_ignore(version: str) -> None:
    export = exported({}, version, {"max_grad_norm": "0.5"})
    assert keys_of(export)["clip_grad_norm"] == 0.5
    assert "clip_grad_norm=0.5" in overrides_of(export)
    assert ["PPO" in text for text in export.warnings] == [True]


def test_the_command_line_says_the_same_as_the_file() -> None:
    export = exported({**WHOLE, "optimizer_implementation": "fused"})
    merged: dict[str, Any] = {}
    for word in overrides_of(export):
        path, _, value = word.partition("=")
        *parents, key = path.split(".")
        section = merged
        for parent in parents:
            section = section.setdefault(parent, {})
        section[key] = yaml.safe_load(value)
    assert merged == keys_of(export)


@pytest.mark.parametrize("version", FIELDS)
@pytest.mark.parametrize(("shifted", "said"), [("", []), ("[..., 1:]", [True])])
def test_the_first_label_is_counted_too(shifted: str, said: list[bool], version: str) -> None:
    """The recipes of each version's wheel count the labels of a batch, and then shift them for the loss."""
    export = exported(PLANS["accumulated"], version, {"weighing": f"batch['labels']{shifted} != -100"})
    assert ["with the first of each sample" in text for text in export.warnings] == said


def test_weights_stay_in_float32() -> None:
    assert keys_of(exported({"precision": "fp32"}))["dtype"] == "fp32"
    for precision in ("bf16", "fp16"):
        export = exported({"precision": precision})
        assert export.unmapped == ("precision",)
        assert "dtype" not in keys_of(export)
    assert exported({"precision": "tf32"}).by_hand["precision"].startswith("dtype: fp32, and run the recipe with")


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("bf16_parameters", True),
        ("checkpointed_blocks", 2),
        ("compile", "default"),
        ("activation_offload", True),
        ("linear_cross_entropy", "chunked"),
        ("length_grouping", True),
    ],
)
def test_what_torchtune_does_in_another_way_is_listed(knob: str, value: KnobValue) -> None:
    assert exported({knob: value}).unmapped == (knob,)


@pytest.mark.parametrize("name", ["Adagrad", "Adam", "AdamW", "SGD"])
@pytest.mark.parametrize("value", ["for-loop", "foreach", "fused"])
def test_the_optimizer_takes_the_flags(name: str, value: str) -> None:
    section = keys_of(exported({"optimizer_implementation": value}, settings={"optimizer": name}))["optimizer"]
    assert section.pop("_component_") == f"torch.optim.{name}"
    made = getattr(torch.optim, name)(nn.Linear(2, 2).parameters(), lr=0.1, **section)
    assert (made.defaults["foreach"], made.defaults["fused"]) == (value == "foreach", value == "fused")


@pytest.mark.parametrize("name", ["RMSprop", EVIL])
def test_an_optimizer_without_these_flags_is_left_alone(name: str) -> None:
    export = exported({"optimizer_implementation": "foreach"}, settings={"optimizer": name})
    assert "optimizer" not in keys_of(export)
    assert export.unmapped == ("optimizer_implementation",)


def test_8_bit_states_are_those_of_adamw_only() -> None:
    export = exported({"optimizer_states": "torchao-8bit"}, settings={"optimizer": "AdamW"})
    assert "torchao.optim.AdamW8bit" in export.by_hand["optimizer_states"]
    export = exported({"optimizer_states": "torchao-8bit"}, settings={"optimizer": "Adam"})
    assert export.unmapped == ("optimizer_states",)


RECIPE = {
    "batch_size": 4,
    "gradient_accumulation_steps": 1,
    "optimizer": {"_component_": "bitsandbytes.optim.PagedAdamW8bit", "lr": 2e-5},
    "optimizer_in_bwd": True,
    "compile": False,
    "enable_activation_checkpointing": False,
    "enable_activation_offloading": False,
    "dtype": "bf16",
}
"""The keys that matter here of `recipes/configs/llama3_2/1B_full_single_device.yaml` of torchtune 0.6.1."""


@pytest.mark.parametrize("plan", PLANS)
def test_the_installed_parser_merges_the_overrides(plan: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torchtune", reason="torchtune is not installed")
    export, path = exported(PLANS[plan]), tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    monkeypatch.setattr(sys, "argv", ["tune", "--config", str(path), *overrides_of(export)])
    parser = import_module("torchtune.config._parse").TuneRecipeArgumentParser()
    given: tuple[Namespace, list[str]] = parser.parse_known_args()
    config = import_module("torchtune.config._utils")._merge_yaml_and_cli_args(*given)
    keys = keys_of(export)
    optimizer = {**RECIPE["optimizer"], **keys.pop("optimizer", {})}  # type: ignore[dict-item]  # a section
    assert config == {**RECIPE, **keys, "optimizer": optimizer}
