"""The file is read by accelerate itself, and a training launched with it has the plan's batch, steps and precision."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import yaml

from autofit.core.loading import Loading, LoadingTrial
from autofit.core.plan import KnobValue
from autofit.exporters import by_name
from autofit.exporters.base import Export
from autofit.strategies.shards import in_bf16
from tests.conformance.test_exporters import OWN, answer, on_cuda

pytestmark = pytest.mark.slow

PLAN = OWN.replace(compile="off")
VALUES: list[dict[str, KnobValue]] = [
    {},
    {"precision": "bf16", "micro_batch_size": 4, "accumulation_steps": 2},
    {"precision": "fp16", "compile": "default"},
    {"precision": "tf32", "compile": "reduce-overhead"},
    {"compile": "blocks"},
    {"compile": "max-autotune-no-cudagraphs"},
]
ENVIRONMENT = "import json, os\nprint('SEEN' + json.dumps(dict(os.environ)))"
SCRIPT = """
import json, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

torch.manual_seed(0)
accelerator = {accelerator}
seen = {{"rows": [], "dtypes": [], "updates": [], "norms": [], "backwards": 0}}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 3)

    def forward(self, x):
        out = self.line(x)
        seen["rows"].append(len(x))
        seen["dtypes"].append(str(out.dtype))
        return out


class Counted(torch.optim.SGD):
    def step(self, closure=None):
        seen["updates"].append(seen["backwards"])
        gradients = [p.grad for group in self.param_groups for p in group["params"]]
        seen["norms"].append(float(nn.utils.get_total_norm(gradients)))
        return super().step(closure)


model = Net()
dataset = TensorDataset(torch.randn(16, 6), torch.randint(3, (16,)))
optimizer = Counted(model.parameters(), lr=0.1)
loader = {loader}
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for inputs, targets in loader:
    with accelerator.accumulate(model):
        accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
        seen["backwards"] += 1
        {clip}
        optimizer.step()
        optimizer.zero_grad()
print("SEEN" + json.dumps(seen))
"""

PARTS = """
import os
import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

accelerator = Accelerator(cpu=True)
model, loader = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), [torch.ones(2, 4)]
optimizer = {made}
model, optimizer, _ = {prepared}
accelerator.backward(model(loader[0]).sum())
optimizer.step()
sys.stdout.write(f"STATES {{len(optimizer.optimizer.optim.state)}}\\n")  # in one piece, beside the other rank
sys.stdout.flush()
accelerator.wait_for_everyone()
os._exit(0)  # threads of gloo may abort an ordinary exit
"""


def export(values: Mapping[str, KnobValue] = MappingProxyType({}), version: str | None = None) -> Export:
    return by_name("accelerate").export(answer(PLAN.replace(**values), PLAN), version)


def read(found: Export, folder: Path) -> Any:
    from accelerate.commands.config.config_args import load_config_from_file  # noqa: PLC0415

    path = folder / found.filename
    path.write_text(found.text)
    return load_config_from_file(str(path))


@pytest.mark.parametrize("values", VALUES, ids=str)
def test_accelerate_reads_the_file(values: dict[str, KnobValue], tmp_path: Path) -> None:
    found = export(values)
    cluster = read(found, tmp_path)
    assert type(cluster).__name__ == "ClusterConfig"
    assert (cluster.distributed_type.value, cluster.num_processes, cluster.use_cpu) == ("NO", 1, True)
    expected = {"bf16": "bf16", "fp16": "fp16"}.get(str(values.get("precision")))
    assert cluster.mixed_precision == (expected or ("no" if values.get("precision") != "tf32" else None))
    assert bool(cluster.dynamo_config) == ("compile" in values)
    assert found.unmapped == ()


def test_an_unknown_key_would_be_rejected(tmp_path: Path) -> None:
    found = export()
    broken = Export(text=f"{found.text}micro_batch_size: 4\n", filename=found.filename)
    with pytest.raises(ValueError, match="unknown keys"):
        read(broken, tmp_path)


@pytest.mark.parametrize(
    ("value", "mode", "regional"),
    [
        ("default", "default", False),
        ("blocks", "default", True),
        ("reduce-overhead", "reduce-overhead", False),
        ("max-autotune-no-cudagraphs", "max-autotune-no-cudagraphs", False),
    ],
)
def test_what_a_launch_makes_of_the_file_compiles_as_the_plan_does(
    value: str, mode: str, regional: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in launched(export({"compile": value}), tmp_path).items():
        if name.startswith("ACCELERATE_DYNAMO"):
            monkeypatch.setenv(name, text)
    from accelerate.utils import TorchDynamoPlugin  # noqa: PLC0415

    plugin = TorchDynamoPlugin()
    assert (plugin.backend.value, plugin.mode, plugin.use_regional_compilation) == ("INDUCTOR", mode, regional)
    assert plugin.dynamic is False  # as the plan was measured, unless batches vary in shape


def environment_of(found: Export, folder: Path, *arguments: str) -> dict[str, str]:
    """Returns what `accelerate launch` would set for each process on several GPUs."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser  # noqa: PLC0415
    from accelerate.utils.launch import prepare_multi_gpu_env  # noqa: PLC0415

    path = folder / found.filename
    path.write_text(found.text)
    given = launch_command_parser().parse_args(["--config_file", str(path), *arguments, "train.py"])
    args, _, _ = _validate_launch_command(given)
    assert (args.num_processes, args.multi_gpu or args.use_fsdp) == (4, True)
    environment: dict[str, str] = prepare_multi_gpu_env(args)
    return environment


@pytest.mark.parametrize("reshard", [True, False])
def test_sharding_is_that_of_the_plan(reshard: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.utils import FullyShardedDataParallelPlugin, GradientAccumulationPlugin  # noqa: PLC0415
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy  # noqa: PLC0415

    plan = PLAN.replace(layout="full", reshard_after_forward=reshard, accumulation_steps=2, precision="bf16")
    found = by_name("accelerate").export(on_cuda(answer(plan, PLAN)))
    with pytest.raises(ValueError, match="manually pass in `--num_processes`"):
        environment_of(found, tmp_path)
    searched = on_cuda(answer(plan, PLAN))
    place = searched.environment.model_copy(update={"settings": {"ranks": "4"}})
    of_search = by_name("accelerate").export(searched.model_copy(update={"environment": place}))
    for name, text in environment_of(of_search, tmp_path).items():
        monkeypatch.setenv(name, text)
    plugin = FullyShardedDataParallelPlugin()
    assert (plugin.fsdp_version, plugin.reshard_after_forward) == (2, reshard)
    assert plugin.auto_wrap_policy is transformer_auto_wrap_policy
    line = found.by_hand["accumulation_steps"].partition(", and ")[0]
    kwargs = eval(line, {"Accelerator": dict, "GradientAccumulationPlugin": GradientAccumulationPlugin})
    assert kwargs["gradient_accumulation_plugin"].to_kwargs() == {"num_steps": 2, "sync_each_batch": True}
    assert "fsdp_transformer_layer_cls_to_wrap" in found.by_hand["layout"]
    assert "averages gradients in 16 bits" in found.warnings[-1]
    assert found.unmapped == ()


IN_ROWS = {"ranks": "4", "rows": "2"}


def test_rows_of_ranks_are_a_parallelism_of_the_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from accelerate.utils import FullyShardedDataParallelPlugin, ParallelismConfig  # noqa: PLC0415

    plan = PLAN.replace(layout="hybrid", reshard_after_forward=False, accumulation_steps=2, sync_each_batch=False)
    found = by_name("accelerate").export(on_cuda(answer(plan, PLAN, IN_ROWS)))
    for name, text in environment_of(found, tmp_path).items():
        monkeypatch.setenv(name, text)
    sizes = ParallelismConfig()
    assert (sizes.dp_replicate_size, sizes.dp_shard_size, sizes.total_size) == (2, 2, 4)
    assert FullyShardedDataParallelPlugin().reshard_after_forward is False
    assert "sync_each_batch=True" in found.by_hand["accumulation_steps"], "else a rank keeps whole gradients"
    assert found.unmapped == ("sync_each_batch",)
    older = by_name("accelerate").export(on_cuda(answer(plan, PLAN, IN_ROWS)), "1.9")
    unknown = by_name("accelerate").export(on_cuda(answer(plan, PLAN)))
    assert {"layout", "reshard_after_forward"} <= {*older.unmapped} & {*unknown.unmapped}


def test_gradients_are_kept_whole_where_the_plan_keeps_them() -> None:
    from accelerate.utils import GradientAccumulationPlugin  # noqa: PLC0415

    plan = PLAN.replace(layout="full", accumulation_steps=2, sync_each_batch=False)
    found = by_name("accelerate").export(on_cuda(answer(plan, PLAN)))
    line = found.by_hand["accumulation_steps"].partition(", and ")[0]
    kwargs = eval(line, {"Accelerator": dict, "GradientAccumulationPlugin": GradientAccumulationPlugin})
    assert kwargs["gradient_accumulation_plugin"].to_kwargs() == {"num_steps": 2}
    assert found.unmapped == ()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_are_gathered_by_the_policy_of_the_plan(precision: str) -> None:
    from accelerate.utils import FullyShardedDataParallelPlugin  # noqa: PLC0415
    from torch.distributed.fsdp import MixedPrecisionPolicy  # noqa: PLC0415

    plan = PLAN.replace(layout="full", precision=precision, gather_precision="bf16")
    found = by_name("accelerate").export(on_cuda(answer(plan, PLAN)))
    names: dict[str, Any] = {"Accelerator": dict, "torch": torch, "MixedPrecisionPolicy": MixedPrecisionPolicy}
    names["FullyShardedDataParallelPlugin"] = lambda **given: FullyShardedDataParallelPlugin(fsdp_version=2, **given)
    plugin = eval(found.by_hand["gather_precision"], names)["fsdp_plugin"]
    if precision != "fp32":
        plugin.set_mixed_precision(precision)  # as an Accelerator does
    assert plugin.mixed_precision_policy == in_bf16(autocast=precision == "bf16")[1]
    assert not any("16 bits" in text for text in found.warnings)


def test_replicas_are_processes_of_one_launch(tmp_path: Path) -> None:
    from accelerate.utils import DistributedDataParallelKwargs  # noqa: PLC0415

    given = {"gradient_as_bucket_view": True, "find_unused_parameters": True}
    plan = PLAN.replace(layout="replicated", **given)
    found = by_name("accelerate").export(on_cuda(answer(plan, PLAN)))
    assert read(found, tmp_path).distributed_type.value == "MULTI_GPU"
    assert "FSDP_VERSION" not in environment_of(found, tmp_path, "--num_processes=4")
    names = {"Accelerator": dict, "DistributedDataParallelKwargs": DistributedDataParallelKwargs}
    for name in given:
        (handler,) = eval(found.by_hand[name], names)["kwargs_handlers"]
        assert handler.to_kwargs() == given
    assert by_name("accelerate").export(answer(plan, PLAN)).unmapped == ("layout",)  # on the CPU


def test_shards_of_which_ranks_use_different_ones_need_a_line() -> None:
    from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415

    found = by_name("accelerate").export(
        on_cuda(answer(PLAN.replace(layout="full", find_unused_parameters=True), PLAN))
    )
    line = found.by_hand["find_unused_parameters"]
    assert line.startswith("model.set_reduce_scatter_unused_params(True) after accelerator.prepare")
    assert hasattr(FSDPModule, "set_reduce_scatter_unused_params")
    assert "find_unused_parameters" not in (*found.unmapped, *found.settings)


def test_an_optimizer_in_parts_is_prepared_as_the_line_says(tmp_path: Path) -> None:
    plan = PLAN.replace(layout="optimizer")
    line = by_name("accelerate").export(on_cuda(answer(plan, PLAN))).by_hand["layout"]
    made, prepared = line.partition(" in place")[0].replace("...", "lr=0.1"), line.partition(", and ")[2]
    (tmp_path / "train.py").write_text(PARTS.format(made=made, prepared=prepared))
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    states = sorted(int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("STATES"))
    assert (len(states), sum(states)) == (2, 4)  # four parameters, each updated on one of two ranks


def launched(found: Export, folder: Path, script: str = ENVIRONMENT) -> Any:
    """Runs a script under `accelerate launch` with the file, and returns what it printed after SEEN."""
    (folder / found.filename).write_text(found.text)
    (folder / "train.py").write_text(script)
    command = ["-m", "accelerate.commands.launch", "--config_file", found.filename, "train.py"]
    done = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("SEEN"))
    return json.loads(line.removeprefix("SEEN"))


@pytest.mark.parametrize(
    ("values", "rows", "dtype", "updates"),
    [
        ({"micro_batch_size": 4, "accumulation_steps": 2, "precision": "bf16"}, [4] * 4, "torch.bfloat16", [2, 4]),
        ({"micro_batch_size": 4}, [4] * 4, "torch.float32", [1, 2, 3, 4]),
    ],
)
def test_a_launched_training_has_the_plan_in_effect(
    values: dict[str, KnobValue], rows: list[int], dtype: str, updates: list[int], tmp_path: Path
) -> None:
    found = by_name("accelerate").export(answer(PLAN.replace(**values), PLAN, {"max_grad_norm": "0.01"}))
    clip = found.warnings[-1].partition("Write ")[2].partition(", before optimizer.step()")[0]
    accelerator = found.by_hand.get("accumulation_steps", "Accelerator()").partition(", and ")[0]
    script = SCRIPT.format(accelerator=accelerator, loader=found.by_hand["micro_batch_size"], clip=clip)
    seen = launched(found, tmp_path, script)
    assert seen["rows"] == rows
    assert set(seen["dtypes"]) == {dtype}
    assert seen["updates"] == updates
    assert seen["norms"] == pytest.approx([0.01] * len(updates), rel=1e-3)


def test_chosen_workers_are_in_the_loader_and_in_a_comment() -> None:
    loading = Loading(
        needed_per_s=10.0, trials=(LoadingTrial(workers=2),), workers=2, prefetch_factor=2, persistent_workers=True
    )
    given = answer(PLAN.replace(micro_batch_size=4), PLAN)
    found = given.model_copy(update={"proof": given.proof.model_copy(update={"loading": loading})})
    line = by_name("accelerate").export(found).by_hand["micro_batch_size"]
    assert line == "DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=True, prefetch_factor=2)"
    kept = found.model_copy(update={"plan": PLAN})
    text = by_name("accelerate").export(kept).text
    assert "# The loader was measured with DataLoader(..., num_workers=2, persistent_workers=True" in text
    assert yaml.safe_load(text) == yaml.safe_load(export().text)
