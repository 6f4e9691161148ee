"""The exported overrides have torchtitan's names, and its own command line reads the plan from them."""

import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version as installed_version
from typing import Any

import pytest

from autofit.core.plan import KnobValue
from autofit.exporters.base import Export
from autofit.exporters.torchtitan import TF32, Torchtitan
from tests.conformance.test_exporters import OWN, answer, with_blocks

COMMON = frozenset(
    {
        "training.local_batch_size", "training.global_batch_size", "training.mixed_precision_param",
        "training.mixed_precision_reduce",
        "training.max_norm", "optimizer.implementation", "parallelism.data_parallel_replicate_degree",
        "parallelism.data_parallel_shard_degree", "parallelism.fsdp_reshard_after_forward",
        "parallelism.tensor_parallel_degree",
    }
)  # fmt: skip
BEFORE = COMMON | {"activation_checkpoint.mode", "optimizer.early_step_in_backward"}
NEWER = {"training.dtype", "compile.enable", "compile.components", "activation_checkpoint.memory_budget"}
FIELDS = {
    "0.2.2": BEFORE | NEWER,
    "0.3.0": COMMON | NEWER,
}
"""Fields that matter here, read from the data classes of each version's wheel:
`torchtitan/config/job_config.py` (0.2), and in 0.3 `torchtitan/config/configs.py`,
`torchtitan/distributed/activation_checkpoint.py` and `torchtitan/components/optimizer/optimizer.py`."""
SUBCOMMANDS = {
    "activation_checkpoint:full",
    "activation_checkpoint:none",
    "activation_checkpoint:memory_budget",
}
"""Subcommands of 0.3.0, from `ActivationCheckpointingConfig` of its `torchtitan/distributed/activation_checkpoint.py`.
tyro reads "_" as "-"."""

Values = dict[str, KnobValue]
WHOLE: Values = {"checkpointed_blocks": 4}
PLANS: dict[str, Values] = {
    "plain": {},
    "accumulated": {"micro_batch_size": 2, "accumulation_steps": 8},
    "bf16": {"precision": "bf16"},
    "tf32": {"precision": "tf32"},
    "checkpointed": WHOLE,
    "compiled": {"compile": "blocks"},
    "not compiled": {"compile": "off"},
    "for-loop": {"optimizer_implementation": "for-loop"},
    "in backward": {"optimizer_in_backward": True},
    "replicated": {"layout": "replicated"},
    "sharded": {"layout": "full", "reshard_after_forward": False},
    "tensor": {"layout": "tensor"},
    "gathered": {"layout": "full", "gather_precision": "bf16"},
}
RANKS = 4


def exported(values: Values, version: str | None = None, settings: dict[str, str] | None = None) -> Export:
    return Torchtitan().export(with_blocks(answer(OWN.replace(**values), settings=settings)), version)


def words_of(export: Export) -> list[str]:
    """Returns the words that bash passes on."""
    script = f"set -eu\nAUTOFIT_RANKS={RANKS}\n{export.text}\nprintf '%s\\n' \"${{AUTOFIT_OVERRIDES[@]}}\"\n"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True).stdout.splitlines()


def names_of(words: list[str]) -> set[str]:
    """Returns the names of the overridden fields, without those of subcommands."""
    return {re.sub(r"\.no_", ".", word.removeprefix("--")) for word in words if word.startswith("--")}


@pytest.mark.parametrize("version", FIELDS)
@pytest.mark.parametrize("plan", PLANS)
def test_each_override_is_a_field_of_that_version(plan: str, version: str) -> None:
    export = exported(PLANS[plan], version, {"max_grad_norm": "0.5"})
    otherwise = {
        "replicated": "0.2 averages gradients in buckets of 100 MB",
        "tensor": "torchtitan divides its own models",
    }
    assert [text for text in export.warnings if otherwise.get(plan, "") not in text] == []
    assert len(export.warnings) == (plan in otherwise)
    words = words_of(export)
    assert words[words.index("--training.max_norm") + 1] == "0.5"
    assert names_of(words) <= FIELDS[version]
    subcommands = {word for word in words if word.startswith("activation_checkpoint:")}
    assert subcommands <= (SUBCOMMANDS if version == "0.3.0" else set())
    lacking = {("in backward", "0.3.0"): ("optimizer_in_backward",)}
    assert export.unmapped == lacking.get((plan, version), ())


def test_the_format_of_gathered_weights_is_the_one_that_the_plan_computes_in() -> None:
    for values in ({"precision": "fp32"}, {"precision": "bf16"}):
        export = exported({"layout": "full", "gather_precision": "bf16", **values})
        words = words_of(export)
        for name, dtype in (("param", "bfloat16"), ("reduce", "float32")):
            assert words[words.index(f"--training.mixed_precision_{name}") + 1] == dtype
        assert ["without autocast" in text for text in export.warnings] == [True] * (values["precision"] == "bf16")


def test_nothing_follows_a_subcommand() -> None:
    assert words_of(exported(WHOLE, "0.3"))[-1] == "activation_checkpoint:full"


def test_the_global_batch_is_that_of_the_plan() -> None:
    words = words_of(exported({"micro_batch_size": 2, "accumulation_steps": 8}))
    assert words[:4] == ["--training.local_batch_size", "2", "--training.global_batch_size", "16"]


@pytest.mark.parametrize(
    ("values", "degrees", "policy"),
    [
        ({"layout": "replicated"}, ["4", "1"], None),
        ({"layout": "full"}, ["1", "4"], None),
        ({"layout": "tensor"}, ["1", "1"], None),
        ({"layout": "full", "reshard_after_forward": True}, ["1", "4"], "default"),
        ({"layout": "full", "reshard_after_forward": False}, ["1", "4"], "never"),
    ],
)
def test_the_ranks_are_those_of_the_variable(values: Values, degrees: list[str], policy: str | None) -> None:
    export = exported({**values, "micro_batch_size": 2, "accumulation_steps": 8})
    words = words_of(export)
    assert words[words.index("--training.global_batch_size") + 1] == str(2 * 8 * RANKS)
    names = (f"--parallelism.data_parallel_{kind}_degree" for kind in ("replicate", "shard"))
    assert [words[words.index(name) + 1] for name in names] == degrees
    name = "--parallelism.tensor_parallel_degree"
    assert (words[words.index(name) + 1] if name in words else None) == ("4" if values["layout"] == "tensor" else None)
    name = "--parallelism.fsdp_reshard_after_forward"
    assert (words[words.index(name) + 1] if name in words else None) == policy
    unset = subprocess.run(["bash", "-c", export.text], capture_output=True, text=True, check=False, env={})
    assert "AUTOFIT_RANKS: is the number of ranks" in unset.stderr
    searched = exported({**values, "micro_batch_size": 2, "accumulation_steps": 8}, settings={"ranks": "3"})
    script = f"{searched.text}\necho $AUTOFIT_RANKS"
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env={}).stdout == "3\n"


def test_rows_of_ranks_are_two_degrees() -> None:
    values: Values = {"layout": "hybrid", "reshard_after_forward": False, "sync_each_batch": False}
    export = exported(values, settings={"ranks": "6", "rows": "2"})
    words = words_of(export)
    names = (f"--parallelism.data_parallel_{kind}_degree" for kind in ("replicate", "shard"))
    assert [words[words.index(name) + 1] for name in names] == ["2", "3"]
    assert names_of(words) <= FIELDS["0.3.0"]
    assert export.unmapped == ("sync_each_batch",)
    assert exported(values).unmapped == ("layout", "sync_each_batch")  # rows that are not known


def test_the_variable_for_tf32_switches_it_on_in_torch() -> None:
    text = exported({"precision": "tf32"}).text
    assert f"export {TF32}=1\n" in text
    code = "import torch; print(torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision)"
    script = f"{text}\n{shlex.quote(sys.executable)} -c {shlex.quote(code)}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["tf32", "tf32"]
    assert TF32 not in exported({"precision": "fp32"}).text


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("precision", "fp16"),
        ("checkpointed_blocks", 2),
        ("compile", "default"),
        ("activation_offload", True),
        ("length_grouping", True),
        ("layout", "optimizer"),
        ("gradient_as_bucket_view", True),
    ],
)
def test_what_torchtitan_does_in_another_way_is_listed(knob: str, value: KnobValue) -> None:
    assert exported({knob: value}).unmapped == (knob,)


def parsed(words: list[str]) -> Any:
    """Returns the configuration that the installed torchtitan makes of the overrides."""
    pytest.importorskip("torchtitan", reason="torchtitan is not installed")
    pytest.importorskip("triton", reason="torchtitan needs triton")
    installed = installed_version("torchtitan")
    manager, newest = import_module("torchtitan.config.manager").ConfigManager(), installed.startswith("0.3")
    return manager.parse_args([*(["--module", "llama3", "--config", "llama3_debugmodel"] if newest else []), *words])


def test_the_installed_library_reads_the_batch_and_the_precision() -> None:
    config = parsed(words_of(exported({"micro_batch_size": 2, "accumulation_steps": 8, "precision": "bf16"})))
    assert (config.training.local_batch_size, config.training.global_batch_size) == (2, 16)
    assert getattr(config.training, "dtype", "float32") == "float32"
    assert config.training.mixed_precision_param == "bfloat16"
    assert parsed(words_of(exported({}))).training.mixed_precision_param == "float32"


def test_the_installed_library_reads_what_is_compiled_and_recomputed() -> None:
    pytest.importorskip("torchtitan.config", reason="torchtitan 0.2 is not installed")
    compiled = parsed(words_of(exported({"compile": "blocks", "optimizer_implementation": "foreach"})))
    assert (compiled.compile.enable, compiled.compile.components) == (True, ["model"])
    assert compiled.optimizer.implementation == "foreach"
    none = parsed(words_of(exported({"compile": "off"})))
    assert none.compile.enable is False
    assert _kind(none) == "none"
    assert _kind(parsed(words_of(exported(WHOLE)))) == "full"


def _kind(config: Any) -> str:
    """Returns the kind of checkpointing, in words of 0.2."""
    chosen = config.activation_checkpoint
    if chosen is None:
        return "none"
    return str(getattr(chosen, "mode", "full" if "FullAC" in type(chosen).__qualname__ else "other"))


@pytest.mark.parametrize(
    ("weighing", "words"),
    [
        ("batch['labels'] != -100", ""),
        ("batch['labels'][..., 1:] != -100", ""),
        ("batch['labels'] != 0", "weights those of a step by their labels that are not -100."),
        ("batch['mask']", "weights those of a step by their labels that are not -100."),
        ("1", "a mean over the labels that are not -100:"),
    ],
)
def test_a_trainer_that_counts_labels_differs_where_the_plan_counts_something_else(weighing: str, words: str) -> None:
    several, one = (answer(OWN.replace(accumulation_steps=steps), settings={"weighing": weighing}) for steps in (2, 1))
    assert [words in text for text in Torchtitan().caveats(several)] == [True] * bool(words)
    assert Torchtitan().caveats(one) == ()
