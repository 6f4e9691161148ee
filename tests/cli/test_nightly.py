"""`autofit nightly`: what it prints, its exit codes, its files, and one real run."""

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from autofit import planfile
from autofit.core.errors import UserCodeError
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.nightly import opening
from autofit.nightly.job import JobsFile
from autofit.nightly.jobs_file import read_jobs
from tests.cli.conftest import FakeRemote, Run
from tests.cli.processes import TARGETS, command, environment
from tests.nightly.benches import calm, faster, recommended

JOBS = """\
schema: autofit.jobs/1
history: study.journal
jobs:
  - {name: gpt, workload: train.py, plan: gpt.yaml}
  - {name: bert, workload: train.py, plan: bert.yaml}
"""


@pytest.fixture
def jobs(remote: type[FakeRemote], monkeypatch: pytest.MonkeyPatch) -> type[FakeRemote]:
    """Two jobs with accepted plans, on a simulated bench."""
    monkeypatch.setattr(opening, "RemoteBench", remote)
    remote.bench = calm()
    Path("jobs.yaml").write_text(JOBS)
    for name in ("gpt", "bert"):
        planfile.save(recommended(remote.bench, faster(remote.bench)), f"{name}.yaml")
    return remote


def parsed() -> JobsFile:
    return read_jobs("jobs.yaml")


def test_a_night_prints_its_result_and_writes_its_files(jobs: type[FakeRemote], run: Run) -> None:
    words = ["--junit", "n.xml", "--markdown", "n.md", "--benchmark-json", "b.json"]
    words += ["--benchmark-memory-json", "m.json", "--html", "n.html"]
    code, out, err = run("nightly", *words)
    assert code == 0, err
    assert "gpt" in out
    assert "cannot compare" in out
    assert "autofit: gpt: never checked: re-check of the accepted plan" in err
    assert len(ET.parse("n.xml").findall(".//testcase")) == 2
    assert len(json.loads(Path("b.json").read_text())) == len(json.loads(Path("m.json").read_text())) == 2
    assert "gpt" in Path("n.md").read_text()
    assert len(jobs.bench.runs) == 16
    assert run("nightly", *words)[0] == 0  # its own files are replaced


def test_json_is_one_document(jobs: type[FakeRemote], run: Run) -> None:
    code, out, err = run("nightly", "jobs.yaml", "--json", "--quiet", "--job", "bert")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert [record["job"] for record in document["records"]] == ["bert"]


def test_a_file_that_another_program_wrote_is_not_replaced_and_nothing_is_measured(
    jobs: type[FakeRemote], run: Run
) -> None:
    Path("n.xml").write_text("<users-own/>")
    code, _, err = run("nightly", "--junit", "n.xml")
    assert code == 2
    assert "n.xml was not written" in err
    assert run("nightly", "--html", "nowhere/n.html")[0] == 2
    assert jobs.bench.runs == []
    assert run("nightly", "--junit", "n.xml", "--force")[0] == 0


def test_listing_and_a_dry_run_measure_nothing(jobs: type[FakeRemote], run: Run) -> None:
    run("nightly", "--job", "gpt", "--quiet")
    runs = len(jobs.bench.runs)
    code, out, _ = run("nightly", "--list")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()] == [["job", "verdict"], ["bert", "never"], ["gpt", "cannot"]]
    code, out, _ = run("nightly", "--dry-run")
    assert [line.split()[0] for line in out.splitlines()] == ["order", "bert", "gpt"]
    code, out, _ = run("nightly", "--dry-run", "--json")
    assert [job["name"] for job in json.loads(out)["jobs"]] == ["bert", "gpt"]
    assert len(jobs.bench.runs) == runs


@pytest.mark.parametrize("flag", ["--list", "--dry-run", "--help"])
def test_neither_torch_nor_optuna_is_loaded_to_list(flag: str, tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text(JOBS)
    code = (
        "import sys\nfrom autofit.cli import main\n"
        f"try:\n    main(['nightly', 'jobs.yaml', {flag!r}])\nexcept SystemExit:\n    pass\n"
        "sys.exit(str([name for name in ('torch', 'optuna', 'numpy') if name in sys.modules] or ''))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.stderr.strip() == ""


def test_a_broken_job_is_a_problem_with_its_line_and_the_others_run(jobs: type[FakeRemote], run: Run) -> None:
    Path("jobs.yaml").write_text(JOBS + "  - {name: mlp, workload: train.py, plan: mlp.yaml, memory: much}\n")
    code, out, err = run("nightly", "--json")
    assert code == 2
    document = json.loads(out)
    assert [record["job"] for record in document["records"]] == ["gpt", "bert"]
    (problem,) = document["problems"]
    assert "jobs.yaml, line 6" in problem
    assert problem in err
    assert run("nightly", "--list")[0] == 2


def test_the_error_of_a_job_is_its_exit_code_with_the_users_traceback(jobs: type[FakeRemote], run: Run) -> None:
    jobs.fails = UserCodeError("your code failed: boom", "Traceback (most recent call last):\nValueError: boom\x07")
    code, out, err = run("nightly")
    assert code == 5
    assert "error" in out
    assert "ValueError: boom\n" in err


def test_usage_errors_are_2(jobs: type[FakeRemote], run: Run) -> None:
    for words, expected in (
        (("missing.yaml",), "missing.yaml"),
        (("--time", "soon"), "5min"),
        (("--job", "brt"), "Did you mean 'bert'?"),
        (("--fail-on", "rain"), "rain"),
    ):
        code, _, err = run("nightly", *words)
        assert code == 2
        assert expected in err
    assert jobs.bench.runs == []


def test_an_interrupt_is_130_and_the_files_are_written(jobs: type[FakeRemote], run: Run) -> None:
    evaluate, sent = jobs.bench.evaluate, list[Plan]()

    def terminated(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        sent.append(plan)
        if len(sent) == 12:
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(plan, purpose)

    jobs.bench.evaluate = terminated  # type: ignore[method-assign, assignment]  # a bench that is terminated in its 12th run
    code, out, err = run("nightly", "--markdown", "n.md")
    assert code == 130
    assert "terminated; the same command continues the night" in err
    assert "bert: the night was interrupted" in " ".join(out.split())
    assert "gpt" in Path("n.md").read_text()
    jobs.bench.evaluate = evaluate  # type: ignore[method-assign]
    code, out, err = run("nightly", "--json")
    assert [record["job"] for record in json.loads(out)["records"]] == ["gpt", "bert"]
    assert len(jobs.bench.runs) == 11 + 8


# A real night: child processes, a real workload, a real history.


def real(folder: Path, *jobs: dict[str, object]) -> None:
    document = {"schema": "autofit.jobs/1", "defaults": {"device": "cpu", "memory": "64MiB"}, "jobs": jobs}
    (folder / "jobs.yaml").write_text(json.dumps(document))  # every JSON document is YAML


def night(folder: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command("nightly", "jobs.yaml", "--json", *words), cwd=folder, env=environment(), capture_output=True,
        text=True, timeout=280, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_a_real_night_tunes_the_first_time_and_takes_few_runs_the_second(tmp_path: Path) -> None:
    real(
        tmp_path,
        {"name": "mlp", "workload": f"{TARGETS}:make_mlp", "plan": "plans/mlp.yaml", "strategies": ["batching"]},
        {"name": "bad", "workload": f"{TARGETS}:make_failing", "plan": "plans/bad.yaml"},
        {"name": "far", "workload": f"{TARGETS}:make_mlp", "plan": "plans/far.yaml", "device": "cuda:7"},
    )
    done = night(tmp_path)
    first = json.loads(done.stdout)
    assert done.returncode == 5, done.stderr
    assert "noise of the user's file" not in done.stdout + done.stderr
    by_job = {record["job"]: record for record in first["records"]}
    assert by_job["bad"]["verdict"]["kind"] == "error"
    assert "cuda:7" in first["unchecked"]["far"]
    assert by_job["mlp"]["replaced"]
    assert planfile.load(tmp_path / "plans" / "mlp.yaml").environment.device_type == "cpu"
    done = night(tmp_path, "--job", "mlp")
    (record,) = json.loads(done.stdout)["records"]
    assert done.returncode == 0, done.stderr
    assert record["probes"] <= 8
    assert (record["tuned"], record["accepted"]["judged_by"]) == ("", by_job["mlp"]["accepted"]["judged_by"])


@pytest.mark.slow
def test_a_real_night_that_is_terminated_ends_its_children_and_is_continued(tmp_path: Path) -> None:
    marker = tmp_path / "opened"
    slow = {"name": "slow", "workload": f"{TARGETS}:make_slow", "plan": "slow.yaml", "strategies": ["batching"]}
    real(tmp_path, {**slow, "args": {"marker": str(marker)}})
    process = subprocess.Popen(
        command("nightly", "jobs.yaml", "--json"), cwd=tmp_path, env=environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "samples/s" in line:
            break
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert json.loads(out)["unchecked"] == {"slow": "the night was interrupted"}
    until = time.monotonic() + 30
    pids = [int(line) for line in marker.read_text().split()]
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert (tmp_path / ".autofit" / "jobs.yaml.night").exists()
