"""`autofit nightly init`: the first jobs file, and that it and each example in its comments read back."""

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofit.cli.nightly import first_jobs_file
from autofit.nightly.jobs import Document, JobDefaults, read_jobs
from tests.cli.conftest import Run
from tests.nightly.history_samples import jobs_file


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_file_is_one_that_a_night_reads(run: Run, tmp_path: Path) -> None:
    words = ["--device", "cpu", "--memory", "64MiB", "--global-batch", "64", "--time", "10min", "--name", "mlp"]
    code, out, err = run("nightly", "init", "src/train.py:make", "-o", "nightly.yaml", *words)
    assert (code, out) == (0, "")
    assert "jobs file written to nightly.yaml" in err
    (job,) = read_jobs("nightly.yaml").jobs
    assert (job.name, job.device, job.memory, job.global_batch, job.time_s) == ("mlp", "cpu", "64MiB", 64, 600.0)
    assert job.target.name == f"{tmp_path}/src/train.py:make"


def test_a_file_in_another_folder_names_the_workload_from_there(run: Run, tmp_path: Path) -> None:
    Path("ci").mkdir()
    assert run("nightly", "init", "train.py:make", "-o", "ci/jobs.yaml", "--memory", "0.5")[0] == 0
    (job,) = read_jobs("ci/jobs.yaml").jobs
    assert job.target.name == f"{tmp_path}/train.py:make"
    assert job.memory == 0.5


def test_a_workload_that_does_not_exist_yet_is_named(run: Run) -> None:
    said = "autofit: train.py does not exist: the job will fail until it does\n"
    assert said in run("nightly", "init", "train.py:make", "-o", "jobs.yaml")[2]
    Path("train.py").touch()
    assert said not in run("nightly", "init", "train.py:make", "-o", "jobs.yaml", "--force")[2]


def test_it_can_be_printed(run: Run) -> None:
    code, out, err = run("nightly", "init", "train.py", "-o", "-")
    assert (code, err) == (0, "")
    assert "schema: autofit.jobs/1" in out
    assert json.loads(run("nightly", "init", "train.py", "-o", "-", "--json")[1])["text"] == out
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--time", "soon"), "5min"),
        (("--memory", "20"), 'did you mean "20GiB"?'),
        (("-o", "nowhere/jobs.yaml"), "expected a directory that exists and has space"),
        (("-o", "."), "found something there"),
    ],
)
def test_usage_errors_write_nothing(words: tuple[str, ...], expected: str, run: Run) -> None:
    code, out, err = run("nightly", "init", "train.py", *words)
    assert (code, out) == (2, "")
    assert expected in err
    assert list(Path().iterdir()) == []


def test_an_existing_file_is_kept_unless_it_is_forced(run: Run) -> None:
    Path("jobs.yaml").write_text("mine")
    code, _, err = run("nightly", "init", "train.py")
    assert code == 2
    assert "--force" in err
    assert Path("jobs.yaml").read_text() == "mine"
    assert run("nightly", "init", "train.py", "--force")[0] == 0
    assert read_jobs("jobs.yaml").jobs


TARGET = "train.py:make_workload"
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=120)


def test_it_holds_one_job_and_nothing_else(tmp_path: Path) -> None:
    found = read_jobs(jobs_file(tmp_path, first_jobs_file(TARGET), ""))
    (job,) = found.jobs
    assert found.problems == ()
    assert (job.name, job.workload, job.plan) == ("train", f"{tmp_path}/{TARGET}", tmp_path / "plans" / "train.yaml")
    assert job.model_dump(exclude_unset=True).keys() == {"name", "workload", "plan"}
    assert found.history == str(tmp_path / ".autofit" / "study.journal")


def test_each_key_is_there_and_each_example_is_valid(tmp_path: Path) -> None:
    text = first_jobs_file(TARGET)
    examples = re.sub(r"^( *)# (\w+: )", r"\1\2", text, flags=re.MULTILINE)
    assert examples.count("\n") == text.count("\n")
    assert max(map(len, text.splitlines())) <= 120
    found = read_jobs(jobs_file(tmp_path, examples, ""))
    assert found.problems == ()
    given = found.jobs[0].model_fields_set
    assert given == {*JobDefaults.model_fields, "name", "plan"}
    assert all(
        f"\n# {each.alias or name}: " in text for name, each in Document.model_fields.items() if not each.is_required()
    )


def test_given_values_are_active(tmp_path: Path) -> None:
    values = {"args": {"depth": 4, "note": "yes: 'no'"}, "device": "cuda:0", "global_batch": 64, "memory": None}
    text = first_jobs_file(TARGET, name="gpt.2", given=values)
    (job,) = read_jobs(jobs_file(tmp_path, text, "")).jobs
    assert (job.name, job.args, job.device, job.global_batch) == ("gpt.2", values["args"], "cuda:0", 64)
    assert job.memory is None
    assert "# device" not in text


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("train.py", "train"), ("a/b-c.py:f", "b-c"), ("package.module:f", "module"), ("mod:f", "mod"),
        ("/x/.hidden.py:f", "hidden"), ("ein größer.py:f", "ein-gr-er"), ("дом.py:f", "job"),
        ("x" * 99 + ".py", "x" * 64),
    ],
)  # fmt: skip
def test_a_job_is_named_after_its_file(tmp_path: Path, target: str, name: str) -> None:
    (job,) = read_jobs(jobs_file(tmp_path, first_jobs_file(target), "")).jobs
    assert job.name == name


def test_a_relative_file_is_found_from_the_folder_of_the_jobs_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "night").mkdir()
    monkeypatch.chdir(tmp_path)
    for target in (TARGET, f"src/{TARGET}", f"{tmp_path}/{TARGET}"):
        (job,) = read_jobs(jobs_file(tmp_path / "night", first_jobs_file(target, folder="night"), "")).jobs
        assert job.target.name == f"{tmp_path / target}"
    (job,) = read_jobs(jobs_file(tmp_path / "night", first_jobs_file("a.b:f", folder="night"), "")).jobs
    assert job.target.name == "a.b:f"


@settings(max_examples=80, deadline=None)
@given(words=WORDS, device=WORDS)
def test_any_target_and_value_survive(tmp_path_factory: pytest.TempPathFactory, words: str, device: str) -> None:
    folder = tmp_path_factory.mktemp("first")
    target = f"m{words}:f"
    values = {"device": f"d{device}"}
    found = read_jobs(jobs_file(folder, first_jobs_file(f"/{target}", given=values), ""))
    assert found.problems == ()
    expected = f"{os.path.abspath(f'/m{words}')}:f"
    assert (found.jobs[0].workload, found.jobs[0].device) == (expected, values["device"])
