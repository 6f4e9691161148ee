"""Fault rows of processes: F16, F21, F52, F56, and defects 5, 6, 8 and 15 of the audit. Nothing outlives the tuner."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autofit.core.errors import Untraceable
from autofit.core.outcome import Outcome, Status
from autofit.core.trial import Purpose
from autofit.memory.trace import Trace
from autofit.probing.remote.bench import RemoteBench, Target
from autofit.probing.remote.child import Child, ChildEnded, Deadlines, OutputLog
from autofit.tracing.isolation import IS_SUPPORTED, trace_in_fork
from tests.probing.remote.fake_worker import PYTHON, install, is_alive
from tests.probing.remote.test_bench import BRIEFING, OPENS, PLAN

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

PATIENT = Deadlines(first_s=120.0, progress_s=120.0, total_s=120.0, grace_s=2.0, exit_s=60.0)
ROOT = Path(__file__).parents[2]
HELPER = """
def helper(*command, **how):
    made = subprocess.Popen(command or ["sleep", "300"], **how)
    with open(environment["HELPERS"], "a") as file:
        print(made.pid, file=file)
"""
Start = Callable[[str], Child]


def pids(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def wait_for(reached: Callable[[], object], seconds: float = 60.0) -> bool:
    until = time.monotonic() + seconds
    while not reached() and time.monotonic() < until:
        time.sleep(0.05)
    return bool(reached())


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the workers' helpers write their numbers; whatever lives at the end is ended."""
    path = tmp_path / "helpers"
    monkeypatch.setenv("HELPERS", str(path))
    yield path
    for pid in pids(path):
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture
def start(tmp_path: Path, helpers: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    started: list[Child] = []

    def start_child(behaviour: str) -> Child:
        install(tmp_path, HELPER + behaviour, monkeypatch)
        started.append(Child(PATIENT, {}, OutputLog(tmp_path / "printed.log")))
        return started[-1]

    yield start_child
    for made in started:
        made.kill()


def ending(child: Child) -> Outcome:
    with pytest.raises(ChildEnded) as ended:
        child.ask({})
    return ended.value.outcome


@pytest.mark.fault("F21")
def test_defect_05_a_death_is_noticed_although_a_helper_holds_the_pipe_open(start: Start, helpers: Path) -> None:
    """F21: it took until the deadline, and was then called a time-out."""
    began = time.monotonic()
    outcome = ending(start("helper(pass_fds=(write,), start_new_session=True)\nos.kill(os.getpid(), signal.SIGSEGV)"))
    assert (outcome.status, outcome.reason) == (Status.CRASHED, "the process was terminated by SIGSEGV")
    assert time.monotonic() - began < PATIENT.first_s / 2
    assert not any(map(is_alive, pids(helpers)))


def test_defect_05_what_was_said_before_a_death_is_heard(start: Start) -> None:
    child = start("say('outcome', number=1)\nos._exit(3)")
    assert child.ask({}) == {"kind": "outcome", "number": 1}
    assert ending(child).reason == "the process ended with exit code 3 and left no result and no error"


@pytest.mark.fault("F16")
def test_defect_06_helpers_with_a_session_of_their_own_end_also_after_a_good_run(start: Start, helpers: Path) -> None:
    """F16: such a helper was in no group that was killed."""
    child = start("helper(start_new_session=True)\nhelper()\nsay('closed')\nbreak")
    assert child.ask({})["kind"] == "closed"
    child.close()
    assert child.process.returncode == 0
    assert len(pids(helpers)) == 2
    assert not any(map(is_alive, pids(helpers)))


TUNER = """
import sys, time
from pathlib import Path
from autofit.probing.remote.child import Child, Deadlines
from autofit.probing.remote.child import OutputLog
sys.executable = sys.argv[1]
child = Child(Deadlines(grace_s=float(sys.argv[2])), {}, OutputLog())
try:
    child.ask({})
finally:
    child.kill()
"""
STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(environment["HELPERS"], "a") as file:
    print(os.getpid(), file=file)
helper(start_new_session=True)
helper("sleep", "300", preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN))
time.sleep(300)
"""


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.fault("F52", "F56")
def test_defect_06_no_process_is_left_by_a_tuner_that_is_killed_or_interrupted_twice(
    tmp_path: Path, helpers: Path, monkeypatch: pytest.MonkeyPatch, sign: signal.Signals
) -> None:
    """F52, F56: `kill -9` left the helpers of the child, a second Ctrl-C within the grace those and the child."""
    install(tmp_path, HELPER + STUBBORN, monkeypatch)
    worker = sys.executable
    monkeypatch.undo()
    monkeypatch.setenv("HELPERS", str(helpers))
    tuner = subprocess.Popen([PYTHON, "-c", TUNER, worker, "200"], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        assert wait_for(lambda: len(pids(helpers)) == 3)
        assert all(map(is_alive, pids(helpers)))
        tuner.send_signal(sign)
        if sign == signal.SIGINT:
            time.sleep(0.5)  # in the grace of 200 s
            assert tuner.poll() is None
            tuner.send_signal(sign)
        tuner.wait(60)
        assert wait_for(lambda: not any(map(is_alive, pids(helpers))))
    finally:
        tuner.kill()
        tuner.wait()


@pytest.mark.fault("F21")
def test_defect_08_a_child_that_was_killed_while_idle_is_replaced_before_the_next_plan(
    tmp_path: Path, helpers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F21: the next, innocent plan was recorded as crashed."""
    monkeypatch.setenv("REQUESTS", str(tmp_path / "requests"))
    monkeypatch.setenv("BRIEFING", BRIEFING.model_dump_json())
    says = "if request['do'] == 'close':\n    say('closed')\n    break\n"
    says += "print(os.getpid(), file=open(environment['HELPERS'], 'a'))\n"
    install(tmp_path, OPENS + says + "say('outcome', outcome={'status': 'user error', 'reason': 'no'})", monkeypatch)
    with RemoteBench(Target("train.py:make"), deadlines=PATIENT) as bench:
        assert bench.evaluate(PLAN, Purpose.PROBE).status is Status.USER_ERROR
        (worker,) = pids(helpers)
        os.kill(worker, signal.SIGKILL)
        assert wait_for(lambda: bench._child is None or bench._child.ended)
        assert bench.evaluate(PLAN, Purpose.PROBE).status is Status.USER_ERROR
        assert len(pids(helpers)) == 2


forked = pytest.mark.skipif(not IS_SUPPORTED, reason="forks, which is done on Linux only")
TRACER = """
import os, sys, time
from pathlib import Path
from autofit.tracing.isolation import trace_in_fork
def work():
    Path(sys.argv[1]).write_text(str(os.getpid()))
    time.sleep(300)
trace_in_fork(work, 300.0)
"""


@forked
@pytest.mark.slow
@pytest.mark.fault("F52")
def test_defect_06_a_trace_does_not_outlive_a_tuner_that_is_killed(tmp_path: Path) -> None:
    """F52: `kill -9` while a forked trace ran the user's code left that trace alive."""
    path = tmp_path / "pid"
    tuner = subprocess.Popen([PYTHON, "-c", TRACER, str(path)], cwd=ROOT)
    try:
        assert wait_for(lambda: pids(path), 120)
        (trace,) = pids(path)
        assert is_alive(trace)
    finally:
        tuner.kill()
        tuner.wait()
    assert wait_for(lambda: not is_alive(trace))


@forked
def test_defect_06_what_a_trace_started_ends_with_it_and_does_not_hold_it_up(tmp_path: Path) -> None:
    path = tmp_path / "pid"

    def work() -> Trace:
        helper = os.fork()
        if helper == 0:
            time.sleep(300)  # with the pipe of the trace open
        path.write_text(str(helper))
        os._exit(1)

    began = time.monotonic()
    with pytest.raises(Untraceable, match="its process died"):
        trace_in_fork(work, 120.0)
    assert time.monotonic() - began < 60
    (helper,) = pids(path)
    assert wait_for(lambda: not is_alive(helper))


FILES = {
    "statistics.py": "raise RuntimeError('the standard library was meant')\n",
    "mymodule.py": "WIDTH = 8\n",
    "train.py": """
import os, statistics, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset
from mymodule import WIDTH

def step(model, batch):
    order = os.environ.get("ORDER")
    if order == "interrupt":
        raise KeyboardInterrupt
    if order == "exit":
        sys.exit(3)
    return model(batch[0]).square().mean()

def make_workload():
    if os.environ.get("ORDER") == "interrupt at once":
        raise KeyboardInterrupt
    assert statistics.mean([1, 3]) == 2
    loader = DataLoader(TensorDataset(torch.randn(64, WIDTH)), batch_size=8)
    return {"model": torch.nn.Linear(WIDTH, 4), "loader": loader, "step_fn": step, "global_batch_size": 8}
""",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a module of the user's and one that has the name of a standard one."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tune(*more: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [PYTHON, "-P", "-m", "autofit", "tune", "train.py", "--strategies", "batching", "--memory", "1GiB", *more]
    given = {**os.environ, **environment}
    return subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=240)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["", "interrupt", "interrupt at once"])
def test_defects_08_and_15_local_files_and_interrupts_of_the_users_code(folder: Path, order: str) -> None:
    """`statistics.py` beside train.py broke the child; a KeyboardInterrupt was an "exit code 0 and left no result"."""
    done = tune("--trials", "1", ORDER=order)
    if order:
        assert (done.returncode, "raised KeyboardInterrupt" in done.stderr) == (5, True), done.stderr
        assert "left no result" not in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert (folder / "autofit.yaml").exists()
