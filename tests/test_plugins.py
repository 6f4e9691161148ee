"""Another package adds a member to each family by an entry point; one that is broken is left out with a warning."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.outside_members import FAMILIES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
OUTSIDE = "tests.outside_members"
FACTORY = """
import torch, autofit
def make_workload():
    data = torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 2))
    loader = torch.utils.data.DataLoader(data, 4)
    return autofit.Workload(torch.nn.Linear(8, 2), loader, loss_fn=torch.nn.functional.mse_loss)
"""


def install(folder: Path, lines: str, name: str = "outside") -> None:
    """Puts a distribution into a folder, as an installer would."""
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(lines)


def python(folder: Path, *words: str, code: int = 0) -> tuple[str, str]:
    """Runs Python where the packages of a folder are installed."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder with a package that brings one member of each family."""
    found = (f"[autofit.{family}]\none = {OUTSIDE}:{member.__name__}\n" for family, member in FAMILIES.items())
    install(tmp_path, "".join(found))
    return tmp_path


def test_a_member_of_each_family_from_outside_takes_part_in_a_search(outside: Path) -> None:
    out, err = python(
        outside,
        "-c",
        """
import torch
import autofit
import autofit.devices
from tests import outside_members

model = torch.nn.Linear(8, 2)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 8), torch.randn(64, 2)), 4)
fit = autofit.tune(
    model, loader, loss_fn=torch.nn.functional.mse_loss, device="cpu", searcher="first-two",
    strategies=["batching", "marking"], study=":memory:", progress=False, listeners=["notebook:1"],
)
print("applied", *sorted(set(outside_members.APPLIED) - {""}))  # a gate builds plans without the knob
print("told", bool(outside_members.TOLD))
print("device", type(autofit.devices.choose("twin")).__name__, *(m.type for m in autofit.devices.members()))
print(outside_members.TRACKED[0], *outside_members.TRACKED[-2:], sep="; ")
print(fit.export("words").text)
""",
    )
    lines = out.splitlines()
    assert lines[:3] == ["applied off on", "told True", "device Twin cuda twin cpu"], (out, err)
    assert lines[3] == (
        "open 1; conclude ['autofit-report.html', 'autofit-report.json', 'autofit-report.md', 'autofit.yaml']; "
        "close finished"
    )
    assert "micro_batch_size is 4" in lines


def test_the_command_line_takes_members_from_outside(outside: Path) -> None:
    (outside / "train.py").write_text(FACTORY)
    words = (
        "tune train.py:make_workload -o plan.yaml --device cpu --searcher first-two --study :memory: --quiet --trials 2"
    )
    python(outside, "-m", "autofit", *words.split())
    out, _ = python(outside, "-m", "autofit", "export", "plan.yaml", "--to", "words")
    assert "micro_batch_size is 4" in out
    assert "mark is" in out


def test_a_finding_from_outside_is_looked_for(outside: Path) -> None:
    (outside / "train.py").write_text(FACTORY)
    words = "doctor train.py:make_workload --quiet --only watched --fail-on watched"
    out, _ = python(outside, "-m", "autofit", *words.split(), code=4)
    assert "6 steps were watched" in out.lower()
    _, err = python(outside, "-m", "autofit", *words.split(), "--skip", "?", code=2)
    assert "versions, watched" in err.replace("\n", " "), "an unknown name lists all"


def test_a_strategy_from_outside_is_a_choice_of_an_estimate(outside: Path) -> None:
    (outside / "train.py").write_text(FACTORY)
    words = "estimate train.py:make_workload --memory 2GiB --quiet"
    out, _ = python(outside, "-m", "autofit", *words.split())
    lines = [line.split() for line in out.splitlines()]
    baseline = next(line for line in lines if line[:2] == ["fp32", "(baseline)"])
    assert ["mark=on", *baseline[2:]] in lines, out
    out, _ = python(outside, "-m", "autofit", *words.split(), "--json")
    row = next(row for row in json.loads(out)["rows"] if row.get("knob") == "mark")
    assert row["value"] == row["largest"]["plan"]["values"]["mark"] == "on"
    out, _ = python(outside, "-m", "autofit", *words.split(), "--only", "marking")
    assert any(line.split()[:2] == ["mark=off", "(baseline)"] for line in out.splitlines()), out
    _, err = python(outside, "-m", "autofit", *words.split(), "--only", "?", code=2)
    assert "batching, marking" in err.replace("\n", " "), "an unknown name lists all"


def test_those_that_cannot_be_used_are_left_out_and_named(tmp_path: Path) -> None:
    said = {
        "no_such_package:Member": "ModuleNotFoundError: No module named 'no_such_package'",
        f"{OUTSIDE}:Absent": "AttributeError",
        f"{OUTSIDE}:NO_CLASS": "found 'first-two'; expected a class that derives from autofit.searchers.base",
        f"{OUTSIDE}:Words": "expected a class that derives from autofit.searchers.base.Searcher",
        f"{OUTSIDE}:Unfinished": "Unfinished has no ask, tell",
        f"{OUTSIDE}:Impostor": "another member of the family has the name 'guided'",
    }
    bad = "".join(f"bad{number} = {value}\n" for number, value in enumerate(said))
    install(tmp_path, f"[autofit.searchers]\n{bad}good = {OUTSIDE}:FirstTwo\n")
    out, err = python(tmp_path, "-c", "from autofit import searchers; print(*(m.name for m in searchers.members()))")
    assert out.split() == ["guided", "tpe", "gp", "random", "grid", "first-two"]
    warnings = err.split("the package outside 1.2 adds ")[1:]
    assert len(warnings) == len(said)
    for number, ((value, why), warning) in enumerate(zip(said.items(), warnings, strict=True)):
        assert warning.startswith(f"'bad{number}' ({value}) to autofit.searchers, which cannot be used")
        assert why in warning
        assert "It is left out; update the package or uninstall it." in warning


def test_of_two_packages_with_one_name_the_first_is_used(tmp_path: Path) -> None:
    install(tmp_path, f"[autofit.searchers]\na = {OUTSIDE}:FirstTwo\n")
    install(tmp_path, f"[autofit.searchers]\nb = {OUTSIDE}:FirstTwo\n", name="another")
    out, err = python(tmp_path, "-c", "from autofit import searchers; print(*(m.name for m in searchers.members()))")
    assert out.split().count("first-two") == 1
    assert "the package another 1.2 adds 'b'" in err


def test_without_such_packages_nothing_changes(tmp_path: Path) -> None:
    code = "from autofit import strategies; print(len(strategies.members()) == len(strategies.BUILT_IN))"
    assert python(tmp_path, "-W", "error", "-c", code) == ("True\n", "")
