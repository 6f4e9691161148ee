"""`autofit worker`: a search and a worker as two commands, and what cannot be used."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autofit.cli import main

ROOT = Path(__file__).parents[2]
TRAIN = """
import torch

def make_workload(width=8):
    model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
    return {"model": model, "loader": torch.utils.data.DataLoader(data, batch_size=4), "global_batch_size": 16}
"""


def command(folder: Path, url: str, *words: str) -> "subprocess.Popen[str]":
    """Starts a command as on a machine of its own: with its own locks."""
    runtime = folder / f"run-{words[0]}"
    runtime.mkdir(mode=0o700)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "AUTOFIT_STUDY": url, "AUTOFIT_RUNTIME_DIR": str(runtime)}
    return subprocess.Popen(
        [sys.executable, "-m", "autofit", *words, "--study", "env:AUTOFIT_STUDY"], cwd=folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_a_place_that_workers_do_not_share_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "--study", str(tmp_path / "study.db")]) == 2
    text = capsys.readouterr().err
    assert "expected the URL of a database that all workers reach" in text
    assert list(tmp_path.iterdir()) == []


def test_a_secret_is_never_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOFIT_STUDY", "postgresql+nodriver://bob:tiger@host/net")
    assert main(["worker", "--study", "env:AUTOFIT_STUDY", "--idle", "1s"]) == 2
    shown = capsys.readouterr()
    assert "postgresql+nodriver://***@host/net" in shown.err
    assert "tiger" not in shown.err + shown.out


def test_without_a_search_a_worker_ends_when_it_was_idle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", "--study", f"sqlite:///{tmp_path / 'a.db'}?timeout=30", "--idle", "0.1s"]) == 0
    assert capsys.readouterr().out == "0 plans run for 0 searches\n"
