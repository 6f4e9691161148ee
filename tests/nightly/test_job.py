"""A job becomes what `autofit tune` opens for the same options, with paths from the folder of its file."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from autofit.cli import parser, tune
from autofit.nightly.job import FOLDER, Job, JobsFile

MINIMAL: dict[str, Any] = {"name": "gpt", "workload": "train.py:make_workload", "plan": "plans/gpt.yaml"}


def job(folder: Path = Path("/work"), **fields: Any) -> Job:
    return Job.model_validate({**MINIMAL, **fields}, context={FOLDER: folder})


def test_a_job_has_the_target_of_the_same_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = [
        "tune", f"{tmp_path}/train.py:make_workload", "--arg", "depth=4", "--device", "cuda:0", "--global-batch", "256",
        "--max-global-batch", "512", "--memory", "20GiB", "--numerics", "exact", "--mode", "inference",
        "--max-grad-norm", "1.5", "--only", "batching,precision", "--without", "checkpointing",
    ]  # fmt: skip
    found = job(
        tmp_path, args={"depth": 4}, device="cuda:0", global_batch=256, max_global_batch=512, memory="20GiB",
        numerics="exact", mode="inference", max_grad_norm=1.5, strategies=["batching", "precision"],
        without=["checkpointing"],
    )  # fmt: skip
    assert found.target == tune._target(parser().parse_args(words))


def test_what_a_job_leaves_out_is_left_to_the_workload() -> None:
    given = parser().parse_args(["tune", "/work/train.py:make_workload"])
    assert job().target == tune._target(given)
    assert job().target.request(enforce=False, memory_bytes=None)["options"] == {"enforce": False, "own_process": True}


@pytest.mark.parametrize(
    ("workload", "name"),
    [
        ("train.py:make_workload", "/work/train.py:make_workload"),
        ("../train.py", "/train.py"),
        ("/abs/train.py:f", "/abs/train.py:f"),
        ("dir/train:f", "/work/dir/train:f"),
        ("package.module:f", "package.module:f"),
        ("package.module", "package.module"),
    ],
)
def test_a_file_is_found_from_the_folder_of_the_jobs_file_and_a_module_on_the_import_path(
    workload: str, name: str
) -> None:
    assert job(workload=workload).target.name == name
    assert job(workload=workload).workload == workload


def test_paths_are_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert job().plan == Path("/work/plans/gpt.yaml")
    assert job(plan="../a.yaml").plan == Path("/a.yaml")
    assert job(plan="~/a.yaml").plan == Path("/home/me/a.yaml")
    assert job(workload="~/train.py:f").target.name == "/home/me/train.py:f"


def test_quantities_are_those_of_the_command_line() -> None:
    found = job(time="1.5min", memory=0.5)
    assert (found.time_s, found.memory) == (90.0, 0.5)
    assert (job(time=90).time_s, job(time=None).time_s) == (90.0, None)


@pytest.mark.parametrize(
    "fields",
    [
        {"memory": 20}, {"memory": True}, {"memory": 1.5}, {"memory": float("nan")}, {"memory": [1]},
        {"time": "soon"}, {"time": 0}, {"time": True}, {"time": float("inf")}, {"time": {}},
        {"global_batch": 0}, {"global_batch": "256"}, {"global_batch": True}, {"global_batch": 2.0},
        {"max_grad_norm": True}, {"max_grad_norm": -1}, {"max_grad_norm": float("inf")},
        {"plan": ""}, {"plan": "a\0b"}, {"plan": 3}, {"plan": "~no-such-user/x"}, {"plan": "\ud800"}, {"plan": None},
        {"workload": ""}, {"workload": " "}, {"workload": ":f"}, {"workload": None},
        {"name": ""}, {"name": "a b"}, {"name": "a/b"}, {"name": "../a"}, {"name": "a\n"}, {"name": "x" * 65},
        {"args": {"a b": 1}}, {"args": {1: 2}}, {"args": []}, {"accept": "yes"}, {"objective": None},
        {"on_regression": "./notify"}, {"on_regression": ["a\0"]}, {"strategies": "batching"}, {"time_budget": 3},
    ],
)  # fmt: skip
def test_values_that_a_night_could_not_use_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        job(**fields)


def test_a_history_is_not_shown_with_its_secrets() -> None:
    found = JobsFile(path=Path("/work/jobs.yaml"), history="postgresql+psycopg://me:hunter2@host/db", jobs=(job(),))
    assert found.history_shown == "postgresql+psycopg://***@host/db"
    assert "hunter2" not in repr(found)
    assert "hunter2" not in str(found)


def test_what_belongs_to_a_file_is_beside_it() -> None:
    found = JobsFile(path=Path("/work/night/jobs.yaml"), history="x.db")
    assert found.folder == Path("/work/night")
    assert found.aside == Path("/work/night/.autofit/jobs.yaml.aside.jsonl")
