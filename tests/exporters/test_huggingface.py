"""The exported arguments are those of `TrainingArguments` in each version, and the real Trainer follows them."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments

from autofit.core.answer import Answer
from autofit.core.loading import Loading, LoadingTrial
from autofit.core.plan import KnobValue, Plan
from autofit.exporters.base import Export
from autofit.exporters.huggingface import HuggingFace
from tests.conformance.test_exporters import OWN, answer, with_blocks

COMMON = frozenset(
    {
        "per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps", "bf16", "fp16",
        "tf32", "torch_compile", "torch_compile_backend", "torch_compile_mode", "optim", "dataloader_num_workers",
        "dataloader_pin_memory", "dataloader_persistent_workers", "dataloader_prefetch_factor", "max_grad_norm",
        "ddp_find_unused_parameters", "fsdp", "fsdp_config", "accelerator_config",
    }
)  # fmt: skip
OLDER = {"gradient_checkpointing", "gradient_checkpointing_kwargs"}
NEWER = {"activation_checkpointing", "activation_checkpointing_kwargs"}
FIELDS = {
    "4.57.6": COMMON | OLDER | {"group_by_length"},
    "5.1.0": COMMON | OLDER | {"group_by_length"},
    "5.2.0": COMMON | OLDER | {"train_sampling_strategy"},
    "5.22.0": COMMON | OLDER | {"train_sampling_strategy"},
    "5.23.0": COMMON | NEWER | {"train_sampling_strategy"},
    "5.24.0": COMMON | NEWER | {"train_sampling_strategy"},
}
"""Fields of `TrainingArguments` that matter here and are not deprecated, read from `src/transformers/training_args.py`
of each version's wheel. 5.23 still has `OLDER` and warns of them."""

Values = dict[str, KnobValue]
WHOLE: Values = {"checkpointed_blocks": 4}
PLANS: dict[str, Values] = {
    "plain": {},
    "accumulated in bf16": {"micro_batch_size": 2, "accumulation_steps": 4, "precision": "bf16"},
    "checkpointed": WHOLE,
    "compiled": {"compile": "max-autotune-no-cudagraphs"},
    "not compiled": {"compile": "off"},
    "fused": {"optimizer_implementation": "fused"},
    "grouped": {"length_grouping": True},
    "replicated": {"layout": "replicated"},
}


@pytest.fixture(autouse=True)
def no_variables_of_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes what transformers 4 sets whenever arguments are made, and what the next Trainer would follow."""
    for name in ("MIXED_PRECISION", "DYNAMO_BACKEND", "DYNAMO_MODE"):
        monkeypatch.delenv(f"ACCELERATE_{name}", raising=False)


def exported(values: Values, version: str | None = None, *, device: str = "cpu") -> Export:
    return HuggingFace().export(found(OWN.replace(**values), device, {"max_grad_norm": "0.5"}), version)


def found(plan: Plan, device: str = "cpu", settings: dict[str, str] | None = None) -> Answer:
    made = with_blocks(answer(plan, settings=settings))
    environment = made.environment.model_copy(update={"device_type": device})
    return made.model_copy(update={"environment": environment})


def settings_of(export: Export) -> dict[str, Any]:
    read = yaml.safe_load(export.text)
    assert isinstance(read, dict)
    return read


def loaded(export: Export, folder: Path) -> Any:
    """Returns the arguments as a user's script loads them, with what only the user can say beside them."""
    path = folder / export.filename
    path.write_text(export.text + f"output_dir: {folder}\nuse_cpu: true\nreport_to: none\nsave_strategy: 'no'\n")
    (args,) = HfArgumentParser(TrainingArguments).parse_yaml_file(str(path))
    return args


@pytest.mark.parametrize("version", FIELDS)
@pytest.mark.parametrize("plan", PLANS)
def test_each_key_is_a_field_of_that_version(plan: str, version: str) -> None:
    export = exported(PLANS[plan], version)
    assert export.warnings == ()
    assert settings_of(export).keys() <= FIELDS[version]
    assert export.by_hand == {}
    assert export.unmapped == ()


@pytest.mark.parametrize("plan", PLANS)
def test_the_installed_library_loads_each_file(plan: str, tmp_path: Path) -> None:
    export = exported(PLANS[plan])
    args = loaded(export, tmp_path)
    for key, value in settings_of(export).items():
        assert getattr(args, key) == value, key


def test_the_installed_version_has_the_listed_fields() -> None:
    assert FIELDS.get(transformers.__version__, COMMON) <= TrainingArguments.__dataclass_fields__.keys()


def test_checkpointing_has_the_name_of_the_version() -> None:
    whole, none = exported(WHOLE, "5.22"), exported({}, "5.23.1")
    assert settings_of(whole)["gradient_checkpointing"] is True
    assert settings_of(whole)["gradient_checkpointing_kwargs"] == {"use_reentrant": False}
    assert settings_of(none)["activation_checkpointing"] is False
    assert "gradient_checkpointing" not in none.text


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"checkpointed_blocks": 2}, "the first 2 blocks"),
        ({"checkpointed_blocks": 3}, "the first 3 blocks"),
    ],
)
def test_a_part_of_the_blocks_is_work_for_the_user(values: Values, said: str) -> None:
    export = exported(values, "5.23")
    assert export.by_hand["checkpointed_blocks"].endswith(f"but {said}")
    assert not settings_of(export).keys() & (OLDER | NEWER)


def test_the_user_s_checkpointing_is_left_as_it_is() -> None:
    baseline = OWN.replace(checkpointed_blocks="default")
    kept = HuggingFace().export(answer(baseline, baseline), "5.23")
    off = HuggingFace().export(answer(OWN, baseline), "5.23")
    assert "activation_checkpointing" not in settings_of(kept)
    assert settings_of(off)["activation_checkpointing"] is False


@pytest.mark.parametrize(
    ("values", "tf32"),
    [
        ({"compile": "default"}, False),
        ({"compile": "reduce-overhead", "precision": "bf16"}, False),
        ({"compile": "default", "precision": "tf32"}, True),
        ({"precision": "tf32"}, True),
        ({"precision": "fp32"}, None),
        ({"compile": "off"}, None),
    ],
)
def test_compilation_alone_does_not_switch_tf32_on(values: Values, tf32: bool | None) -> None:
    assert settings_of(exported(values, "5.23", device="cuda")).get("tf32") is tf32


@pytest.mark.parametrize(
    ("value", "device", "optim"),
    [
        ("fused", "cpu", "adamw_torch_fused"),
        ("fused", "cuda", "adamw_torch_fused"),
        ("foreach", "cuda", "adamw_torch"),
        ("for-loop", "cpu", "adamw_torch"),
        ("foreach", "cpu", None),
        ("for-loop", "cuda", None),
    ],
)
def test_the_optimizer_is_the_one_that_was_measured(value: str, device: str, optim: str | None) -> None:
    export = exported({"optimizer_implementation": value}, device=device)
    assert settings_of(export).get("optim") == optim
    assert ("optimizer_implementation" in export.by_hand) is (optim is None)


def test_what_torch_runs_by_default_is_what_the_names_of_optim_mean() -> None:
    """`adamw_torch` passes no switch: on the CPU torch then runs a loop."""
    from torch.optim.optimizer import _default_to_fused_or_foreach  # noqa: PLC0415

    assert _default_to_fused_or_foreach([torch.ones(1)], differentiable=False) == (False, False)


SHARDED: Values = {"layout": "full", "reshard_after_forward": False, "accumulation_steps": 2}


@pytest.mark.parametrize(
    ("version", "switch"), [("5.1.0", None), ("5.2.0", "full_shard auto_wrap"), ("5.10", True), ("5.24.0", True)]
)
def test_sharding_has_the_fields_of_the_version(version: str, switch: object) -> None:
    export = exported(SHARDED, version, device="cuda")
    settings = settings_of(export)
    assert settings.get("fsdp") == switch
    assert settings.keys() <= COMMON | OLDER | NEWER
    assert export.unmapped == (() if switch else ("layout", "reshard_after_forward"))
    assert exported(SHARDED, version).unmapped == ("layout", "reshard_after_forward")  # on the CPU
    assert ("transformer_layer_cls_to_wrap" in export.text) is bool(switch)


@pytest.mark.parametrize("reshard", [True, False])
def test_the_installed_library_shards_as_the_plan(reshard: bool, tmp_path: Path) -> None:
    from accelerate.utils import FullyShardedDataParallelPlugin  # noqa: PLC0415
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy  # noqa: PLC0415

    args = loaded(exported({**SHARDED, "reshard_after_forward": reshard}, device="cuda"), tmp_path)
    plugin = FullyShardedDataParallelPlugin(**args.fsdp_plugin_args)
    assert (plugin.fsdp_version, plugin.reshard_after_forward) == (2, reshard)
    assert plugin.auto_wrap_policy is transformer_auto_wrap_policy
    assert args.accelerator_config.gradient_accumulation_kwargs == {"sync_each_batch": True}


def test_rows_of_ranks_are_a_parallelism_of_accelerate(tmp_path: Path) -> None:
    from accelerate.utils import ParallelismConfig  # noqa: PLC0415

    values: Values = {**SHARDED, "layout": "hybrid", "sync_each_batch": False}
    place = {"ranks": "6", "rows": "2"}
    export = HuggingFace().export(found(OWN.replace(**values), "cuda", place))
    assert export.unmapped == ("sync_each_batch",)
    args = loaded(export, tmp_path)
    line = export.by_hand["layout"].partition("set ")[2].partition(" of accelerate")[0]
    exec(line, {"args": args, "ParallelismConfig": ParallelismConfig})
    assert (args.parallelism_config.dp_replicate_size, args.parallelism_config.dp_shard_size) == (2, 3)
    assert args.fsdp_plugin_args["fsdp_version"] == 2
    assert args.accelerator_config.gradient_accumulation_kwargs == {"sync_each_batch": True}
    assert exported(values, device="cuda").unmapped == ("layout", "reshard_after_forward", "sync_each_batch")


def test_gradients_are_kept_whole_where_the_plan_keeps_them(tmp_path: Path) -> None:
    export = exported({**SHARDED, "sync_each_batch": False}, device="cuda")
    assert export.unmapped == ()
    assert loaded(export, tmp_path).accelerator_config.gradient_accumulation_kwargs == {"sync_each_batch": False}


def test_weights_are_gathered_in_the_format_of_autocast_alone() -> None:
    gathered: Values = {**SHARDED, "gather_precision": "bf16"}
    export = exported({**gathered, "precision": "bf16"}, device="cuda")
    assert export.unmapped == ()
    assert "the Trainer also averages gradients in 16 bits" in export.warnings[-1]
    assert exported(gathered, device="cuda").unmapped == ("gather_precision",)


def test_what_the_trainer_cannot_do_on_ranks_is_listed() -> None:
    assert exported({"layout": "optimizer"}).unmapped == ("layout",)
    export = exported({"layout": "replicated", "gradient_as_bucket_view": True})
    assert export.unmapped == ("gradient_as_bucket_view",)
    assert "# The batch is that of each device.\n" in export.text


def test_the_trainer_looks_for_unused_parameters_where_a_plan_does() -> None:
    for looks, values in [(False, {}), (True, {"find_unused_parameters": True})]:
        export = exported({"layout": "replicated", **values})
        assert settings_of(export)["ddp_find_unused_parameters"] is looks
        assert export.unmapped == ()
    assert exported({"layout": "optimizer", "find_unused_parameters": True}).unmapped == ("layout",)
    sharded = exported({**SHARDED, "find_unused_parameters": True}, device="cuda")
    assert sharded.unmapped == ("find_unused_parameters",)
    assert "ddp_find_unused_parameters" not in sharded.text


def test_another_optimizer_is_not_replaced_by_adamw() -> None:
    plan = OWN.replace(optimizer_implementation="fused")
    export = HuggingFace().export(found(plan, settings={"optimizer": "SGD"}))
    assert "optim" not in settings_of(export)
    assert "foreach=False, fused=True" in export.by_hand["optimizer_implementation"]


def test_what_the_trainer_has_no_field_for_is_said() -> None:
    values: Values = {
        "attention": "sdpa", "compile": "blocks",
        "memory_format": "channels_last", "activation_offload": True, "linear_cross_entropy": "chunked",
        "optimizer_in_backward": True,
        "recomputed_operators": "cheap", "cudnn_benchmark": True,
    }  # fmt: skip
    export = exported(values, "5.23")
    by_hand = {"attention", "compile", "cudnn_benchmark"}
    assert set(export.by_hand) == by_hand
    assert set(export.unmapped) == values.keys() - export.by_hand.keys()
    assert 'attn_implementation="sdpa"' in export.text
    assert "cudnn_benchmark: torch.backends.cudnn.benchmark = True" in export.text


def test_the_loader_has_the_workers_that_were_chosen(tmp_path: Path) -> None:
    chosen = Loading(
        needed_per_s=10.0, trials=(LoadingTrial(workers=2),), workers=2, prefetch_factor=4, persistent_workers=True
    )
    made = answer(OWN)
    export = HuggingFace().export(made.model_copy(update={"proof": made.proof.model_copy(update={"loading": chosen})}))
    args = loaded(export, tmp_path)
    assert (args.dataloader_num_workers, args.dataloader_prefetch_factor) == (2, 4)
    assert args.dataloader_persistent_workers is True


def test_a_plan_for_inference_is_for_the_evaluation() -> None:
    plan = Plan(values={"micro_batch_size": 16, "accumulation_steps": 1, "precision": "bf16"})
    read = settings_of(HuggingFace().export(answer(plan, settings={"mode": "inference"})))
    assert read == {"per_device_eval_batch_size": 16, "bf16": True, "fp16": False}


def test_the_file_says_that_its_batch_is_that_of_one_device() -> None:
    text = exported({"micro_batch_size": 4, "accumulation_steps": 3}).text
    assert "# The batch is that of one device: 12 samples per step." in text


# A training of two steps, watched from inside the forward pass.


class Watched:
    """What the forward passes of a training saw."""

    def __init__(self, model: nn.Module) -> None:
        self.batches: list[int] = []
        self.types: Counter[tuple[bool, torch.dtype]] = Counter()
        self.blocks = 0
        self.handles = [
            model.get_submodule("transformer.wte").register_forward_pre_hook(self._embeds),
            model.get_submodule("transformer.h.0.attn").register_forward_pre_hook(self._runs_block),
            model.get_submodule("transformer.h.0.mlp.c_fc").register_forward_hook(self._multiplies),
        ]

    def _embeds(self, module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self.batches.append(len(inputs[0]))

    def _runs_block(self, module: nn.Module, inputs: object) -> None:
        self.blocks += 1

    def _multiplies(self, module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        self.types[torch.is_autocast_enabled("cpu"), output.dtype] += 1


def samples(count: int = 32) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 64, (count, 8), generator=generator)
    return [{"input_ids": row, "labels": row} for row in rows]


def trained(args: Any) -> tuple[Watched, Any]:
    """Trains a small model for two steps."""
    args.max_steps, args.disable_tqdm, args.logging_strategy = 2, True, "no"
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=4, n_head=2))
    watched = Watched(model)
    trainer = Trainer(model=model, args=args, train_dataset=samples())
    trainer.train()
    return watched, trainer


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_two_steps_of_a_real_trainer_follow_the_plan(checkpointed: bool, precision: str, tmp_path: Path) -> None:
    values: Values = {"micro_batch_size": 2, "accumulation_steps": 3, "precision": precision}
    args = loaded(exported({**values, **(WHOLE if checkpointed else {})}), tmp_path)
    watched, trainer = trained(args)
    assert trainer.state.global_step == 2
    assert watched.batches == [2] * 6  # two steps of three micro batches
    assert watched.blocks == (12 if checkpointed else 6)  # each block runs again in the backward pass
    wanted = (True, torch.bfloat16) if precision == "bf16" else (False, torch.float32)
    assert set(watched.types) == {wanted}


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["fused", "for-loop"])
def test_a_real_trainer_makes_the_optimizer_of_the_plan(implementation: str, tmp_path: Path) -> None:
    _, trainer = trained(loaded(exported({"optimizer_implementation": implementation}), tmp_path))
    assert type(trainer.optimizer.optimizer) is torch.optim.AdamW
    flags = {(group["fused"], group["foreach"]) for group in trainer.optimizer.optimizer.param_groups}
    assert flags == ({(True, None)} if implementation == "fused" else {(None, None)})


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "max-autotune-no-cudagraphs", "reduce-overhead"])
def test_a_real_trainer_compiles_in_the_mode_of_the_plan(mode: str, tmp_path: Path) -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=1, n_head=2))
    trainer = Trainer(model=model, args=loaded(exported({"compile": mode}), tmp_path), train_dataset=samples())
    plugin = trainer.accelerator.state.dynamo_plugin
    assert (plugin.backend.value, plugin.mode) == ("INDUCTOR", mode)
