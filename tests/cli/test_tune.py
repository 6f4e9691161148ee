"""`autofit tune`: what it hands to the search, and what it says of a study."""

import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import pytest

import autofit
from autofit import cli, locks, trackers
from autofit.cli import tune
from autofit.core.errors import (
    StudyError,
)
from autofit.core.outcome import Outcome
from autofit.core.plan import Plan
from autofit.core.trial import Purpose, RunTerms
from autofit.probing.remote.target import Target
from autofit.probing.watchdog import WAITING, Watchdog
from autofit.trackers.base import Ending
from tests.cli.conftest import FakeRemote, Run
from tests.cli.processes import Running
from tests.fakes import briefing_of, small_bench, space_of
from tests.fakes.trackers import KeptTracker
from tests.study.samples import rewrite


def test_quiet_prints_the_result_alone(remote: type[FakeRemote], run: Run) -> None:
    code, out, err = run("tune", "train.py", "--quiet", "--study", ":memory:")
    assert (code, err) == (0, "")
    assert out.startswith("Use ")


@pytest.mark.fault("F58")
def test_a_study_of_another_schema_is_refused_by_name(remote: type[FakeRemote], run: Run) -> None:
    assert run("tune", "t.py", "--study", "s.journal", "--trials", "1", "-o", "a.yaml")[0] == 0
    rewrite(Path("s.journal"), "autofit.study/1", "autofit.study/9")
    probes = len(remote.bench.runs)
    code, _, err = run("tune", "t.py", "--study", "s.journal", "-o", "b.yaml")
    assert code == StudyError.exit_code
    assert "found the schema autofit.study/9; expected autofit.study/1" in err
    assert len(remote.bench.runs) == probes  # nothing was measured in vain
    assert not Path("b.yaml").exists()


def test_a_study_of_another_space_goes_on_with_what_compares(remote: type[FakeRemote], run: Run) -> None:
    knobs = small_bench().space.facts.knobs
    narrow = tuple(knob.only(("float32", "bf16")) if knob.name == "precision" else knob for knob in knobs)
    remote.bench = small_bench(space=space_of(narrow, (4, 8, 16, 32, 64), 8))
    assert run("tune", "t.py", "--study", "s.journal", "--trials", "3")[0] == 0
    first = set(remote.bench.probes())
    remote.bench = small_bench()
    code, _, err = run("tune", "t.py", "--study", "s.journal", "--trials", "3")
    assert code == 0
    assert "plans are known from earlier runs" in err
    assert first
    again = first & set(remote.bench.probes())
    assert len(again - {remote.bench.space.baseline}) <= 1  # the best of them runs again, and is the answer at once


def test_an_interrupted_command_goes_on_from_its_trials(remote: type[FakeRemote], run: Run) -> None:
    remote.interrupt_after = 3
    code, _, err = run("tune", "train.py")
    assert code == 130
    assert "interrupted; the plan is the best so far, and the same command resumes" in err
    assert remote.closed
    assert autofit.load("autofit.yaml").plan in remote.bench.probes()
    first = set(remote.bench.probes())
    remote.bench, remote.interrupt_after = small_bench(), None
    code, _, err = run("tune", "train.py")
    assert code == 0
    assert "3 plans are known from earlier runs" in err
    again = first & set(remote.bench.probes())
    assert len(again - {remote.bench.space.baseline}) <= 1


def test_sigterm_is_an_interrupt_while_tuning_and_nothing_afterwards(remote: type[FakeRemote], run: Run) -> None:
    before = signal.getsignal(signal.SIGTERM)
    evaluate, sent = remote.bench.evaluate, list[int]()

    def terminated(plan: Plan, purpose: Purpose, terms: RunTerms) -> Outcome:
        if not sent:
            sent.append(1)
            os.kill(os.getpid(), signal.SIGTERM)
        return evaluate(plan, purpose, terms)

    remote.bench.evaluate = terminated  # type: ignore[method-assign, assignment]  # a bench that is terminated in its first run
    code, _, err = run("tune", "train.py", "--study", ":memory:")
    assert code == 130
    assert "terminated" in err
    assert signal.getsignal(signal.SIGTERM) is before


def test_arguments_reach_the_target_and_the_request(remote: type[FakeRemote], run: Run) -> None:
    words = "--global-batch 64 --memory 20GiB --numerics exact --device cpu --max-grad-norm 1.5 --mode train --seed 7"
    names = ["--arg", "depth=12", "--arg", "name=small", "--arg", "wide=true", "--arg", "sizes=[1, 2]"]
    code, out, _ = run("tune", "t.py", *words.split(), "--strategies", "batching, precision", *names, "--trials", "6",
                       "--time", "1h", "--json", "--study", ":memory:")  # fmt: skip
    assert code == 0
    target = remote.target
    assert target.arguments == {"depth": 12, "name": "small", "wide": True, "sizes": [1, 2]}
    overrides = {"global_batch_size": 64, "max_global_batch_size": None, "mode": "train", "max_grad_norm": 1.5}
    assert target.overrides == overrides
    assert (target.device, target.options.seed, target.options.numerics) == ("cpu", 7, "exact")
    assert target.options.memory_budget == "20GiB"
    assert target.options.strategies == ("batching", "precision")
    assert json.loads(out)["budget"]["time_s"] == 3600
    assert json.loads(out)["budget"]["max_trials"] == 6
    assert json.loads(out)["objective"]["planned_samples"] is None
    _, out, _ = run("tune", "t.py", "--planned-steps", "50", "--json", "--study", ":memory:")
    assert json.loads(out)["objective"]["planned_samples"] == 50 * 8  # the user's own batch
    run("tune", "t.py", "--memory", "0.5", "--study", ":memory:")
    assert remote.target.options.memory_budget == 0.5


def test_a_target_with_an_eval_loader_is_searched_twice_in_one_time_budget(
    remote: type[FakeRemote], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = list[Target]()

    class Evaluated(remote):  # type: ignore[misc, valid-type]  # the class that the fixture made
        def __init__(self, target: Target, claim: Callable[[str, str], None], **given: object) -> None:
            super().__init__(target, claim, **given)
            targets.append(target)
            self.briefing = briefing_of(remote.bench, evaluates=not target.evaluation)

    monkeypatch.setattr(tune, "RemoteBench", Evaluated)
    code, out, err = run("tune", "t.py", "--time", "100s", "--set", "precision=bf16", "--json", "--study", ":memory:")
    assert code == 0, err
    answer = json.loads(out)
    assert [target.evaluation for target in targets] == [False, True]
    assert targets[1].options.memory_budget == answer["budget"]["memory_bytes"]
    assert targets[1].options.pinned == {}
    assert answer["budget"]["time_s"] == 80
    assert 20 < answer["evaluation"]["budget"]["time_s"] <= 100
    assert answer["evaluation"]["title"] == "evaluation of t.py"
    assert "searching a plan for evaluation" in err


@contextmanager
def terminal(width: int) -> Iterator[tuple[TextIO, list[bytes]]]:
    """Gives a real terminal of a width as a stream, and what was written to it once it is closed."""
    leader, follower = os.openpty()
    pytest.importorskip("termios").tcsetwinsize(follower, (30, width))
    written: list[bytes] = []

    def read() -> None:
        with suppress(OSError):  # the other end is closed
            while data := os.read(leader, 2**16):
                written.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(follower, "w") as stream:
        yield stream, written
    reader.join()
    os.close(leader)


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo terminal")
@pytest.mark.parametrize("width", [40, 60, 100, 200])
def test_b18_on_a_terminal_all_lines_fit_and_trials_stay_above_the_live_line(
    width: int, remote: type[FakeRemote], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("NO_COLOR", "1")
    with terminal(width) as (stream, written), monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        patch.setattr(sys, "stdout", stream)
        assert cli.main(["tune", "train.py", "--study", ":memory:", "--time", "10min"]) == 0
    text = b"".join(written).decode().replace("\x1b[K", "")
    assert "\x1b" not in text
    drawn = [part for line in text.split("\r\n") for part in line.split("\r")]
    assert max(map(len, drawn)) <= width
    left = [line.split("\r")[-1].rstrip() for line in text.split("\r\n")]
    probes = [plan for plan in remote.bench.probes()]
    rows = [line for line in left if re.match(r" +\d+ +\d+\.\d\dx ", line)]
    assert len(rows) == len(probes)  # each fits here, and is left above the line
    assert any(line.startswith("proof") for line in left)
    phases = ("survey", "search", "race", "proof")
    live = [part for part in drawn if re.match(rf"(?:{'|'.join(phases)}).*\d:\d\d", part)]
    assert [name for name in phases if any(part.startswith(name) for part in live)] == list(phases)
    counted = r"search +\d+ " if width < 100 else rf"  {len(probes)} trials "
    so_far = "" if width == 40 else " .*so far"
    assert any(re.search(rf"{counted}.*\b\d\.\d\dx{so_far}, \d+:\d\d left", part) for part in live)
    assert not any(part in left for part in live)  # each was replaced, and nothing of the last one is left
    assert next(line for line in left if line.startswith(("Use ", "Keep ")))


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo terminal")
def test_an_interrupt_leaves_the_terminal_whole(remote: type[FakeRemote], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    remote.interrupt_after = 3
    with terminal(80) as (stream, written), monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stream)
        assert cli.main(["tune", "train.py", "--study", ":memory:", "--time", "10min"]) == 130
    text = b"".join(written).decode()
    assert "\x1b[?25" not in text  # the cursor was never hidden
    last = text.split("\r\n")[-2].split("\r")[-1]
    assert re.sub(r"\x1b\[\d*[A-Za-z]", "", last).startswith("autofit: interrupted")


@pytest.mark.fault("F52")
def test_after_kill_9_the_same_command_goes_on(running: Running) -> None:
    running.wait_for_trials(2)
    running.process.kill()
    running.process.communicate()
    assert running.children_are_gone()
    running.process = running.start()
    out, err = running.process.communicate(timeout=240)
    assert running.process.returncode == 0, err
    known = [line for line in err.splitlines() if "known from earlier runs" in line]
    assert known
    assert int(known[0].split()[1]) >= 2
    assert out.startswith(("Use", "Keep"))
    assert autofit.load(running.folder / "autofit.yaml").proof.worst_steps >= 3


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[KeptTracker]:
    """The trackers that are made: "kept", and "full", which fails when it logs."""
    made: list[KeptTracker] = []

    class Made(KeptTracker):
        def __init__(self, where: str) -> None:
            super().__init__(where)
            made.append(self)

    class Full(KeptTracker):
        name = "full"

        def __init__(self, where: str) -> None:
            super().__init__(where, fails=("log",))
            made.append(self)

    monkeypatch.setattr(trackers, "members", lambda: (Made, Full))
    return made


def test_several_trackers_follow_a_search(remote: type[FakeRemote], run: Run, kept: list[KeptTracker]) -> None:
    code, _, err = run("tune", "t.py", "--study", ":memory:", "--track", "kept", "--track", "kept:sqlite:///a.db")
    assert (code, "warning" in err) == (0, False)
    assert [tracker.where for tracker in kept] == ["", "sqlite:///a.db"]
    for tracker in kept:
        assert tracker.ending is Ending.FINISHED
        assert tracker.conclusion is not None
        assert {"autofit.yaml", "autofit-report.json"} <= tracker.conclusion.documents.keys()


def test_a_tracker_that_fails_is_one_warning_also_with_quiet(
    remote: type[FakeRemote], run: Run, kept: list[KeptTracker]
) -> None:
    code, out, err = run("tune", "t.py", "--quiet", "--study", ":memory:", "--track", "full")
    assert code == 0
    assert out.startswith("Use ")
    assert err.count("\n") == 1
    assert "warning: the tracker full failed and gets no further events: OSError: log: no space left" in err


@pytest.mark.parametrize("name", ["nowhere", "absent"])
def test_a_tracker_that_cannot_be_used_is_a_usage_error_before_anything_runs(
    name: str, remote: type[FakeRemote], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Absent(KeptTracker):
        name, modules, extra = "absent", ("no_such_package_for_autofit",), "absent"

    monkeypatch.setattr(trackers, "members", lambda: (Absent,))
    code, _, err = run("tune", "t.py", "--study", ":memory:", "--track", name)
    assert code == 2
    assert remote.bench.runs == []
    wanted = "expected one of absent" if name == "nowhere" else "pip install '.[absent]'"
    assert wanted in err


def test_an_interrupted_search_is_an_interrupted_run(
    remote: type[FakeRemote], run: Run, kept: list[KeptTracker]
) -> None:
    remote.interrupt_after = 2
    assert run("tune", "t.py", "--study", ":memory:", "--track", "kept")[0] == 130
    assert kept[0].ending is Ending.INTERRUPTED


def test_a_wait_for_another_tuner_is_a_phase_of_its_own(
    remote: type[FakeRemote], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases: list[str] = []

    class Watched(Watchdog):
        def beat(self, phase: str) -> None:
            phases.append(phase)
            super().beat(phase)

    class Claiming(remote):  # type: ignore[misc, valid-type]  # a fixture
        def __init__(self, target: Target, claim: Callable[[str, str], None], **given: object) -> None:
            claim("cpu", "the CPU")
            assert phases == [WAITING]
            super().__init__(target, claim, **given)

    @contextmanager
    def held(key: str, what: str, wait_s: float, say: Callable[[str], None]) -> Iterator[None]:
        say(f"waiting for {what}")
        yield

    monkeypatch.setattr(tune, "Watchdog", Watched)
    monkeypatch.setattr(tune, "RemoteBench", Claiming)
    monkeypatch.setattr(locks, "held", held)
    code, _, err = run("tune", "train.py", "--study", "s.journal")
    assert code == 0
    assert err.index("autofit: waiting for the CPU") < err.index("autofit: waiting for the study ")
    assert phases.count(WAITING) == 2
    assert phases[1:].index(WAITING) < phases.index("choosing the next plan")
