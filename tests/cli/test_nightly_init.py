"""`autofit nightly init`: a first jobs file that the night reads."""

import json
from pathlib import Path

import pytest

from autofit.nightly.jobs_file import read_jobs
from tests.cli.conftest import Run


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
        (("-o", "nowhere/jobs.yaml"), "expected a directory that exists"),
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
