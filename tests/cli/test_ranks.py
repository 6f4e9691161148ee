"""`autofit tune --nproc N`: torchrun starts the ranks, one plan is written, and the exit code is that of rank 0."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autofit import planfile
from tests.cli.processes import environment

pytestmark = pytest.mark.slow
TARGET = """
import torch
from torch.utils.data import DataLoader, TensorDataset


def make_workload(fails=False):
    if fails:
        raise ValueError("no data today")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    data = TensorDataset(torch.randn(256, 8), torch.randint(4, (256,)))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    return {"model": model, "loader": loader, "loss_fn": torch.nn.functional.cross_entropy}
"""


def tuned(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(TARGET)
    asked = ["tune", "train.py:make_workload", "--nproc", "2", "--device", "cpu", "--time", "3s", *words]
    return subprocess.run(
        [sys.executable, "-m", "autofit", *asked, "--only", "layout,batching", "--global-batch", "32"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_one_plan_is_written_for_all_ranks(tmp_path: Path) -> None:
    before = set(os.listdir("/tmp"))
    done = tuned(tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Proven by 3 whole steps") == 1
    assert done.stderr.count("plan written to autofit.yaml") == 1
    answer = planfile.load(tmp_path / "autofit.yaml")
    assert answer.environment.ranks == 2
    assert answer.plan.values["layout"] == "replicated"
    assert answer.plan.global_batch_size == 16
    assert answer.proof.samples_per_step == 32
    assert not [name for name in set(os.listdir("/tmp")) - before if "torchelastic" in name or "autofit-ranks" in name]


def test_an_error_is_said_once_and_is_the_exit_code(tmp_path: Path) -> None:
    done = tuned(tmp_path, "--arg", "fails=true")
    assert done.returncode == 5
    assert done.stderr.count("autofit: train.py:make_workload raised ValueError: no data today") == 1
    assert "torch.distributed.elastic" not in done.stderr
    assert not (tmp_path / "autofit.yaml").exists()
