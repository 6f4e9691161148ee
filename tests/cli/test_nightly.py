"""`autofit nightly`: what it prints, its exit codes, its files, one real run, and accepting."""

import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autofit import planfile
from autofit.core.errors import UserCodeError
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.nightly import job_check
from autofit.nightly.jobs import JobsFile, read_jobs
from tests.cli.conftest import FakeRemote, Run
from tests.cli.processes import TARGETS, command, environment
from tests.nightly.benches import calm, faster, recommended
from tests.nightly.nights import MachineRoom

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
    monkeypatch.setattr(job_check, "RemoteBench", remote)
    remote.bench = calm()
    Path("jobs.yaml").write_text(JOBS)
    for name in ("gpt", "bert"):
        planfile.save(recommended(remote.bench, faster(remote.bench)), f"{name}.yaml")
    return remote


def parsed() -> JobsFile:
    return read_jobs("jobs.yaml")


def test_a_night_prints_its_result_and_writes_its_files(jobs: type[FakeRemote], run: Run) -> None:
    words = ["--markdown", "n.md", "--html", "n.html"]
    code, out, err = run("nightly", *words)
    assert code == 0, err
    assert "gpt" in out
    assert "cannot compare" in out
    assert "autofit: gpt: never checked: re-check of the accepted plan" in err
    assert "gpt" in Path("n.md").read_text()
    assert "gpt" in Path("n.html").read_text()
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
    Path("n.md").write_text("mine")
    code, _, err = run("nightly", "--markdown", "n.md")
    assert code == 2
    assert "n.md was not written: found a file there that is not an autofit report" in err
    assert run("nightly", "--html", "nowhere/n.html")[0] == 2
    assert jobs.bench.runs == []
    assert run("nightly", "--markdown", "n.md", "--force")[0] == 0
    assert "mine" not in Path("n.md").read_text()


def test_files_are_relative_to_where_the_command_began_and_links_are_kept(jobs: type[FakeRemote], run: Run) -> None:
    Path("n.md").symlink_to("latest.md")
    assert run("nightly", "--markdown", "n.md")[0] == 0
    assert Path("n.md").is_symlink()
    assert Path("latest.md").is_file()


def test_what_cannot_be_written_is_refused_before_the_night(jobs: type[FakeRemote], run: Run) -> None:
    Path("loop").symlink_to("loop")
    Path("folder").mkdir()
    for path in ("folder", "missing/n.md", "loop/n.md"):
        assert run("nightly", "--force", "--markdown", path)[0] == 2
    assert jobs.bench.runs == []


def test_a_file_that_fails_later_stops_no_other(jobs: type[FakeRemote], run: Run) -> None:
    Path("gone").mkdir()
    evaluate = jobs.bench.evaluate

    def vanish(plan: Plan, purpose: Purpose, *_: object) -> Outcome:
        if Path("gone").exists():
            Path("gone").rmdir()
        return evaluate(plan, purpose)

    jobs.bench.evaluate = vanish  # type: ignore[method-assign, assignment]
    code, out, err = run("nightly", "--markdown", "gone/n.md", "--html", "n.html")
    assert code == 2
    assert "n.md was not written" in err
    assert "The records of the night are in the history: only this file is missing." in err
    assert "gpt" in out
    assert Path("n.html").exists()


def test_a_dry_run_measures_nothing(jobs: type[FakeRemote], run: Run) -> None:
    run("nightly", "--job", "gpt", "--quiet")
    runs = len(jobs.bench.runs)
    code, out, _ = run("nightly", "--dry-run")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["order", "bert", "gpt"]
    code, out, _ = run("nightly", "--dry-run", "--json")
    assert [job["name"] for job in json.loads(out)["jobs"]] == ["bert", "gpt"]
    assert len(jobs.bench.runs) == runs


@pytest.mark.parametrize("flag", ["--dry-run", "--help"])
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
    assert run("nightly", "--dry-run")[0] == 2


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


BENCH = calm()
OLD, NEW = recommended(BENCH, BENCH.space.baseline), recommended(BENCH, faster(BENCH))


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job for which a night has found a better plan."""
    monkeypatch.chdir(tmp_path)
    Path("jobs.yaml").write_text("schema: autofit.jobs/1\njobs: [{name: gpt, workload: train.py, plan: gpt.yaml}]\n")
    planfile.save(OLD, "gpt.yaml")
    planfile.save(NEW, "gpt.new.yaml")
    return tmp_path


def test_the_better_plan_is_accepted_and_its_predecessor_kept(waiting: Path, run: Run) -> None:
    code, out, _ = run("nightly", "accept", "gpt")
    assert code == 0
    assert out.startswith("gpt: accepted ")
    assert "precision=bf16" in out
    assert "`autofit diff gpt.previous.yaml gpt.yaml` says what changed" in out
    assert (planfile.load("gpt.yaml"), planfile.load("gpt.previous.yaml")) == (NEW, OLD)
    code, _, err = run("nightly", "accept", "gpt")
    assert code == 2
    assert "found no new plan" in err


def test_it_works_from_another_folder_and_as_json(waiting: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    code, out, _ = run("nightly", "accept", "gpt", "--jobs", str(waiting / "jobs.yaml"), "--json")
    assert code == 0
    document = json.loads(out)
    assert document["job"] == "gpt"
    assert document["done"].startswith("accepted")
    assert planfile.load(waiting / "gpt.yaml") == NEW


def test_an_unknown_job_or_file_is_a_usage_error(waiting: Path, run: Run) -> None:
    assert run("nightly", "accept", "bert")[0] == 2
    assert run("nightly", "accept", "gpt", "--jobs", "missing.yaml")[0] == 2
    assert planfile.load("gpt.yaml") == OLD


def test_an_open_regression_is_accepted_as_the_new_level_and_reported_no_more(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    room = MachineRoom(tmp_path, start=datetime.now(UTC) - timedelta(days=30))
    job = room.add("gpt")
    Path("jobs.yaml").write_text(
        "schema: autofit.jobs/1\nhistory: study.journal\njobs: [{name: gpt, workload: train.py, plan: gpt.yaml}]\n"
    )
    code, _, err = run("nightly", "accept", "gpt", "--level")
    assert code == 2
    assert "found no open regression of the job gpt" in err
    for _ in range(6):
        room.night()
    bench = room.benches["gpt"]
    bench.slower = lambda plan: 1.3 if plan == faster(bench) else 1.0
    assert room.night().exit_code == 4
    code, out, _ = run("nightly", "accept", "gpt", "--level")
    assert code == 0
    assert out.startswith("gpt: accepted as the new level: throughput of ")
    assert run("nightly", "accept", "gpt", "--level")[0] == 2  # it is not open any more
    room.days += 1
    assert room.night().exit_code == 0
    assert job.plan.exists()
