"""Fault rows of time: F15, F17, F50, defect 4. No phase, hang or trace goes beyond the budget by over 5 % and 2 s."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.data import DataLoader, Dataset

import autofit
from autofit.core.budget import OVERTIME_RATIO, OVERTIME_S, PROCESS_S, Clock
from autofit.core.errors import BudgetSpent, ClockError
from autofit.devices import base
from autofit.probing import watchdog
from autofit.probing.watchdog import Overdue, Watchdog
from autofit.search.request import Event
from tests.fakes import FakeTime
from tests.probing.remote.fake_worker import PYTHON

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGRTMAX"), reason="needs a signal of its own")
TRAIN = """
import os, time
import torch
from torch.utils.data import DataLoader, Dataset

def hang(place):
    if os.environ["PLACE"] == place:
        time.sleep(600)

class Rows(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, at):
        hang("data")
        return torch.full((8,), float(at))

def step(model, batch):
    hang("step")
    return model(batch).square().mean()

def make_workload():
    hang("factory")
    return {"model": torch.nn.Linear(8, 4), "loader": DataLoader(Rows(), batch_size=8), "step_fn": step}
"""


def allowed_s(budget_s: float) -> float:
    return (1 + OVERTIME_RATIO) * budget_s + OVERTIME_S


@pytest.mark.parametrize(
    "place", ["step", *(pytest.param(place, marks=pytest.mark.slow) for place in ("data", "factory"))]
)
@pytest.mark.fault("F15", "F17")
def test_defect_04_a_hang_ends_with_the_budget_of_the_command(tmp_path: Path, place: str) -> None:
    """F15, F17: --time 20s took 135 s with a hang in a step, 611 s in the data set, 608 s in the factory."""
    (tmp_path / "train.py").write_text(TRAIN)
    command = [PYTHON, "-P", "-m", "autofit", "tune", "train.py", "--time", "10s", "--study", ":memory:"]
    environment, began = {**os.environ, "PLACE": place}, time.monotonic()
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert time.monotonic() - began <= allowed_s(10.0)
    assert done.returncode == 7, done.stderr
    assert "the time budget of 10 s" in done.stderr  # it ran out in the opening, or is spent by a run
    assert "no sign of life" in done.stderr  # what hangs is said before


class Hanging(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples of which one hangs, once it is told to."""

    def __init__(self) -> None:
        self.hangs = False

    def __len__(self) -> int:
        return 64

    def __getitem__(self, at: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.hangs:
            threading.Event().wait()
        return torch.full((8,), float(at)), torch.tensor(at % 4)


def tune(step_fn: Callable[[nn.Module, Any], torch.Tensor], budget_s: float, **more: Any) -> autofit.Fit:
    """Tunes, and fails where that goes beyond its time or leaves the model other than it was."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    before = [p.detach().clone() for p in model.parameters()]
    handler, threads, began = signal.getsignal(signal.SIGRTMAX), threading.active_count(), time.monotonic()
    try:
        return autofit.tune(
            model,
            DataLoader(more.pop("data", Hanging()), batch_size=8),
            step_fn=step_fn,
            global_batch_size=more.pop("global_batch_size", 8),
            memory_budget="1GiB",
            time_budget=budget_s,
            study=":memory:",
            **more,
        )
    finally:
        assert time.monotonic() - began <= allowed_s(budget_s)
        assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
        assert (signal.getsignal(signal.SIGRTMAX), threading.active_count()) == (handler, threads)


def good(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.fault("F15")
def test_defect_04_a_step_that_hangs_in_process_ends_with_the_budget_and_is_named() -> None:
    """F15: nothing ended it."""
    events: list[Event] = []
    steps = 0

    def hangs(model: nn.Module, batch: Any) -> torch.Tensor:
        nonlocal steps
        steps += 1
        while steps > 3:  # as users' code does that catches what it can
            try:
                time.sleep(600)
            except Exception:
                continue
        return good(model, batch)

    fit = tune(hangs, 4.0, strategies=("batching",), progress=events.append)
    assert fit.plan == fit.baseline.plan  # whole steps of it had ended before
    assert any("is not proven" in caveat or fit.proof.proven for caveat in (*fit.caveats, ""))
    waiting = [event.text for event in events if event.kind == "waiting"]
    assert waiting
    assert all(text.startswith("no sign of life for ") for text in waiting)


@pytest.mark.fault("F17")
def test_defect_04_a_data_set_that_hangs_before_the_first_probe_ends_with_the_budget() -> None:
    """F17."""
    data = Hanging()
    data.hangs = True
    with pytest.raises(BudgetSpent, match="the time budget of 3 s ran out"):
        tune(good, 3.0, data=data, progress=False)


@pytest.mark.fault("F15")
def test_defect_04_a_plan_that_hangs_costs_itself_and_the_rest_is_proven(tmp_path: Path) -> None:
    def hangs(model: nn.Module, batch: Any) -> torch.Tensor:
        if len(batch[0]) == 16 and not isinstance(batch[0], FakeTensor) and gates_passed.exists():
            time.sleep(600)
        return good(model, batch)

    gates_passed = tmp_path / "passed"  # a file, since what a step function holds is put back

    def listen(event: Event) -> None:
        gates_passed.touch()

    fit = tune(hangs, 10.0, strategies=("batching",), progress=listen, global_batch_size=16)
    assert fit.proof.worst_steps == 3
    assert fit.answer.counts.get("timed out", 0) >= 1


def test_defect_04_a_trace_that_hangs_takes_its_share_of_the_budget_only() -> None:
    """A hanging trace took 64 s of a budget of 10."""

    def hangs(model: nn.Module, batch: Any) -> torch.Tensor:
        if isinstance(batch[0], FakeTensor):
            time.sleep(600)
        return good(model, batch)

    assert tune(hangs, 6.0, strategies=("batching",), progress=False).proof.worst_steps == 3


def test_what_puts_things_back_is_not_interrupted_and_what_runs_for_nobody_is_not_either() -> None:
    protected: dict[str, Any] = {"__name__": f"{watchdog.PROTECTED[0]}.guard", "sleep": time.sleep}
    exec("def restore(work):\n    return work()", protected)  # a frame of the guard's
    exec("def slow():\n    sleep(0.5)\n    sleep(0.5)\n    return 'done'", protected)

    def slow() -> str:
        time.sleep(0.5)
        time.sleep(0.5)
        return "done"

    clock = Clock(limit_s=0.0)
    with Watchdog(clock) as watch:
        watch._until = -1.0
        assert slow() == "done"  # outside of what is allowed
        watch.clock.limit_s = 100.0
        assert watch.allowed(lambda: _overdue(watch, lambda: protected["restore"](protected["slow"]))) == "done"
        with pytest.raises(Overdue):  # a method of the user's that the guard calls may hang
            watch.allowed(lambda: _overdue(watch, lambda: protected["restore"](slow)))
        with pytest.raises(Overdue, match="not finished in the time that it was given"):
            watch.allowed(lambda: _overdue(watch, slow))


def _overdue(watch: Watchdog, work: Callable[[], str]) -> str:
    watch._until = -1.0
    return work()


def test_in_another_thread_it_only_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LEAST_REPORT_S", 0.1)
    said: list[str] = []

    def listen(text: str) -> None:
        said.append(text)
        raise RuntimeError("a listener that fails")

    def work() -> None:
        with Watchdog(Clock(limit_s=0.4), listen) as watch:
            watch.allowed(lambda: time.sleep(1.5))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(said) > 1
    assert all("no sign of life" in text for text in said)


def test_a_run_has_what_is_left_and_putting_back_has_the_overtime() -> None:
    time_s = FakeTime()
    clock = Clock(time_s, limit_s=100.0)
    assert clock.patience_s() == 100.0
    time_s.advance(96.0)
    assert (clock.patience_s(), clock.closing_s()) == (4.0, 4.0 + 100.0 * OVERTIME_RATIO + OVERTIME_S - PROCESS_S)
    time_s.advance(20.0)
    assert clock.patience_s() == 0.0
    assert clock.closing_s() == 100.0 * OVERTIME_RATIO + OVERTIME_S - PROCESS_S
    assert Clock(time_s).patience_s() == float("inf")
    assert Clock(time_s, start=100.0).elapsed_s == 16.0
    assert 100.0 + clock.closing_s() <= allowed_s(100.0)


@pytest.mark.parametrize("found", [float("nan"), -1.0])
@pytest.mark.fault("F50")
def test_f50_a_clock_that_is_none_is_an_error_that_says_so(found: float) -> None:
    clock = Clock(lambda: found, start=0.0)
    with pytest.raises(ClockError, match=r"the clock is broken.*time\.monotonic"):
        _ = clock.elapsed_s


@pytest.mark.parametrize("step_s", [0.0, float("nan")])
@pytest.mark.fault("F50")
def test_f50_steps_that_take_no_time_are_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    """A frozen clock gave a ZeroDivisionError, one that gives NaN a StudyError."""
    ticks = iter(range(10**9))
    monkeypatch.setattr(base, "perf_counter", lambda: step_s * next(ticks))
    with pytest.raises(ClockError, match=r"the clock is broken: steps took .*time\.perf_counter"):
        tune(good, 60.0, strategies=("batching",), progress=False)
