"""The nursery forks workers; where it must not or cannot, a fresh interpreter starts instead."""

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autofit.core.briefing import Options
from autofit.core.trial import Purpose
from autofit.probing.remote import nursery as nursery_module
from autofit.probing.remote.bench import RemoteBench
from autofit.probing.remote.child import Child, ChildEnded, Deadlines, OutputLog
from autofit.probing.remote.nursery import ForkedProcess, Nursery
from autofit.probing.remote.target import HOST_LIMIT_ENVIRONMENT, Target
from tests.probing.remote.fake_worker import PYTHON, install, is_alive, open_descriptors, session

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")

DEADLINES = Deadlines(first_s=60.0, progress_s=60.0, total_s=60.0, grace_s=10.0, exit_s=30.0)
ANSWERS = "say('outcome', loaded=sorted(sys.modules), parent=os.getppid(), value=environment.get('GIVEN'))"
Start = Callable[..., Child]


@pytest.fixture
def nursery() -> Iterator[Nursery]:
    made = Nursery({})
    yield made
    made.close()


@pytest.fixture
def start(tmp_path: Path, nursery: Nursery) -> Iterator[Start]:
    started, log = list[Child](), OutputLog(tmp_path / "printed.log")

    def start_child(variables: dict[str, str] | None = None, patience_s: float = 60.0) -> Child:
        started.append(Child(DEADLINES, variables or {}, log, nursery, patience_s))
        return started[-1]

    yield start_child
    for child in started:
        child.kill()
        assert session(child.process.pid) == []
    log.close()


def is_forked(child: Child) -> bool:
    assert child.ask({})["kind"] == "outcome"
    return isinstance(child.process, ForkedProcess)


def pid_of(nursery: Nursery) -> int:
    assert nursery.pid is not None
    return nursery.pid


def wait_for(reached: Callable[[], bool], seconds: float = 60.0) -> bool:
    until = time.monotonic() + seconds
    while not reached() and time.monotonic() < until:
        time.sleep(0.02)
    return reached()


def test_children_are_forked_one_after_another(
    start: Start, nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, ANSWERS, monkeypatch)
    first = start()
    assert is_forked(first)
    before, pid = open_descriptors(), pid_of(nursery)
    for _ in range(3):
        child = start()
        assert is_forked(child)
        child.kill()
    assert (open_descriptors(), pid_of(nursery), nursery.reason) == (before, pid, "")
    assert first.ask({})["kind"] == "outcome"


def test_a_nursery_that_is_killed_is_replaced_once_and_its_children_live_on(
    start: Start, nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, ANSWERS, monkeypatch)
    first = start()
    for expected in (True, False, False):
        os.kill(pid_of(nursery), signal.SIGKILL) if nursery.pid else None
        assert is_forked(start()) is expected
    assert nursery.reason == "the nursery died"
    assert is_forked(first)


def test_a_nursery_that_does_not_answer_is_replaced(
    start: Start, nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, ANSWERS, monkeypatch)
    assert is_forked(start())
    monkeypatch.setattr(nursery_module, "ANSWER_S", 0.2)
    pid = pid_of(nursery)
    os.kill(pid, signal.SIGSTOP)
    assert is_forked(start())
    assert pid_of(nursery) != pid
    assert not is_alive(pid)


def test_a_nursery_that_dies_before_it_forked_is_not_tried_again(
    start: Start, nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, ANSWERS, monkeypatch, nursery="os._exit(1)")
    assert not is_forked(start())
    assert nursery.reason == "the nursery died"


def test_no_more_than_the_patience_is_waited(
    start: Start, nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, ANSWERS, monkeypatch, nursery="time.sleep(100)")
    before = open_descriptors()
    with pytest.raises(ChildEnded, match="its process was not ready after 300 ms"):
        start(patience_s=0.3)
    assert open_descriptors() == before


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("threading.Thread(target=time.sleep, args=(100,), daemon=True).start()", "it has 2 threads, which a library"),
        ("fork_server.device_files = lambda: ['/dev/nvidia-uvm']", "it has opened a device (/dev/nvidia-uvm)"),
    ],
)
def test_where_forking_is_unsafe_a_fresh_interpreter_starts(
    start: Start, nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    install(tmp_path, ANSWERS, monkeypatch, nursery=code)
    for _ in range(2):
        assert not is_forked(start())
        assert reason in nursery.reason
    assert nursery.pid is None


def test_libraries_are_imported_meanwhile_and_a_broken_one_does_no_harm(
    start: Start, nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_library.py").write_text("raise SystemExit(3)")
    (tmp_path / "slow_library.py").write_text("import time; time.sleep(0.3)")
    (tmp_path / "last_library.py").write_text("import os\nnice = os.nice(0)")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    install(tmp_path, ANSWERS.replace("parent=", "nice=os.nice(0), parent="), monkeypatch)
    assert "last_library" not in start().ask({})["loaded"]
    nursery.learn(["broken_library", "slow_library", "last_library"], 0)
    answer = start().ask({})  # waits for the library that is being imported, at most
    assert wait_for(lambda: "last_library" in start().ask({})["loaded"])
    assert "broken_library" not in start().ask({})["loaded"]
    assert answer["nice"] == os.nice(0)


THREADED = "import threading, time\nthreading.Thread(target=time.sleep, args=(100,), daemon=True).start()"


def test_a_library_that_starts_a_thread_is_left_out_with_those_after_it(
    start: Start, nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "threaded_library.py").write_text(THREADED)
    for name in ("first_library", "last_library"):
        (tmp_path / f"{name}.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    install(tmp_path, ANSWERS, monkeypatch)
    assert is_forked(start())
    pid = pid_of(nursery)
    nursery.learn(["first_library", "threaded_library", "last_library"], 0)
    assert wait_for(lambda: is_forked(start()) and pid_of(nursery) != pid)
    assert nursery.libraries == ["first_library"]
    assert wait_for(lambda: "first_library" in start().ask({})["loaded"])
    assert pid_of(nursery) != pid


def test_a_second_nursery_that_cannot_be_forked_is_the_last(
    start: Start, nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "threaded_library.py").write_text(THREADED)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    install(tmp_path, ANSWERS, monkeypatch)
    assert is_forked(start())
    os.kill(pid_of(nursery), signal.SIGKILL)
    assert is_forked(start())
    nursery.learn(["threaded_library"], 0)
    assert wait_for(lambda: not is_forked(start()))
    assert "which a library started" in nursery.reason
    assert nursery.pid is None


def test_variables_that_a_running_process_cannot_take_have_a_fresh_interpreter(
    start: Start, nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, ANSWERS, monkeypatch)
    child = start({"GIVEN": "yes"})
    assert not is_forked(child)
    assert child.ask({})["value"] == "yes"
    assert nursery.reason == "GIVEN must be set before a process starts"
    assert is_forked(start(HOST_LIMIT_ENVIRONMENT))
    monkeypatch.setenv("GIVEN", "later")
    child = start()
    assert child.ask({})["value"] == "later"
    assert not is_forked(child)
    assert nursery.reason == "the environment variables have changed since the nursery started"


PARENT = """
import sys, time
from autofit.probing.remote.child import Child, Deadlines
from autofit.probing.remote.nursery import Nursery
from autofit.probing.remote.child import OutputLog
sys.executable = sys.argv[1]
nursery = Nursery({})
child = Child(Deadlines(), {}, OutputLog(), nursery)
reply = child.ask({})
assert not nursery.reason
print(nursery.pid, child.process.pid, reply["worker"], reply["helper"], flush=True)
time.sleep(100)
"""


def test_the_death_of_the_parent_is_that_of_all_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    behaviour = """
        helper = subprocess.Popen(["sleep", "100"], start_new_session=True)
        say("outcome", worker=os.getpid(), helper=helper.pid)
    """
    install(tmp_path, behaviour, monkeypatch)
    parent = subprocess.Popen([PYTHON, "-c", PARENT, sys.executable], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert [is_alive(pid) for pid in pids] == [True] * 4
        parent.kill()
        parent.wait()
    assert wait_for(lambda: not any(map(is_alive, pids)))


def test_a_nursery_that_imports_dies_with_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not listen meanwhile."""
    install(tmp_path, ANSWERS, monkeypatch, nursery=f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
            "while True: pass")  # fmt: skip
    parent = subprocess.Popen([PYTHON, "-c", PARENT, sys.executable])
    found = tmp_path / "pid"
    assert wait_for(lambda: found.exists() and bool(found.read_text()))
    parent.kill()
    parent.wait()
    assert wait_for(lambda: not is_alive(int(found.read_text())))


USERS = """
import gc, os
open({path!r}, "a").write(f"{{os.getpid()}} ")
from tests.probing.targets import make_wide
import torch, random, numpy

def make():
    drawn = float(torch.rand(())), random.random(), float(numpy.random.rand())
    open({path!r} + ".drawn", "a").write(f"{{drawn}};")
    wide = make_wide()
    return {{"model": wide.model, "loader": wide.loader, "step_fn": step}}

def step(model, batch):
    open({path!r} + ".collects", "a").write(f"{{gc.get_threshold()[0]}} ")
    return model(batch).square().mean()
"""


@pytest.mark.slow
def test_no_code_of_the_users_is_run_in_the_nursery_and_children_draw_other_numbers(tmp_path: Path) -> None:
    (tmp_path / "users.py").write_text(USERS.format(path=str(tmp_path / "pids")))
    options = Options(memory_budget="1GiB", strategies=("batching",))
    deadlines = Deadlines(first_s=240.0, progress_s=120.0, total_s=240.0, grace_s=0.5, exit_s=30.0)
    with RemoteBench(Target(f"{tmp_path}/users.py:make", device="cpu", options=options), deadlines=deadlines) as bench:
        loaded = bench._nursery.libraries
        assert {"torch", "json"} <= set(loaded)
        assert not [name for name in loaded if name.partition(".")[0] in ("users", "tests", "autofit")]
        for _ in range(2):
            bench._retire()
            assert bench.evaluate(bench.briefing.space.baseline, Purpose.BLOCK).measured
            assert (bench._nursery.reason, bench._child is not None) == ("", True)
            assert bench._child is not None
            assert isinstance(bench._child.process, ForkedProcess)
        nursery = pid_of(bench._nursery)
        assert len(os.listdir(f"/proc/{nursery}/task")) <= 2  # it may be importing
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(set(pids)) == 3
    assert nursery not in pids
    assert set((tmp_path / "pids.collects").read_text().split()) == {str(gc.get_threshold()[0])}
    drawn = (tmp_path / "pids.drawn").read_text().split(";")[:-1]
    for numbers in zip(*(each.strip("()").split(", ") for each in drawn), strict=True):
        assert len(set(numbers)) == 3
