"""`autofit nightly accept`: the proposal becomes the accepted plan, and what changed is printed."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from autofit import planfile
from autofit.nightly import proposals
from tests.cli.conftest import Run
from tests.nightly.benches import calm, faster, recommended
from tests.nightly.nights import MachineRoom

BENCH = calm()
OLD, NEW = recommended(BENCH, BENCH.space.baseline), recommended(BENCH, faster(BENCH))


@pytest.fixture(autouse=True)
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("jobs.yaml").write_text("schema: autofit.jobs/1\njobs: [{name: gpt, workload: train.py, plan: gpt.yaml}]\n")
    planfile.save(OLD, "gpt.yaml")
    proposals.propose(NEW, Path("gpt.yaml"), OLD, None)
    return tmp_path


def test_the_proposal_is_accepted_with_its_difference(run: Run) -> None:
    code, out, err = run("nightly", "accept", "gpt")
    assert code == 0
    assert out.startswith("What changes")
    assert "bf16" in out
    assert err.endswith("gpt.yaml; the other plan is kept as gpt.previous.yaml\n")
    assert planfile.load("gpt.yaml") == NEW
    code, out, err = run("nightly", "accept", "gpt")
    assert code == 2
    assert "found no proposal" in err
    assert run("nightly", "revert", "gpt", "--quiet")[2] == ""


def test_it_works_from_another_folder_and_as_json(run: Run, jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    code, out, _ = run("nightly", "accept", "gpt", "--jobs", str(jobs / "jobs.yaml"), "--json")
    assert code == 0
    document = json.loads(out)
    assert (document["job"], document["action"], document["plan"]) == ("gpt", "accepted", str(jobs / "gpt.yaml"))


def test_an_unknown_job_or_file_is_a_usage_error(run: Run) -> None:
    assert run("nightly", "accept", "bert")[0] == 2
    assert run("nightly", "accept", "gpt", "--jobs", "missing.yaml")[0] == 2
    assert planfile.load("gpt.yaml") == OLD


def test_an_open_regression_is_accepted_as_the_new_level_and_reported_no_more(run: Run, tmp_path: Path) -> None:
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
