"""The overlay is read by Lightning itself, and a training with it has the plan's batch, steps and precision."""

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit.core.loading import Loading, LoadingTrial
from autofit.core.plan import KnobValue
from autofit.exporters import by_name
from autofit.exporters.base import Export
from autofit.tracing.ranks import fake_ranks
from tests.conformance.test_exporters import OWN, answer

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}
VALUES: list[dict[str, KnobValue]] = [
    {},
    {"precision": "bf16", "micro_batch_size": 4, "accumulation_steps": 2},
    {"precision": "tf32"},
    {"optimizer_implementation": "fused", "memory_format": "channels_last"},
    {"cudnn_benchmark": True},
    {"layout": "replicated"},
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(
        "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
    ),  # of Lightning itself
    pytest.mark.leaves("Lightning seeds, installs log handlers and keeps the last accelerator"),
]


@pytest.fixture(autouse=True)
def cudnn_benchmark_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Trainer sets the flag for the whole process, which decides what the strategy of that name offers."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)


def export(
    values: Mapping[str, KnobValue] = MappingProxyType({}),
    version: str | None = None,
    settings: dict[str, str] | None = None,
) -> Export:
    plan = OWN.replace(compile="off")
    return by_name("lightning").export(answer(plan.replace(**values), plan, settings), version)


def net(seen: dict[str, list[Any]]) -> Any:
    """Returns a module that notes the rows and type of each forward pass, and its number at each update."""
    from lightning.pytorch import LightningModule  # noqa: PLC0415

    class Net(LightningModule):  # type: ignore[misc]  # not typed
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(6, 3)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            inputs, targets = batch
            out = self.line(inputs)
            seen["rows"].append(len(inputs))
            seen["dtypes"].append(out.dtype)
            return nn.functional.cross_entropy(out, targets)

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            seen["updates"].append(len(seen["rows"]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Net()


def samples() -> TensorDataset:
    return TensorDataset(torch.randn(16, 6), torch.randint(3, (16,)))


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_the_overlay_holds_arguments_of_the_trainer(values: dict[str, KnobValue]) -> None:
    from lightning.pytorch import Trainer  # noqa: PLC0415

    found = export(values)
    overlay = yaml.safe_load(found.text)
    assert overlay.keys() == {"trainer"}
    trainer = Trainer(**overlay["trainer"], **QUIET)
    assert trainer.accumulate_grad_batches == values.get("accumulation_steps", 1)
    assert overlay["trainer"].get("benchmark", False) is values.get("cudnn_benchmark", False)
    assert trainer.precision == ("bf16-mixed" if values.get("precision") == "bf16" else "32-true")
    assert found.unmapped == ()


def test_clipping_is_that_of_the_plan_and_by_norm() -> None:
    from lightning.pytorch import Trainer  # noqa: PLC0415

    found = by_name("lightning").export(answer(OWN, settings={"max_grad_norm": "5.0"}))
    given = yaml.safe_load(found.text)["trainer"]
    trainer = Trainer(**{"gradient_clip_algorithm": "value", **given}, **QUIET)
    assert (trainer.gradient_clip_val, trainer.gradient_clip_algorithm) == (5.0, "norm")
    assert not [key for key in yaml.safe_load(export().text)["trainer"] if "clip" in key]


def test_fp16_is_a_precision_of_the_trainer() -> None:
    from lightning.fabric.plugins.precision.precision import _PRECISION_INPUT_STR  # noqa: PLC0415

    found = yaml.safe_load(export({"precision": "fp16"}).text)["trainer"]["precision"]
    assert found in _PRECISION_INPUT_STR.__args__


@pytest.mark.parametrize(
    ("values", "rows", "dtype", "updates"),
    [
        ({"micro_batch_size": 4, "accumulation_steps": 2, "precision": "bf16"}, [4] * 4, torch.bfloat16, [2, 4]),
        ({"micro_batch_size": 4}, [4, 4], torch.float32, [1, 2]),
    ],
)
def test_a_training_has_the_plan_in_effect(
    values: dict[str, KnobValue], rows: list[int], dtype: torch.dtype, updates: list[int]
) -> None:
    from lightning.pytorch import Trainer  # noqa: PLC0415

    found = export(values)
    seen: dict[str, list[Any]] = {"rows": [], "dtypes": [], "updates": []}
    line = found.by_hand["micro_batch_size"].partition(" in ")[0]
    loader = eval(line, {"DataLoader": DataLoader, "dataset": samples()})
    Trainer(**yaml.safe_load(found.text)["trainer"], max_steps=2, **QUIET).fit(net(seen), loader)
    assert seen["rows"] == rows
    assert set(seen["dtypes"]) == {dtype}
    assert seen["updates"] == updates


def test_the_command_line_of_lightning_merges_the_overlay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jsonargparse")
    from lightning.pytorch.cli import LightningCLI  # noqa: PLC0415
    from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel  # noqa: PLC0415

    mine, overlay = tmp_path / "mine.yaml", tmp_path / "autofit_lightning.yaml"
    mine.write_text("trainer:\n  max_steps: 3\n  accumulate_grad_batches: 4\n")
    overlay.write_text(export({"precision": "bf16", "accumulation_steps": 2}).text)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    arguments = ["--config", str(mine), "--config", str(overlay)]
    cli = LightningCLI(BoringModel, BoringDataModule, args=arguments, run=False, trainer_defaults=QUIET)
    assert (cli.trainer.max_steps, cli.trainer.accumulate_grad_batches) == (3, 2)
    assert cli.trainer.precision == "bf16-mixed"


@pytest.mark.parametrize("views", [True, False])
def test_the_command_line_of_lightning_makes_the_strategy(
    views: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jsonargparse")
    from lightning.pytorch.cli import LightningCLI  # noqa: PLC0415
    from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel  # noqa: PLC0415

    overlay = tmp_path / "autofit_lightning.yaml"
    found = export({"layout": "optimizer", "gradient_as_bucket_view": views, "find_unused_parameters": True})
    overlay.write_text(found.text)
    monkeypatch.setattr(sys, "argv", ["train.py"])
    arguments = ["--config", str(overlay)]
    cli = LightningCLI(BoringModel, BoringDataModule, args=arguments, run=False, trainer_defaults=QUIET)
    assert type(cli.trainer.strategy).__name__ == "DDPStrategy"
    assert cli.trainer.strategy._ddp_kwargs.get("gradient_as_bucket_view", False) is views
    assert cli.trainer.strategy._ddp_kwargs["find_unused_parameters"] is True
    assert "optimizer_class=torch.optim.AdamW" in found.by_hand["layout"]


@pytest.mark.parametrize(
    ("reshard", "changes"),
    [
        (True, {"precision": "bf16"}),
        (False, {"precision": "bf16"}),
        (True, {"precision": "bf16", "gather_precision": "bf16"}),
        (True, {"precision": "fp32", "gather_precision": "bf16"}),
    ],
)
def test_a_training_is_sharded_as_the_lines_say(reshard: bool, changes: dict[str, KnobValue]) -> None:
    from lightning.pytorch import Trainer  # noqa: PLC0415
    from lightning.pytorch.strategies import ModelParallelStrategy  # noqa: PLC0415
    from torch.distributed import destroy_process_group  # noqa: PLC0415
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard  # noqa: PLC0415

    found = export({"layout": "full", "reshard_after_forward": reshard, **changes})
    assert found.unmapped == ()
    line = found.by_hand["layout"]
    trainer = line.partition(" with ")[0].replace("...", "1")
    calls = re.findall(r"fully_shard\((?:\([^)]*\)|[^()])*\)", line)
    assert (calls[0].count("bfloat16"), calls[1].count("bfloat16")) == (("gather_precision" in changes),) * 2
    seen: dict[str, list[Any]] = {"rows": [], "dtypes": [], "updates": []}
    module = net(seen)

    def configure_model() -> None:
        module.model = nn.Sequential(module.line)
        for call in calls:
            names = {"fully_shard": fully_shard, "MixedPrecisionPolicy": MixedPrecisionPolicy, "torch": torch}
            eval(call, {**names, "self": module, "block": module.line})

    type(module).configure_model = lambda self: configure_model()
    names = {"ModelParallelStrategy": ModelParallelStrategy, "Trainer": lambda **given: given}
    given = {**yaml.safe_load(found.text)["trainer"], **eval(trainer, names)}
    before = dict(os.environ)
    try:
        Trainer(**given, devices=1, max_steps=1, **QUIET).fit(module, DataLoader(samples(), batch_size=4))
    finally:
        destroy_process_group()
        os.environ.clear()  # which has the address of the process group now
        os.environ.update(before)
    assert type(module.line.weight).__name__ == "DTensor"
    assert seen["dtypes"] == [torch.bfloat16]
    assert f"reshard_after_forward={reshard}" in calls[0]
    assert len(calls) == 2


@pytest.mark.parametrize("layout", ["full", "hybrid"])
def test_the_lines_for_rows_and_for_gradients_that_wait_are_those_of_torch(layout: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    values: dict[str, KnobValue] = {"layout": layout, "accumulation_steps": 2, "sync_each_batch": False}
    found = export(values, settings={"ranks": "4", "rows": "2"})
    assert found.unmapped == ()
    line, waits = found.by_hand["layout"], found.by_hand["sync_each_batch"].partition(" at ")[0]
    block, switched = nn.Linear(4, 4), list[bool]()
    with fake_ranks(4) as ranks:
        names: dict[str, Any] = {"fully_shard": fully_shard, "init_device_mesh": init_device_mesh, "block": block}
        names["self"] = SimpleNamespace(model=nn.Sequential(block), device_mesh={"data_parallel": ranks.mesh})
        if layout == "hybrid":
            names["self"].device_mesh = SimpleNamespace(device_type="cpu")
            exec(re.findall(r"mesh = init_device_mesh\([^(]*\([^)]*\)[^(]*\([^)]*\)\)", line)[0], names)
        for call in re.findall(r"fully_shard\((?:\([^)]*\)|[^()])*\)", line):
            eval(call, names)
        weight: Any = block.weight
        assert tuple(weight.device_mesh.shape) == ((2, 2) if layout == "hybrid" else (4,))
        setting = "set_requires_all_reduce" if layout == "hybrid" else "set_requires_gradient_sync"
        vars(names["self"].model)[setting] = switched.append
        for batch_idx, is_last in enumerate([False, False, True]):
            names["self"].trainer = SimpleNamespace(is_last_batch=is_last)
            eval(waits, {**names, "batch_idx": batch_idx})
    assert switched == [False, True, True]


def test_what_lightning_does_not_shard_is_listed() -> None:
    assert export({"layout": "hybrid"}).unmapped == ("layout",)  # rows that are not known
    assert export({"layout": "full"}, "2.3").unmapped == ("layout",)
    assert export({"layout": "full", "precision": "fp16"}).unmapped == ("layout",)


def test_compilation_is_a_line_for_configure_model() -> None:
    line = export({"compile": "reduce-overhead"}).by_hand["compile"]
    assert line == 'self.model = torch.compile(self.model, mode="reduce-overhead"), in configure_model'
    assert export({"compile": "blocks"}).unmapped == ("compile",)


def test_chosen_workers_are_named_with_the_batch_and_in_a_comment() -> None:
    loading = Loading(
        needed_per_s=10.0, trials=(LoadingTrial(workers=2),), workers=2, prefetch_factor=2, persistent_workers=False
    )
    given = answer(OWN.replace(micro_batch_size=4))
    found = given.model_copy(update={"proof": given.proof.model_copy(update={"loading": loading})})
    result = by_name("lightning").export(found)
    assert "for batch_size=4, num_workers=2, prefetch_factor=2" in result.by_hand["micro_batch_size"]
    assert "# The loader was measured with DataLoader(..., num_workers=2, prefetch_factor=2)." in result.text


def test_shards_of_which_ranks_use_different_ones_need_a_line() -> None:
    found = export({"layout": "full", "find_unused_parameters": True})
    assert found.by_hand["find_unused_parameters"].startswith("self.model.set_reduce_scatter_unused_params(True) after")
    assert found.unmapped == ()
