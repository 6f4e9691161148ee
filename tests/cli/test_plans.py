"""Commands that read plans and studies: `show`, `diff`, `report`, `export`."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
import yaml

from autofit import exporters, planfile
from autofit.cli import main
from autofit.core.errors import (
    NothingFits,
    UserCodeError,
)
from autofit.reports.markdown import MARK
from tests.cli.conftest import FakeRemote, Run
from tests.conformance.test_exporters import OWN, answer
from tests.recorded import recorded_search
from tests.study.samples import storage_at


@pytest.mark.fault("F59")
def test_control_sequences_of_a_plan_file_do_not_reach_the_terminal(remote: type[FakeRemote], run: Run) -> None:
    run("tune", "t.py", "--study", ":memory:", "--trials", "3")
    data = yaml.safe_load(Path("autofit.yaml").read_text())
    data["caveats"] = ["\x1b]0;title\x07 \x1b[2Jgone \x9b2J"]
    data["environment"]["device_name"] = "\x1b[31mred"
    Path("evil.yaml").write_text(yaml.safe_dump(data))
    code, out, err = run("show", "evil.yaml")
    assert code == 0
    assert "red" in out
    assert not {"\x1b", "\x07", "\x9b"} & set(out + err)
    code, out, err = run("export", "evil.yaml")
    assert code == 0
    assert not {"\x1b", "\x07", "\x9b"} & set(out + err)


def test_defect_15_what_is_unseen_reaches_the_terminal_neither_as_json_nor_in_errors(
    remote: type[FakeRemote], run: Run
) -> None:
    unseen = {"\x9b", "\u202e", "\u2066", "\x7f"}
    run("tune", "t.py", "--study", ":memory:", "--trials", "3")
    data = yaml.safe_load(Path("autofit.yaml").read_text())
    data["caveats"] = ["\x9b2J\u202egone\u2066\x7f"]
    Path("evil.yaml").write_text(yaml.safe_dump(data))
    code, out, err = run("show", "evil.yaml", "--json")
    assert code == 0
    assert json.loads(out)["caveats"] == data["caveats"]
    assert not unseen & set(out + err)
    for words in (
        ("show", "no\u202e\x9bne.yaml"),
        ("tune", "t.py", "--searcher", "\u202e\x9bquick"),
        ("tune", "t.py", "--numerics", "\u202e\x9bbold"),
        ("\u202e\x9btune",),
        ("tune", "t.py", "-o", "\u202e\x9b/a.yaml"),
    ):
        for more in ((), ("--json",)):
            code, out, err = run(*words, *more)
            assert code == 2
            assert err
            assert not unseen & set(out + err)
    remote.fails = UserCodeError("your code failed: \u202eboom", "ValueError: \u202e\x9bboom")
    _, out, err = run("tune", "t.py", "--json", "--study", ":memory:")
    assert "boom" in err
    assert not unseen & set(out + err)


def test_a_study_is_not_a_plan_file_and_the_command_that_shows_it_is_named(remote: type[FakeRemote], run: Run) -> None:
    run("tune", "t.py", "--study", "study.journal", "--trials", "3")
    code, out, err = run("show", "study.journal")
    assert (code, out) == (2, "")
    assert "study.journal: found a study (a journal of trials)" in err
    assert "`autofit report study.journal`" in err


def plans(run: Run) -> None:
    """Writes autofit.yaml, and other.yaml with half its throughput."""
    run("tune", "t.py", "--study", ":memory:", "--trials", "3")
    data = yaml.safe_load(Path("autofit.yaml").read_text())
    data["rate_per_s"] /= 2
    Path("other.yaml").write_text(yaml.safe_dump(data))


def test_the_second_file_is_compared_with_the_first(remote: type[FakeRemote], run: Run) -> None:
    plans(run)
    code, out, err = run("diff", "autofit.yaml", "other.yaml")
    assert (code, err) == (0, "")
    assert out.startswith("The plans are the same. The second ran at 0.50x of the first one's throughput")
    assert "-50%" in out
    code, out, _ = run("diff", "other.yaml", "autofit.yaml", "--json")
    found = json.loads(out)
    assert (code, "2.00x" in found["verdict"]) == (0, True)
    assert found["differences"][0]["change"] == "+100%"


def test_a_file_that_is_missing_or_no_plan_is_named(remote: type[FakeRemote], run: Run) -> None:
    plans(run)
    Path("broken.yaml").write_text("plan: 3")
    for name in ("missing.yaml", "broken.yaml"):
        code, out, err = run("diff", "autofit.yaml", name)
        assert (code, out) == (2, "")
        assert name in err


@pytest.mark.fault("F59")
def test_control_sequences_of_a_strangers_file_do_not_reach_the_terminal(remote: type[FakeRemote], run: Run) -> None:
    plans(run)
    data = yaml.safe_load(Path("other.yaml").read_text())
    data["environment"]["settings"] = {"allocator": "\x1b]0;title\x07\x9b2J"}
    Path("other.yaml").write_text(yaml.safe_dump(data))
    code, out, err = run("diff", "autofit.yaml", "other.yaml")
    assert code == 0
    assert "allocator" in out
    assert not {"\x1b", "\x07", "\x9b"} & set(out + err)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a working directory of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def tuned(folder: None) -> Path:
    """A study and its plan file in the working directory."""
    result = recorded_search("study.journal")
    assert result.answer is not None
    planfile.save(result.answer, "autofit.yaml")
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


def test_defect_12_an_export_replaces_an_earlier_export_and_nothing_else(remote: type[FakeRemote], run: Run) -> None:
    run("tune", "t.py", "--study", ":memory:", "--trials", "3")
    Path("train.py").write_text("import torch\n")
    code, out, err = run("export", "-o", "train.py")
    assert (code, out) == (2, "")
    assert "found a file there that is not an autofit export; expected" in err
    assert "--force" in err
    assert Path("train.py").read_text() == "import torch\n"
    assert run("export", "-o", "train.py", "--force")[0] == 0
    text = Path("train.py").read_text()
    assert text.startswith("# autofit plan: ")
    Path("train.py").chmod(0o600)
    assert run("export", "-o", "train.py")[0] == 0
    assert Path("train.py").read_text() == text
    assert Path("train.py").stat().st_mode & 0o777 == 0o600
    for path in (".", "missing/loop.py"):
        code, _, err = run("export", "-o", path, "--force")
        assert code == 2
        assert "Choose another path" in err
    assert sorted(path.name for path in Path().iterdir()) == ["autofit.yaml", "train.py"]


def test_how_a_trainer_differs_from_the_plan_is_said_on_the_terminal_and_as_json(
    remote: type[FakeRemote], run: Run
) -> None:
    found = answer(OWN.replace(accumulation_steps=2), settings={"weighing": "batch['labels'] != -100"})
    planfile.save(found, Path("autofit.yaml"))
    code, out, err = run("export", "--to", "deepspeed", "--json")
    (said,) = json.loads(out)["warnings"]
    assert "DeepSpeed weights those of a step alike" in said
    assert (code, err) == (0, f"autofit: {said}\n")


def test_the_help_names_the_formats(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    named = " ".join(capsys.readouterr().out.split())
    listed = named.partition("export format: ")[2].partition(" or one that another package adds")[0].split(", ")
    assert [name.strip(",") for name in listed] == [exporter.name for exporter in exporters.BUILT_IN]
