"""Tuning in a child process: the answer, and the class of the error that ended it."""

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autofit.cli.outcome import failure
from autofit.core.errors import AutofitError, NothingFits, UsageError, UserCodeError
from autofit.integrations.child_tuning import tune_in_child

SCRIPT = """
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_workload(width=8):
    open("child", "a").write(f"{os.getppid()} ")
    if not width:
        raise ValueError("no width")
    data = TensorDataset(torch.zeros(64, 4), torch.zeros(64, width))
    return {"model": nn.Linear(4, width), "loader": DataLoader(data, batch_size=8), "loss_fn": nn.functional.mse_loss}


if __name__ == "__main__":
    from autofit.integrations.accelerate import tune_in_child

    flags = "--memory", "1GiB", "--device", "cpu", "--global-batch", "8", "--only", "batching", "--study", "s.db"
    fit = tune_in_child(__file__ + ":make_workload", *flags, "--trials", "3")
    assert not torch.get_num_threads() < 1 and fit.plan.global_batch_size == 8
    print(fit.plan.micro_batch_size, os.getpid())
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_a_script_tunes_itself_in_another_process(script: Path) -> None:
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=True)
    size, process = ran.stdout.split()
    assert 8 % int(size) == 0
    made_below = Path("child").read_text().split()
    assert made_below
    assert process not in made_below  # the workload is made in a child of `autofit tune`
    assert "autofit: trial 1" in ran.stderr


@pytest.mark.slow
def test_the_users_error_has_its_class_and_traceback(script: Path) -> None:
    with pytest.raises(UserCodeError, match="no width") as caught:
        tune_in_child(f"{script}:make_workload", "--arg", "width=0", "--device", "cpu", "--quiet")
    assert 'raise ValueError("no width")' in caught.value.traceback_text


def test_a_misspelt_flag_is_an_error_of_use(script: Path) -> None:
    with pytest.raises(UsageError, match="unrecognized arguments: --memroy"):
        tune_in_child(f"{script}:make_workload", "--memroy", "1GiB")


@pytest.mark.parametrize(
    ("kind", "code", "raised"),
    [
        ("NothingFits", 3, NothingFits),
        ("Untraceable", 2, UsageError),
        ("Interrupted", 130, KeyboardInterrupt),
        ("ZeroDivisionError", 1, AutofitError),
        (None, -9, AutofitError),
    ],
)
def test_each_end_of_the_command_is_an_error(
    monkeypatch: pytest.MonkeyPatch, kind: str | None, code: int, raised: type[BaseException]
) -> None:
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str], **how: Any) -> SimpleNamespace:
        commands.append(command)
        return SimpleNamespace(returncode=code, stdout="" if kind is None else failure(code, kind, "as it says"))

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(raised, match="as it says" if kind else "exit code -9") as caught:
        tune_in_child("train.py:make_workload", "--memory", "1GiB")
    assert type(caught.value) is raised
    assert commands[0][2:7] == ["autofit", "tune", "train.py:make_workload", "--memory", "1GiB"]


def test_the_document_of_a_failure_is_what_is_read() -> None:
    assert json.loads(failure(3, "NothingFits", "x"))["error"].keys() == {"type", "message", "traceback", "exit_code"}
