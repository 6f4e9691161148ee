"""The command that repeats a search: a shell reads it back, and it holds no secret."""

import shlex
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import autofit
from autofit.reports.repeating import command_line, tuning_call


def test_a_shell_reads_the_words_back() -> None:
    words = ["tune", "train.py:make", "--arg", "name=it's big", "--memory", "20GiB", "-o", "a b.yaml"]
    assert shlex.split(command_line(words)) == ["autofit", *words]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--arg", "api_key=hunter2 is long"], "autofit --arg 'api_key=***'"),
        (["--arg", "cfg={token: hunter2, x: 1}"], "autofit --arg 'cfg=***'"),
        (["--arg", "max_token=512"], "autofit --arg max_token=512"),
        (["--study", "postgresql://me:hunter2@host/db"], "autofit --study 'postgresql://***@host/db'"),
        (
            ["--study=postgresql://me:hunter2@h/db?p=hunter2"],
            "autofit '--study=postgresql://***@h/db?***'",
        ),
    ],
)
def test_secrets_are_hidden(words: list[str], shown: str) -> None:
    assert command_line(words) == shown


def step(model: object, batch: object) -> torch.Tensor:
    raise AssertionError("it is only named")


def test_a_call_has_the_arguments_that_differ_from_their_defaults() -> None:
    values = {
        "model": object(), "loader": [1], "loss_fn": F.cross_entropy, "step_fn": step, "optimizer": lambda p: None,
        "time_budget": "6min", "seed": 0, "strategies": ("batching",), "study": Path("a.db"), "mode": "inference",
        "worst_case": torch.zeros(3), "progress": False, "clock": 3, "max_grad_norm": None,
        "device": torch.device("cpu"),
    }  # fmt: skip
    assert tuning_call(autofit.tune, values) == (
        "autofit.tune(model, loader, loss_fn=cross_entropy, step_fn=step, optimizer=..., time_budget='6min', "
        "strategies=['batching'], worst_case=..., mode='inference', device=..., study='a.db')"
    )


def test_a_call_with_defaults_alone_is_short() -> None:
    assert tuning_call(autofit.tune, {}) == "autofit.tune(model, loader)"
    assert "hunter2" not in tuning_call(autofit.tune, {"study": "postgresql://me:hunter2@host/db"})
