"""`autofit report`: of a plan, a study, and what is neither; without torch and within a second."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest

from autofit import planfile
from autofit.core.errors import NothingFits
from autofit.reports.markdown import MARK
from tests.cli.conftest import Run
from tests.recorded import recorded_search
from tests.study.samples import storage_at


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a working directory of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def tuned(folder: None) -> Path:
    """A study and its plan file in the working directory."""
    result = recorded_search("study.journal")
    assert result.recommendation is not None
    planfile.save(result.recommendation, "autofit.yaml")
    return Path()


def test_a_plan_becomes_markdown_and_json(tuned: Path, run: Run) -> None:
    code, out, err = run("report", "-o", "a.md")
    assert (code, out, err) == (0, "", "autofit: report written to a.md\n")
    assert Path("a.md").read_text().startswith(MARK)
    assert run("report", "autofit.yaml", "-o", "a.json", "--quiet") == (0, "", "")
    found = json.loads(Path("a.json").read_text())
    assert (found["schema"], found["plan_file"], found["missing"]) == ("autofit.report/1", "autofit.yaml", [])
    assert "autofit.load('autofit.yaml')" in found["apply_code"]
    assert found["command"] == "autofit tune train.py:make_resnet"


def test_a_study_goes_to_stdout_as_markdown_or_json(tuned: Path, run: Run) -> None:
    code, out, err = run("report", "study.journal", "-o", "-")
    assert (code, out[: len(MARK)], err) == (0, MARK, "")
    for words in (("--format", "json"), ("--json",)):
        code, out, err = run("report", "study.journal", "-o", "-", *words)
        assert (code, err) == (0, "")
        assert json.loads(out)["headline"].endswith(" more samples per second.")


def test_json_says_what_was_written(tuned: Path, run: Run) -> None:
    Path("study.journal").unlink()
    code, out, _ = run("report", "-o", "a.md", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["output"], found["format"]) == ("a.md", "md")
    assert "found no file, or an empty one" in found["missing"][0]
    assert "autofit: not in the report: plans that were not measured" in run("report", "-o", "a.md")[2]


def test_a_search_without_a_feasible_plan_has_a_report(run: Run) -> None:
    with pytest.raises(NothingFits):
        recorded_search("study.journal", memory_bytes=2**20)
    code, out, _ = run("report", "study.journal", "-o", "-")
    assert code == 0
    assert "**No plan is recommended: no plan fits the budget of 1 MiB" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("absent.yaml",), "cannot read the plan file absent.yaml"),
        (("new.yaml",), "found schema autofit.plan/2, written by a newer autofit"),
        (("absent.journal",), "absent.journal cannot be shown: found no file"),
        (("empty.journal",), "found no file, or an empty one"),
        (("study.journal", "--name", "other"), "has no search 'other'"),
        (
            ("autofit.yaml", "--name", "other"),
            "found a name ('other') with the plan file autofit.yaml; expected a study",
        ),
        (("autofit.yaml", "-o", "missing/a.md"), "missing/a.md was not written: No such file"),
        (("autofit.yaml", "-o", "mine.md"), "found a file there that is not an autofit report"),
        (("autofit.yaml", "-o", "a.pdf"), "found the suffix '.pdf'"),
        (("autofit.yaml", "-o", "."), "expected one of .html"),
    ],
)
def test_what_cannot_be_read_or_written_is_a_usage_error(
    tuned: Path, run: Run, words: tuple[str, ...], message: str
) -> None:
    Path("new.yaml").write_text("schema: autofit.plan/2\n")
    Path("empty.journal").touch()
    Path("mine.md").write_text("# mine\n")
    words = words if "-o" in words else (*words, "-o", "a.md")
    code, out, err = run("report", *words)
    assert (code, out) == (2, "")
    assert message in err
    code, out, _ = run("report", *words, "--json")
    assert (code, json.loads(out)["error"]["exit_code"]) == (2, 2)
    assert Path("mine.md").read_text() == "# mine\n"
    assert not Path("a.md").exists()


def test_force_replaces_another_file(tuned: Path, run: Run) -> None:
    Path("mine.md").write_text("# mine\n")
    assert run("report", "-o", "mine.md", "--force")[0] == 0
    assert Path("mine.md").read_text().startswith(MARK)


def test_a_report_does_not_load_torch(tuned: Path) -> None:
    code = (
        "import sys; from autofit.cli import main; assert main(['report', 'study.journal', '-o', 'b.md', '-q']) == 0;"
    )
    code += "print([m for m in ('torch', 'sqlalchemy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_500_trials_take_about_a_second(tuned: Path) -> None:
    (name,) = optuna.get_all_study_names(storage_at(Path("study.journal")))
    study = optuna.load_study(study_name=name, storage=storage_at(Path("study.journal")))
    first = study.get_trials()[0]
    study.add_trials([first] * 500)
    began = time.perf_counter()
    script = (
        "import sys; from autofit.cli import main; sys.exit(main(['report', 'study.journal', '-o', 'b.json', '-q']))"
    )
    subprocess.run([sys.executable, "-c", script], check=True, env=os.environ)
    elapsed_s = time.perf_counter() - began
    assert elapsed_s < 6  # on a machine that others load; 1 s alone
