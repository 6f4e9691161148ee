"""How a command ends: its exit code, its error, and a signal as an interrupt inside the context alone."""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from autofit import planfile
from autofit.cli import outcome
from autofit.cli.outcome import terminable
from autofit.core.errors import (
    Busy,
    DevicePoisoned,
    NonFiniteLoss,
    NothingFits,
    UserCodeError,
    WorkloadError,
)
from tests.cli.conftest import FakeRemote, Run
from tests.cli.processes import ROOT, TARGETS, Running
from tests.test_planfile import RECORD


def test_json_is_one_document_on_stdout(remote: type[FakeRemote], run: Run) -> None:
    code, out, _ = run("tune", "train.py", "--json", "--study", ":memory:")
    told = json.loads(out)
    assert code == 0
    assert told["schema"] == "autofit.plan/1"
    assert told == json.loads(planfile.load("autofit.yaml").model_dump_json(by_alias=True))
    assert json.loads(run("show", "--json")[1]) == told
    export = json.loads(run("export", "--json")[1])
    assert set(export) == {"text", "filename", "target_version", "unmapped", "by_hand", "warnings"}


FAILURES = [
    (WorkloadError("found a list; expected a model"), 2),
    (NothingFits("no plan fits into 1 MiB"), 3),
    (UserCodeError("your code failed", 'File "train.py", line 3\nValueError: \x1b[2Jboom'), 5),
    (NonFiniteLoss("the loss is not finite"), 5),
    (DevicePoisoned("the device does not answer"), 8),
    (Busy("the device is in use"), 6),
    (KeyboardInterrupt(), 130),
    (ZeroDivisionError("a fault of autofit"), 1),
]


@pytest.mark.parametrize(("error", "code"), FAILURES)
def test_each_failure_has_its_exit_code(error: BaseException, code: int, remote: type[FakeRemote], run: Run) -> None:
    remote.fails = error
    found, out, err = run("tune", "train.py", "--study", ":memory:")
    assert (found, out) == (code, "")
    assert str(error) in err
    assert "\x1b" not in err
    assert ("boom" in err) == (type(error) is UserCodeError)
    assert ("Traceback" in err) == (code == 1)
    found, out, err = run("tune", "train.py", "--json", "--study", ":memory:")
    told = json.loads(out)["error"]
    assert found == told["exit_code"] == code
    assert str(error) in told["message"]
    assert told["type"] == ("Interrupted" if code == 130 else type(error).__name__)
    assert not Path("autofit.yaml").exists()


def test_time_that_ends_with_no_plan_is_7(remote: type[FakeRemote], run: Run) -> None:
    code, _, err = run("tune", "train.py", "--time", "0.001ms", "--study", ":memory:")
    assert code == 7
    assert "time budget of 0.001 ms" in err
    assert not Path("autofit.yaml").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("make_mlp", "--memory", "1500B", "--strategies", "batching"), 3, "no plan fits into"),
        (("make_failing", "--memory", "64MiB"), 5, "ValueError: expected nine columns"),
        (("make_not_finite", "--memory", "64MiB"), 5, "not finite"),
        (("make_mlp", "--memory", "64MiB", "--strategies", "magic"), 2, "unknown strategy 'magic'"),
        (("make_nothing",), 2, "has no function 'make_nothing'"),
        (("make_mlp", "--device", "tpu"), 2, "no device 'tpu' here"),
    ],
    ids=str,
)
def test_what_a_real_child_refuses_has_its_exit_code(
    words: tuple[str, ...], code: int, said: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found, out, err = run("tune", f"{TARGETS}:{words[0]}", *words[1:], "--study", ":memory:", "--json", "--quiet")
    told = json.loads(out)["error"]
    assert (found, told["exit_code"]) == (code, code), err
    assert said in err
    assert "\x1b" not in err
    if code == 5:
        assert "out of memory" not in err.lower()
    if words[0] == "make_failing":
        assert "targets.py" in told["traceback"]
    assert not (tmp_path / "autofit.yaml").exists()


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.fault("F56")
def test_a_signal_ends_it_with_130_the_answer_so_far_and_no_process(sign: signal.Signals, running: Running) -> None:
    running.wait_for_trials(2)
    running.process.send_signal(sign)
    out, err = running.process.communicate(timeout=120)
    assert running.process.returncode == 130
    assert "the plan is the best so far, and the same command resumes" in err
    assert "Traceback" not in err
    assert "Proven by 3 whole steps on the worst batch" in out
    assert running.children_are_gone()
    assert (running.folder / "autofit.yaml").exists()


@pytest.mark.slow
def test_a_signal_before_the_baseline_ran_leaves_no_plan(running: Running) -> None:
    running.wait_for_trials(0)
    running.process.send_signal(signal.SIGTERM)
    out, err = running.process.communicate(timeout=120)
    assert running.process.returncode == 130
    assert "the same command resumes" in err
    assert "Traceback" not in err
    assert out == ""
    assert not (running.folder / "autofit.yaml").exists()


def test_a_reader_that_has_enough_is_no_failure() -> None:
    code = "import sys; from autofit.cli import outcome\nimport argparse\n"
    code += "given = argparse.Namespace(json=False)\n"
    code += "sys.exit(outcome.run(lambda given: [print('line' * 9999) for _ in range(99)] and 0, given))"
    script = f'{sys.executable} -c "$CODE" | head -1 >/dev/null; echo ${{PIPESTATUS[0]}}'
    done = subprocess.run(
        ["bash", "-c", script], cwd=ROOT, env={**os.environ, "CODE": code}, capture_output=True, text=True, timeout=120,
        check=True,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("0", "")


@pytest.mark.parametrize(
    ("words", "redirection", "code", "says"),
    [
        ("show", ">&-", 0, ""),
        ("show --json", ">&-", 0, ""),
        ("show absent.yaml", "2>&-", 2, ""),
        ("show absent.yaml --json", ">&- 2>&-", 2, ""),
        ("show", ">/dev/full", 2, "No space left on device; expected free space"),
        ("show --json", ">/dev/full", 2, "No space left on device; expected free space"),
        ("show absent.yaml --json", ">/dev/full", 2, "cannot read the plan file absent.yaml"),
        ("show absent.yaml", "2>/dev/full", 2, ""),
    ],
)
def test_a_closed_or_full_output_is_no_internal_error(
    words: str, redirection: str, code: int, says: str, tmp_path: Path
) -> None:
    planfile.save(RECORD, tmp_path / "autofit.yaml")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m autofit {words} {redirection}"], cwd=tmp_path, env=environment,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert (says in done.stderr, done.stdout) == (True, "")
    assert "Error" not in done.stderr
    assert "Exception" not in done.stderr


def test_a_message_breaks_at_spaces_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(given: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    for terminal, count in ((True, 2), (False, 1)):
        monkeypatch.setattr(sys.stderr, "isatty", lambda found=terminal: found)
        assert outcome.run(interrupted, argparse.Namespace(json=False)) == 130
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == count
        assert " ".join(lines).startswith("autofit: interrupted; the same command resumes from")


def test_sigterm_is_an_interrupt_inside_and_what_it_was_outside() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt, match="terminated; run it again"), terminable("run it again"):
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_sigint_is_handled_inside_unless_it_is_ignored() -> None:
    with pytest.raises(KeyboardInterrupt) as raised, terminable("run it again"):
        os.kill(os.getpid(), signal.SIGINT)
    assert raised.value.args == ()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with terminable("run it again"):
            os.kill(os.getpid(), signal.SIGINT)
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


class Watched:
    """An object that a weak dictionary holds."""


@pytest.mark.parametrize(("sign", "said"), [(signal.SIGTERM, "terminated; run it again"), (signal.SIGINT, "^$")])
def test_a_signal_in_a_finalizer_or_a_weak_callback_is_not_lost(sign: signal.Signals, said: str) -> None:
    class Finalized:
        def __del__(self) -> None:
            signal.raise_signal(sign)

    def in_a_callback() -> None:
        weak, watched = weakref.WeakKeyDictionary[Watched, int](), Watched()
        weak[watched] = 1
        sys.setprofile(struck_in_weakref)
        try:
            del watched
        finally:
            sys.setprofile(None)

    def struck_in_weakref(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename == weakref.__file__:
            sys.setprofile(None)
            signal.raise_signal(sign)

    def run(strike: Callable[[], object]) -> None:
        with terminable("run it again"):
            strike()
            time.sleep(10)

    for strike in (Finalized, in_a_callback):
        with pytest.raises(KeyboardInterrupt, match=said):
            run(strike)
