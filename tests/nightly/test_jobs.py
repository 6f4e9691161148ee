"""A jobs file: one bad job stops no other, and each error says file, line, what was found and what was expected."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from autofit.cli import parser, tune
from autofit.core.errors import UsageError
from autofit.nightly import jobs as module
from autofit.nightly.jobs import FOLDER, Job, JobsFile, read_jobs, shown
from scripts.schemas import of_jobs
from tests.nightly.history_samples import FULL, jobs_file

GOOD = "  - {name: good, workload: a.py, plan: good.yaml}\n"


def test_a_full_file_is_read(tmp_path: Path) -> None:
    found = read_jobs(jobs_file(tmp_path, FULL, ""))
    gpt, resnet = found.jobs
    assert (found.path, found.problems, found.time_s) == (tmp_path / "jobs.yaml", (), 7200.0)
    assert found.history == str(tmp_path / ".autofit" / "study.db")
    assert (gpt.device, gpt.time_s, gpt.accept, gpt.on_regression) == (
        "cuda:0",
        600.0,
        "auto",
        ("./notify", "--team", "gpt"),
    )
    assert (resnet.device, resnet.time_s, resnet.accept, resnet.on_regression) == ("cuda", None, "propose", ())


def test_a_job_may_take_its_workload_from_the_defaults_and_replaces_whole_values(tmp_path: Path) -> None:
    text = (
        "defaults: {workload: train.py, args: {depth: 4, width: 8}}\njobs:\n"
        "  - {name: a, plan: a.yaml}\n  - {name: b, plan: b.yaml, args: {depth: 2}}\n"
    )
    a, b = read_jobs(jobs_file(tmp_path, text)).jobs
    assert (a.workload, a.args, b.args) == (str(tmp_path / "train.py"), {"depth": 4, "width": 8}, {"depth": 2})


BAD = {
    "{name: bad, workload: a.py, plan: b.yaml, time: 10 minutess}": [
        "line 3: job bad, `time`: found '10 minutess'; expected a time such as"
    ],
    "{name: bad, workload: a.py, plan: b.yaml, memory: 1e400GiB, time: 1e400s}": [
        "line 3: job bad, `memory`: found '1e400GiB'; expected an amount with its unit",
        "line 3: job bad, `time`: found '1e400s'; expected a time",
    ],
    "{name: bad, workload: a.py, plan: b.yaml, memory: 20}": [
        'line 3: job bad, `memory`: found 20; expected an amount with its unit such as "20GiB", or a fraction'
    ],
    "{name: bad, workload: a.py, plan: b.yaml, globalbatch: 4}": [
        "line 3: job bad: found the unknown key 'globalbatch'; expected a known key; did you mean `global_batch`?"
    ],
    "{name: bad, workload: a.py, plan: b.yaml, zzz: 4}": [
        "found the unknown key 'zzz'; expected one of workload, args"
    ],
    "{name: bad, workload: a.py, plan: b.yaml, accept: often}": ["found 'often'; expected 'propose' or 'auto'"],
    "{name: bad, workload: a.py, plan: b.yaml, global_batch: 0}": [
        "`global_batch`: found 0; expected a number greater"
    ],
    "{name: bad, workload: a.py, plan: b.yaml, device: 0}": ["`device`: found 0; expected a text; quote a text that"],
    "{name: bad, workload: a.py, plan: b.yaml, on_regression: mail}": [
        "`on_regression`: found 'mail'; expected a list"
    ],
    "{name: bad, workload: a.py, plan: b.yaml, on_regression: [mail, 3]}": [
        "`on_regression.1`: found 3; expected a text"
    ],
    "{name: bad, workload: a.py, plan: b.yaml, args: {a b: 4}}": ["found the name 'a b'; expected names of arguments"],
    "{name: bad/er, workload: a.py, plan: b.yaml}": ["job bad/er, `name`: found 'bad/er'; expected 1 to 64 letters"],
    "{name: 3, workload: a.py, plan: b.yaml}": ["job 1, `name`: found 3; expected a text"],
    "{workload: a.py}": [
        "line 3: job 1: found no `name`; expected that key",
        "job 1: found no `plan`; expected that key",
    ],
    "{name: bad, plan: b.yaml}": ["job bad: found no `workload`; expected that key"],
    "{name: bad, workload: a.py, plan: ''}": ["`plan`: found ''; expected a non-empty text"],
    "just a text": ["line 3: job 1: found 'just a text'; expected a mapping with `workload`, `name`, `plan`"],
    "[a, b]": ["job 1: found a list; expected a mapping"],
    "": ["job 1: found nothing; expected a mapping"],
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_job_is_a_problem_and_the_others_are_read(tmp_path: Path, text: str) -> None:
    path = jobs_file(tmp_path, f"jobs:\n  - {text}\n{GOOD}")
    found = read_jobs(path)
    assert [job.name for job in found.jobs] == ["good"]
    assert len(found.problems) == len(BAD[text])
    for problem, words in zip(found.problems, BAD[text], strict=True):
        assert problem.startswith(f"{path}, line 3: ")
        assert words in problem


def test_a_job_that_is_no_mapping_may_leave_out_what_the_defaults_give(tmp_path: Path) -> None:
    found = read_jobs(jobs_file(tmp_path, f"defaults: {{workload: a.py}}\njobs:\n  - just a text\n{GOOD}"))
    assert found.problems[0].endswith("found 'just a text'; expected a mapping with `name`, `plan`")


def test_each_error_of_a_job_has_its_line(tmp_path: Path) -> None:
    text = "jobs:\n  - name: bad\n    workload: a.py\n    time: soon\n    plan: b.yaml\n    memory:\n      much\n"
    found = read_jobs(jobs_file(tmp_path, text))
    assert found.jobs == ()
    assert [re.findall(r"line (\d+): job bad, `(\w+)`", each) for each in found.problems] == [
        [("5", "time")], [("7", "memory")]
    ]  # fmt: skip


def test_a_job_with_very_many_errors_does_not_hide_the_others(tmp_path: Path) -> None:
    many = "".join(f"    key{number}: 1\n" for number in range(500))
    found = read_jobs(jobs_file(tmp_path, f"jobs:\n  - name: bad\n{many}{GOOD}"))
    assert len(found.problems) == module.MOST_PROBLEMS + 1
    assert "more errors" in found.problems[-1]
    assert [job.name for job in found.jobs] == ["good"]


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (
            "{name: good, workload: a.py, plan: b.yaml}",
            "found the name of the job in line 3 again; expected a name that",
        ),
        ("{name: GOOD, workload: a.py, plan: b.yaml}", "found the name of the job in line 3 again"),
        (
            "{name: other, workload: a.py, plan: x/../good.yaml}",
            "found the plan of the job in line 3 again; expected a plan",
        ),
    ],
)
def test_two_jobs_have_neither_name_nor_plan_in_common(tmp_path: Path, second: str, words: str) -> None:
    found = read_jobs(jobs_file(tmp_path, f"jobs:\n{GOOD}  - {second}\n"))
    assert [job.name for job in found.jobs] == ["good"]
    (problem,) = found.problems
    assert "line 4: " in problem
    assert words in problem


def test_the_name_of_a_bad_job_is_taken_too(tmp_path: Path) -> None:
    found = read_jobs(jobs_file(tmp_path, f"jobs:\n  - {{name: good, workload: a.py, plan: b.yaml, time: x}}\n{GOOD}"))
    assert found.jobs == ()
    assert len(found.problems) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: found nothing; expected a mapping with `schema`, `jobs`"),
        ("- a\n", "found a list; expected a mapping"),
        ("jobs: []\n", "line 1: found no `schema`; expected `schema: autofit.jobs/1`"),
        ("# x\nschema: autofit.plan/1\n", "line 2: `schema`: found 'autofit.plan/1'; expected `autofit.jobs/1`"),
        ("schema: autofit.jobs/2\n", "expected `autofit.jobs/1`; a newer schema needs a newer autofit"),
        ("autofit.jobs/1\n", "found no `jobs`; expected that key"),
        ("autofit.jobs/1\njobs: []\n", "line 2: `jobs`: found an empty list; expected at least one job"),
        ("autofit.jobs/1\njobs: {gpt: {}}\n", "line 2: `jobs`: found a mapping; expected a list"),
        ("autofit.jobs/1\ntiem: 2h\njobs: [1]\n", "line 2: found the unknown key 'tiem'; expected a known key; did"),
        ("autofit.jobs/1\ntime: 0\njobs: [1]\n", "line 2: `time`: found 0; expected a time such as"),
        ("autofit.jobs/1\ndefaults: {tme: 3}\njobs: [1]\n", "found the unknown key 'tme'; expected a known key; did"),
        ("autofit.jobs/1\ndefaults:\n  time: x\njobs: [1]\n", "line 3: `defaults.time`: found 'x'; expected a time"),
        ("autofit.jobs/1\ndefaults: {plan: a}\njobs: [1]\n", "found the unknown key 'plan'; expected one of"),
        ("autofit.jobs/1\ndefaults: [1]\njobs: [1]\n", "`defaults`: found a list; expected a mapping"),
        ("autofit.jobs/1\nhistory: 3\njobs: [1]\n", "line 2: `history`: found 3; expected a path, a database URL"),
        ("autofit.jobs/1\nhistory: ':memory:'\njobs: [1]\n", "a history in memory would end with its process"),
        ("autofit.jobs/1\nhistory: {env: A}\njobs: [1]\n", "found a mapping; expected a path, a"),
        ("autofit.jobs/1\njobs: [\n", "line 3: "),
        ("autofit.jobs/1\njobs: [1]\njobs: [2]\n", "line 3: found the key 'jobs' twice"),
        ("a: &x [1]\nb: *x\n", "line 2: found an alias"),
        ("a: !!python/object:os.system x\n", "line 1: found the tag"),
        ("a: \t\n", "is not valid YAML"),
        ("[" * 20000, "not valid YAML"),
        ("x" * (2**20 + 1), "found more than 1048576 bytes"),
        (b"a: 1\nb: \xff\n", "line 2: found bytes that are not UTF-8"),
    ],
)  # fmt: skip
def test_an_error_outside_the_jobs_is_refused(tmp_path: Path, text: str | bytes, words: str) -> None:
    path = tmp_path / "jobs.yaml"
    if isinstance(text, str):
        text = re.sub("^autofit.jobs", "schema: autofit.jobs", text).encode()
    path.write_bytes(text)
    with pytest.raises(UsageError) as caught:
        read_jobs(path)
    message = str(caught.value)
    assert words in message
    assert message.startswith(str(path))
    assert len(message) < 600


def test_all_errors_outside_the_jobs_are_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"(?s)line 2: `time`.*\n.*line 3: `defaults.memory`"):
        read_jobs(jobs_file(tmp_path, f"time: x\ndefaults: {{memory: 3}}\njobs:\n{GOOD}"))


def test_a_missing_file_is_refused_with_a_way_out(tmp_path: Path) -> None:
    for path, found in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "Is a directory"), ("a\0b", "null byte")):
        with pytest.raises(UsageError, match=rf": .*{found}.*; expected a YAML file.*autofit nightly init"):
            read_jobs(path)


def test_a_defaults_key_with_comments_only_is_empty(tmp_path: Path) -> None:
    assert len(read_jobs(jobs_file(tmp_path, f"defaults:\n  # time: 3h\njobs:\n{GOOD}")).jobs) == 1


SECRET = "postgresql+psycopg://me:hunter2@host/db"


def history(folder: Path, text: str) -> str:
    return read_jobs(jobs_file(folder, f"history: {text}\njobs:\n{GOOD}")).history


def test_a_history_is_a_path_a_url_or_where_a_url_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOFIT_HISTORY", SECRET)
    (tmp_path / "url").write_text(f"{SECRET}\n")
    assert history(tmp_path, "env:AUTOFIT_HISTORY") == history(tmp_path, "file:url") == SECRET
    assert history(tmp_path, SECRET) == SECRET
    assert history(tmp_path, "file:jobs.yaml") != SECRET
    assert history(tmp_path, "night.journal") == str(tmp_path / "night.journal")
    assert history(tmp_path, "sqlite:///night.db?timeout=3") == f"sqlite:///{tmp_path}/night.db?timeout=3"
    assert history(tmp_path, "sqlite:////abs/night.db") == "sqlite:////abs/night.db"
    monkeypatch.setenv("AUTOFIT_HISTORY", "night.journal")
    assert history(tmp_path, "env:AUTOFIT_HISTORY") == str(tmp_path / "night.journal")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "env:AUTOFIT_UNSET",
            "found the environment variable AUTOFIT_UNSET, which is not set or is empty; expected a ",
        ),
        (
            "file:absent",
            "absent, which cannot be read .No such file or directory.; expected a path or a database URL",
        ),
        ("file:empty", "empty, which is empty"),
        ("file:bytes", "bytes, which is not UTF-8 text"),
        ("file:/dev/zero", "/dev/zero, which cannot be read \\(a device or a pipe\\)"),
        ('"file:a\\0b"', "expected a path, a database URL"),
        ("file:~no-such-user/x", "expected a path that does not begin with"),
        ("{env: A}", "expected a path, a database URL"),
        ("''", "expected a path, a database URL"),
    ],
)
def test_a_history_that_cannot_be_determined_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.delenv("AUTOFIT_UNSET", raising=False)
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(UsageError, match=words):
        history(tmp_path, text)


def test_no_message_shows_a_secret(tmp_path: Path) -> None:
    for text in (f"time: {SECRET}", f"defaults: {{device: [{SECRET}]}}", f"history: [{SECRET}]"):
        with pytest.raises(UsageError) as caught:
            read_jobs(jobs_file(tmp_path, f"{text}\njobs:\n{GOOD}"))
        assert "hunter2" not in str(caught.value)
    found = read_jobs(jobs_file(tmp_path, f"jobs:\n  - {{name: x, accept: '{SECRET}', memory: '{SECRET}'}}\n{GOOD}"))
    assert "hunter2" not in str(found.problems)


def test_the_schema_describes_each_key() -> None:
    published = of_jobs()
    assert published["required"] == ["schema", "jobs"]
    assert published["additionalProperties"] is False
    job = published["$defs"]["Job"]
    assert sorted(job["required"]) == ["name", "plan"]
    assert {"name", "plan", *published["$defs"]["JobDefaults"]["properties"]} == job["properties"].keys()
    for part in (published, job, published["$defs"]["JobDefaults"]):
        assert [name for name, each in part["properties"].items() if not each.get("description")] == []
    assert [each for each in job["properties"] if each.endswith("_s")] == []


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_file_is_read_or_refused_and_nothing_else(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    pieces = [b": ", b"\n", b"  ", b"- ", b"{", b"}", b"[", b"]", b"'", b'"', b"\0", b"\xff", b"# ", b"null", b"9" * 30]
    pieces += ["\u2028é".encode(), b"&a ", b"*a", b"!!x ", b"~", b".nan", b"-1", b'"\\ud800"', b'"\\0"', b"? "]
    for _ in range(150):
        data = bytearray(FULL.encode())
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(data))
            data[at : at + chance.choice((0, 1, 8))] = chance.choice(pieces)
        path = tmp_path / "jobs.yaml"
        path.write_bytes(data)
        try:
            found = read_jobs(path)
        except UsageError:
            continue
        assert len({job.name for job in found.jobs}) == len(found.jobs)
        assert all(str(path) in problem and "\n" not in problem for problem in found.problems)
        for job in found.jobs:
            json.dumps(job.target.request(enforce=False))


def test_neither_torch_nor_optuna_is_loaded(tmp_path: Path) -> None:
    path = jobs_file(tmp_path, FULL, "")
    code = (
        "import sys; from autofit.nightly.jobs import read_jobs; print(len(read_jobs(sys.argv[1]).jobs));"
        "print([m for m in ('torch', 'optuna', 'sqlalchemy', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["2", "[]"]


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
    assert job().target.request(enforce=False)["options"] == {"enforce": False, "own_process": True}


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
    assert "hunter2" not in repr(found)
    assert "hunter2" not in str(found)


def test_what_belongs_to_a_file_is_beside_it() -> None:
    found = JobsFile(path=Path("/work/night/jobs.yaml"), history="x.db")
    assert found.folder == Path("/work/night")
    assert found.mark == Path("/work/night/.autofit/jobs.yaml.night")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nothing"), (3, "3"), (True, "True"), ("a\nb", r"'a\nb'"), ({"a": 1}, "a mapping"),
        ([1, 2], "a list"), ("x" * 99, f"'{'x' * 59} ..."),
        ("mysql://me:hunter2@h/d" + "x" * 99, "'mysql://***@h/d" + "x" * 44 + " ..."),
        ("\x1b[31mred", r"'\x1b[31mred'"), ("a\u202eb", r"'a\u202eb'"),
    ],
)  # fmt: skip
def test_a_value_is_shown_short_and_without_secrets(value: object, text: str) -> None:
    assert shown(value) == text
