"""The first jobs file reads back, and so does each example in its comments."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofit.nightly.first_jobs_file import first_jobs_file
from autofit.nightly.job import JobDefaults
from autofit.nightly.jobs_file import Document, read_jobs
from tests.nightly.history_samples import jobs_file

TARGET = "train.py:make_workload"
WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=120)


def test_it_holds_one_job_and_nothing_else(tmp_path: Path) -> None:
    found = read_jobs(jobs_file(tmp_path, first_jobs_file(TARGET), ""))
    (job,) = found.jobs
    assert found.problems == ()
    assert (job.name, job.workload, job.plan) == ("train", TARGET, tmp_path / "plans" / "train.yaml")
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
    assert (found.jobs[0].workload, found.jobs[0].device) == (f"/{target}", values["device"])
