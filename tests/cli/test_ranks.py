"""`autofit tune --nproc N`: torchrun starts the ranks, one plan is written, and the exit code is that of rank 0."""

import os
import signal
import socket
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


def tuning(folder: Path, *words: str) -> list[str]:
    """Returns a command that tunes on two ranks."""
    (folder / "train.py").write_text(TARGET)
    asked = ["tune", "train.py:make_workload", "--nproc", "2", "--device", "cpu", "--time", "60s", *words]
    return [sys.executable, "-m", "autofit", *asked, "--only", "layout,batching", "--global-batch", "32"]


def tuned(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        tuning(folder, *words),
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
    assert "distributed/elastic" not in done.stderr
    assert not (tmp_path / "autofit.yaml").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_the_best_plan_so_far(number: signal.Signals, tmp_path: Path) -> None:
    words, pipe = tuning(tmp_path), subprocess.PIPE
    with subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=pipe, stderr=pipe, text=True) as running:
        assert running.stderr is not None
        assert any("trial 1: " in line for line in running.stderr)
        running.send_signal(number)
        out, err = running.communicate(timeout=90)
    assert running.returncode == 130, err
    assert "the plan is the best so far" in err
    assert out.count("Use micro batch") + out.count("Keep") == 1, out
    assert planfile.load(tmp_path / "autofit.yaml").environment.ranks == 2


def test_ranks_of_two_nodes_find_one_plan(tmp_path: Path) -> None:
    """Two launches of torchrun meet, as those of two machines do."""
    (tmp_path / "train.py").write_text(TARGET)
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    words = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    words += ["--rdzv-id", "test", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}"]
    words += ["-m", "autofit", "tune", "train.py:make_workload", "--device", "cpu", "--time", "60s"]
    words += ["--only", "layout,batching", "--global-batch", "32"]
    given = {"cwd": tmp_path, "env": environment(), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    nodes = [subprocess.Popen(words, **given) for _ in range(2)]  # type: ignore[call-overload]
    outputs = [node.communicate(timeout=180) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert sum(out.count("Proven by 3 whole steps") for out, _ in outputs) == 1, "one rank speaks for all"
    assert planfile.load(tmp_path / "autofit.yaml").environment.ranks == 2
