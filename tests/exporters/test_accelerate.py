"""The file is read by accelerate itself, and a training launched with it has the plan's batch, steps and precision."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import yaml

from autofit.core.loading import Loading, LoadingTrial
from autofit.core.plan import KnobValue
from autofit.exporters import by_name
from autofit.exporters.base import Export
from tests.conformance.test_exporters import OWN, answer

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
