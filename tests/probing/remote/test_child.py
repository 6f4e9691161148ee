"""A child is asked over its own pipes; whatever it does, it ends, and nothing of it is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autofit.core.outcome import Outcome, Status
from autofit.probing.remote import child as child_module
from autofit.probing.remote.child import KEPT_BYTES, Child, ChildEnded, Deadlines, OutputLog
from autofit.probing.remote.nursery import ForkedProcess, Nursery
from tests.fakes import FakeTime
from tests.probing.remote.fake_worker import PYTHON, install, is_alive, open_descriptors, session

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

QUICK = Deadlines(first_s=60.0, progress_s=0.5, total_s=60.0, grace_s=10.0, exit_s=30.0)
"""Short only where a child that hangs is waited for: what a child does in time may take long on a busy machine."""
IMPATIENT = replace(QUICK, grace_s=0.3)
"""For children that outlive the polite signal."""
Start = Callable[..., Child]


@pytest.fixture(params=["fresh", "forked"])
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts children as fresh interpreters, and by a nursery: they behave alike."""
    started, nurseries = list[Child](), list[Nursery]()
    log = OutputLog(tmp_path / "printed.log")

    def start_child(behaviour: str, deadlines: Deadlines = QUICK, **environment: str) -> Child:
        install(tmp_path, behaviour, monkeypatch)
        if request.param == "fresh":
            started.append(Child(deadlines, environment, log))
        else:
            nurseries.append(Nursery(environment))
            started.append(Child(deadlines, {}, log, nurseries[-1]))
            assert isinstance(started[-1].process, ForkedProcess), nurseries[-1].reason
        return started[-1]

    yield start_child
    for made in started:
        made.kill()
    for nursery in nurseries:
        nursery.close()
    log.close()


def ending(child: Child, beat: Callable[[str], None] = lambda phase: None) -> Outcome:
    """Asks a child that will not answer, and returns what that means; nothing of the child may be left."""
    with pytest.raises(ChildEnded) as ended:
        child.ask({"do": "evaluate"}, beat)
    assert child.ended
    assert session(child.process.pid) == []
    return ended.value.outcome


def test_a_request_gets_its_reply_and_signs_of_life_pass_by(start: Start) -> None:
    child = start("""
        say("beat", phase="fetch")
        say("beat", phase="step")
        say("outcome", twice=request["number"] * 2)
    """)
    beats: list[str] = []
    assert child.ask({"number": 4}, beats.append) == {"kind": "outcome", "twice": 8}
    assert child.ask({"number": 5}) == {"kind": "outcome", "twice": 10}
    assert beats == ["fetch", "step"]
    assert not child.ended


def test_a_reply_may_come_in_pieces_and_be_long(start: Start) -> None:
    child = start("""
        text = json.dumps({"kind": "outcome", "text": "x" * 300000}) + "\\n"
        for at in range(0, len(text), 70000):
            os.write(write, text[at : at + 70000].encode())
            time.sleep(0.02)
    """)
    assert len(child.ask({})["text"]) == 300_000


def test_the_child_has_a_group_of_its_own_in_this_session_and_the_environment_given(start: Start) -> None:
    code = "say('outcome', group=os.getpgrp(), sid=os.getsid(0), value=os.environ['GIVEN'], stdin=sys.stdin.read())"
    child = start(code, GIVEN="yes")
    found = {"group": child.process.pid, "sid": os.getsid(0), "value": "yes", "stdin": ""}
    assert child.ask({}) == {"kind": "outcome", **found}


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL; it may be the host's out-of-memory killer"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "terminated by SIGSEGV"),
        ("os.abort()", "terminated by SIGABRT"),
        ("os._exit(7)", "ended with exit code 7"),
        ("os._exit(0)", "ended with exit code 0"),
    ],
)
@pytest.mark.fault("F20", "F21")
def test_a_death_is_a_crash_with_its_cause(start: Start, behaviour: str, reason: str) -> None:
    child = start(f"print('last words', flush=True)\n{behaviour}")
    outcome = ending(child)
    assert outcome.status is Status.CRASHED
    assert reason in outcome.reason
    assert "last words" in child.log
    assert "last words" not in outcome.model_dump_json()


def test_a_child_that_closes_its_pipe_and_lives_on_is_ended(start: Start) -> None:
    outcome = ending(start("os.close(write); time.sleep(100)", IMPATIENT))
    assert outcome.status is Status.CRASHED


def test_a_child_that_is_dead_before_it_is_asked_is_a_crash(start: Start) -> None:
    child = start("pass")
    os.kill(child.process.pid, signal.SIGKILL)
    child.process.wait(60)
    assert ending(child).status is Status.CRASHED


@pytest.mark.parametrize(
    "reply",
    ["b'no json\\n'", "b'[1, 2]\\n'", "b'{\"kind\": 3}\\n'", "b'\\xff\\xfe\\n'", "b'\\n'", 'b\'{"kind": "outc\\n\''],
)
@pytest.mark.fault("F23")
def test_what_is_no_reply_is_a_crash(start: Start, reply: str) -> None:
    outcome = ending(start(f"os.write(write, {reply}); time.sleep(100)"))
    assert outcome.status is Status.CRASHED
    assert "sent no valid reply" in outcome.reason
    assert len(outcome.reason) < 400


@pytest.mark.fault("F23")
def test_a_reply_without_end_is_a_crash(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_module, "_LINE_BYTES", 100_000)
    outcome = ending(start("while True: os.write(write, b'x' * 10000)"))
    assert "sent no valid reply" in outcome.reason


@pytest.mark.fault("F15")
def test_silence_after_the_first_step_is_a_time_out(start: Start) -> None:
    began = time.monotonic()
    outcome = ending(start("say('beat', phase='step'); time.sleep(100)"))
    assert outcome.status is Status.TIMED_OUT
    assert outcome.reason == "no sign of life for 500 ms (it was in 'step'); its process was killed"
    assert time.monotonic() - began < 60


def test_before_the_first_step_there_is_more_patience(start: Start) -> None:
    child = start("say('beat', phase='import'); time.sleep(1.0); say('outcome')")
    assert child.ask({})["kind"] == "outcome"


def test_signs_of_life_extend_the_patience_but_not_the_total(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that goes on by 50 s with each sign of life, so that it does not matter when these arrive."""
    clock = FakeTime()
    monkeypatch.setattr(child_module, "monotonic", clock)
    deadlines = replace(QUICK, progress_s=60.0, total_s=320.0)

    def beat(phase: str) -> None:
        clock.advance(50.0)

    child = start("for _ in range(6): say('beat', phase='step')\nsay('outcome')", deadlines)
    assert child.ask({}, beat)["kind"] == "outcome"
    assert clock.seconds == 6 * 50.0
    outcome = ending(start("while True: say('beat', phase='step'); time.sleep(0.01)", deadlines), beat)
    assert outcome.status is Status.TIMED_OUT
    assert outcome.reason == "not finished in 5 min 20 s (it was in 'step'); its process was killed"


def test_a_reply_that_came_while_this_process_was_stopped_counts(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-Z stops the parent alone: the child has a session of its own, and goes on."""
    clock = FakeTime()
    monkeypatch.setattr(child_module, "monotonic", clock)
    child = start("say('beat', phase='step'); say('outcome'); break")

    def stopped(phase: str) -> None:
        child.process.wait(60)
        clock.advance(10_000)

    assert child.ask({}, stopped)["kind"] == "outcome"


@pytest.mark.fault("F16")
def test_a_hang_that_ignores_the_polite_signal_is_ended_with_its_whole_group(start: Start) -> None:
    child = start(
        """
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(100)"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
helper = subprocess.Popen([environment["PYTHON"], "-c", stubborn], stdout=subprocess.PIPE)
helper.stdout.readline()
say("beat", phase="step")
time.sleep(100)
""",
        IMPATIENT,
        PYTHON=PYTHON,
    )
    assert ending(child).status is Status.TIMED_OUT


@pytest.mark.fault("F16")
def test_helpers_that_outlive_a_child_are_ended_too(start: Start) -> None:
    child = start("subprocess.Popen(['sleep', '100'])\nsubprocess.Popen(['sleep', '100'])\nos._exit(3)")
    assert ending(child).reason.endswith("left no result and no error")


def test_ending_twice_is_ending_once(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of a process that is gone may be another's by now."""
    child = start("say('outcome')")
    child.ask({})
    child.kill()
    signals: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, sign: signals.append(sign))
    child.kill()
    child.close()
    assert signals == []


def test_a_polite_signal_comes_first(start: Start) -> None:
    child = start("""
        signal.signal(signal.SIGTERM, lambda *_: (print("asked politely", flush=True), os._exit(0)))
        say("outcome")
        time.sleep(100)
    """)
    child.ask({})
    child.kill()
    assert "asked politely" in child.log
    assert child.process.returncode == 0


def test_no_descriptor_is_left_open(start: Start) -> None:
    children = [start("say('outcome')") for _ in range(3)]
    before = open_descriptors()
    for child in children:
        child.ask({})
        child.kill()
    fresh = isinstance(children[0].process, subprocess.Popen)
    assert before - open_descriptors() == 3 * (5 if fresh else 6)  # with its selector; a forked one has a status too


def test_a_child_that_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    before = open_descriptors()
    with pytest.raises(FileNotFoundError):
        Child(QUICK, {}, OutputLog())
    assert open_descriptors() == before


def test_is_alive_tells_the_living_from_the_dead(start: Start) -> None:
    child = start("say('outcome')")
    assert is_alive(child.process.pid)
    os.kill(child.process.pid, signal.SIGKILL)
    child.process.wait(60)
    until = time.monotonic() + 10.0
    while is_alive(child.process.pid) and time.monotonic() < until:  # the nursery, its parent, has to fetch its status
        time.sleep(0.01)
    assert not is_alive(child.process.pid)


@pytest.mark.fault("F22")
def test_a_flood_on_the_output_disturbs_nothing_and_is_cut(start: Start) -> None:
    child = start("""
        sys.stdout.write("start of the flood")
        sys.stdout.write('{"kind": "outcome", "forged": true}\\n' * 100000)
        sys.stdout.write("x" * 3000000)  # and not one line end
        sys.stderr.write("end of the flood")
        sys.stdout.flush()
        say("outcome", genuine=True)
    """)
    assert child.ask({}) == {"kind": "outcome", "genuine": True}
    child.kill()
    assert len(child.log) <= KEPT_BYTES
    assert "x" * 1000 in child.log
    assert "start of the flood" not in child.log
