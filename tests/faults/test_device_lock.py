"""F55, defect 3: one device, one tuner; in process and by the command line."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import autofit
from autofit import locks
from autofit.core.errors import Busy
from autofit.devices import choose
from autofit.search.request import Event
from autofit.study.location import writing
from tests.probing import targets

ROOT = Path(__file__).parents[2]
TARGET = f"{ROOT}/tests/probing/targets.py:make_mlp"


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(locks.DIRECTORY_VARIABLE, str(tmp_path / "locks"))


def holding(key: str) -> "subprocess.Popen[str]":
    code = (
        "import sys; from autofit import locks\n"
        "with locks.held(sys.argv[1], 'the thing', 5.0): print('held', flush=True); sys.stdin.readline()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, key], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert child.stdout is not None
    child.stdout.readline()
    return child


def tuned(study: object, **options: Any) -> autofit.Fit:
    workload = targets.make_mlp()
    return autofit.tune(
        workload.model, workload.loader, loss_fn=workload.loss_fn, step_fn=workload.step_fn, study=study,  # type: ignore[arg-type]
        global_batch_size=4, memory_budget="256MiB", strategies=["batching"], **{"progress": False} | options,
    )  # fmt: skip


@pytest.mark.fault("F55")
def test_defect_03_tune_in_process_waits_within_its_time_budget_and_names_the_holder() -> None:
    events: list[Event] = []
    with holding(choose("cpu").lock_key) as child:
        began = time.monotonic()
        with pytest.raises(Busy, match=rf"is in use: found process {child.pid} \(-c .*\) since 2"):
            tuned(":memory:", time_budget=2, progress=events.append)
        assert time.monotonic() - began < 2
        (said,) = (event.text for event in events)
        assert said.startswith("waiting up to 1 s for ")
        child.communicate("\n")
    assert tuned(":memory:").plan is not None


def command(*words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "autofit", "tune", TARGET, "--device", "cpu", "--global-batch", "4", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


@pytest.mark.slow
@pytest.mark.fault("F55")
def test_defect_03_the_command_ends_with_exit_code_6_and_names_the_holder(tmp_path: Path) -> None:
    with holding(choose("cpu").lock_key) as child:
        with command("--json", "--time", "12", "-o", str(tmp_path / "p.yaml"), "--study", ":memory:") as second:
            out, err = second.communicate(timeout=200)
        child.communicate("\n")
    assert second.returncode == 6, err
    told = json.loads(out)["error"]
    assert (told["type"], told["exit_code"]) == ("Busy", 6)
    assert f"process {child.pid}" in told["message"]
    assert f"in use by process {child.pid}" in err


@pytest.mark.slow
def test_defect_03_two_commands_run_one_after_the_other(tmp_path: Path) -> None:
    """Neither dead-locks with its own children, of which one proves the plan beside the warm one."""
    options = ("--memory", "256MiB", "--strategies", "batching", "--trials", "1")
    both = [
        command(*options, "-o", str(tmp_path / f"{n}.yaml"), "--study", str(tmp_path / f"{n}.journal"))
        for n in range(2)
    ]
    errors = [process.communicate(timeout=280)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], errors
    assert sum("waiting up to" in error for error in errors) == 1


@pytest.mark.fault("F55")
def test_defect_03_one_writer_in_a_study(tmp_path: Path) -> None:
    path = tmp_path / "s.journal"
    with holding(f"study-{path.resolve()}-net-samples") as child:
        with pytest.raises(Busy, match=r"the study .*s\.journal is in use"), writing(path, "net-samples", 0.0, print):
            pytest.fail("two writers")
        with writing(path, "other-samples", 0.0, print), writing(":memory:", "net-samples", 0.0, print):
            pass
        child.communicate("\n")
    with writing(path, "net-samples", 0.0, print):
        pass
