"""Files that commands write: nobody else's is replaced, and no result is lost."""

import json
from pathlib import Path
from typing import Any

import pytest

from autofit import planfile
from autofit.core.errors import PlanFileError
from tests.cli.conftest import FakeRemote, Run


@pytest.mark.parametrize("content", ["weights: 1\n", "import torch\n"])
def test_an_output_that_is_no_plan_is_refused_before_anything_runs(
    content: str, remote: type[FakeRemote], run: Run
) -> None:
    remote.fails = AssertionError("nothing may be opened")
    Path("mine.yaml").write_text(content)
    code, _, err = run("tune", "t.py", "-o", "mine.yaml")
    assert code == 2
    assert "not an autofit plan" in err
    assert Path("mine.yaml").read_text() == content


@pytest.mark.parametrize("content", ["schema: autofit.plan/7\n", "schema: autofit.plan/1\nplan: [\n", ""])
def test_a_damaged_or_newer_plan_is_replaced(content: str, remote: type[FakeRemote], run: Run) -> None:
    Path("autofit.yaml").write_text(content)
    assert run("tune", "t.py", "--study", ":memory:", "--trials", "3")[0] == 0
    assert planfile.load("autofit.yaml").plan


def test_defect_12_tune_replaces_another_file_only_when_forced(remote: type[FakeRemote], run: Run) -> None:
    Path("train.py").write_text("import torch\n")
    code, _, err = run("tune", "t.py", "-o", "train.py", "--study", ":memory:")
    assert code == 2
    assert "--force" in err
    assert Path("train.py").read_text() == "import torch\n"
    assert run("tune", "t.py", "-o", "train.py", "--force", "--study", ":memory:", "--trials", "3")[0] == 0
    assert planfile.load("train.py").plan


def test_defect_12_a_private_plan_stays_private(remote: type[FakeRemote], run: Run) -> None:
    for _ in range(2):
        assert run("tune", "t.py", "--study", ":memory:", "--trials", "3")[0] == 0
        assert Path("autofit.yaml").stat().st_mode & 0o077 in (0o044, 0)
        Path("autofit.yaml").chmod(0o600)
    assert run("tune", "t.py", "--study", ":memory:", "--trials", "3")[0] == 0
    assert Path("autofit.yaml").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("everywhere", [False, True])
def test_defect_12_the_result_is_printed_where_the_plan_cannot_be_saved(
    everywhere: bool, remote: type[FakeRemote], run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    save = planfile.save

    def full(answer: Any, path: str | Path, *, force: bool = False) -> None:
        if everywhere or str(path) == "autofit.yaml":
            raise PlanFileError(f"{path} could not be written: found No space left on device; expected space.")
        save(answer, path, force=force)

    monkeypatch.setattr(planfile, "save", full)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    words = ("tune", "t.py", "--study", "s.journal", "--trials", "3")
    code, out, err = run(*words)
    assert code == 2
    assert out.startswith(("Use micro batch", "Keep your own"))
    assert "No space left on device" in err
    assert not Path("autofit.yaml").exists()
    if everywhere:
        assert "The trials are in the study" in err
        assert "same command again to get the plan" in err
    else:
        path = err.rpartition("autofit show ")[2].partition("`")[0]
        assert planfile.load(path).plan
    code, out, _ = run(*words, "--json")
    assert code == 2
    assert json.loads(out)["schema"] == "autofit.plan/1"  # one document, and it is the result
