"""The README: its code runs, its command lines parse, its links lead somewhere; the map of the code is whole."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit.cli import parser
from tests.markdown import code_blocks

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return code_blocks(README, language)


def entries(text: str) -> list[str]:
    """The paths that a map of the code names: before the first gap in each line that is indented by two."""
    found = (re.match(r"  (\S.*?)(?:  |$)", line) for line in text.splitlines())
    return [name for match in found if match for name in match[1].split(" | ")]


def test_the_python_example_tunes_trains_and_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = autofit.tune
    small = {"memory_budget": "256MiB", "time_budget": "60s", "strategies": ["batching"], "progress": False}

    def tune(*given: Any, **named: Any) -> autofit.Fit:
        return real(*given, **{**named, **small, "study": ":memory:", "device": "cpu"})

    monkeypatch.setattr(autofit, "tune", tune)
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    model = nn.Linear(8, 1)
    data = TensorDataset(torch.randn(256, 8), torch.randn(256, 1))
    scope = {
        "model": model,
        "loader": DataLoader(data, batch_size=16),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "epochs": 2,
    }
    before = model.weight.detach().clone()
    exec(compile(code, "README.md", "exec"), scope)  # running the README is the test
    scope["step"].close()  # type: ignore[attr-defined]
    assert not torch.equal(model.weight, before)
    assert autofit.load("autofit.yaml").plan.global_batch_size == 64


@pytest.mark.parametrize(
    "line", [line for block in blocks("bash") for line in block.splitlines() if line.startswith("autofit ")]
)
def test_its_command_lines_parse(line: str) -> None:
    assert parser().parse_args(shlex.split(line, comments=True)[1:])


def test_its_scripts_are_there() -> None:
    named = set(re.findall(r"\b(?:scripts|tests)/[\w./-]*\w", README))
    assert {"scripts/demo", "scripts/test"} <= named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_it_is_short() -> None:
    assert len(README.encode()) <= 8000


def test_its_links_are_there() -> None:
    named = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_map_names_each_part_of_the_package() -> None:
    text = (
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("```\nautofit/\n")[2].partition("\ntests/")[0]
    )
    there = {f"{path.name}/" if path.is_dir() else path.name for path in (ROOT / "autofit").iterdir()}
    listed = {name for name in there if not name.startswith("_") and name not in ("py.typed", "chips.json")}
    assert sorted(entries(text)) == sorted(listed)
