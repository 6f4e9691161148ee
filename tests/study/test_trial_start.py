"""Whether the process that runs a trial is still alive."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autofit.core.trial import Purpose
from autofit.study import trial_start as request
from tests.study.samples import PLAN, measured, reopen


def test_a_trial_of_a_living_process_is_left_alone(db: Path) -> None:
    code = (
        "import sys; from tests.study.samples import *; from autofit.core.trial import Purpose\n"
        "study = reopen(sys.argv[1]); number = study.begin(PLAN, Purpose.PROBE); print('running', flush=True)\n"
        "sys.stdin.readline(); study.finish(number, measured())"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(db)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_root()
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == "running\n"
        study = reopen(db)
        assert study.earlier() == ()
        assert len(study.notes) == 1
        assert study.notes[0].startswith(f"trial 0 is running in process {child.pid} on ")
        child.stdin.write("\n")
    assert child.returncode == 0
    assert [trial.outcome for trial in reopen(db).earlier()] == [measured()]


def _root() -> Path:
    return Path(__file__).parents[2]


def test_a_later_process_with_the_same_number_is_another_one(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reopen(db).begin(PLAN, Purpose.PROBE)  # by this very process, which lives
    assert "left alone" in reopen(db).notes[0]
    found = request.process_of(os.getpid())
    assert found is not None
    monkeypatch.setattr(request, "process_of", lambda pid: found._replace(start=found.start + 1))
    assert reopen(db).notes == ("1 trial was running when its process died: recorded as failed",)


def test_a_process_that_has_ended_but_was_not_reaped_is_dead(db: Path) -> None:
    pid = os.fork()
    if pid == 0:
        reopen(db).begin(PLAN, Purpose.PROBE)
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    try:
        assert reopen(db).notes == ("1 trial was running when its process died: recorded as failed",)
    finally:
        os.waitpid(pid, 0)


def test_a_trial_of_another_host_is_given_up_after_its_deadline(db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: "elsewhere")
        reopen(db).begin(PLAN, Purpose.PROBE)
        patch.setattr(request, "_LONGEST_TRIAL", -request._LONGEST_TRIAL)
        reopen(db).begin(PLAN, Purpose.PROBE)
    first, second = reopen(db).notes
    assert first.startswith("trial 0 is running in process ")
    assert first.endswith(" on elsewhere: left alone")
    assert second == "1 trial was running when its process died: recorded as failed"
