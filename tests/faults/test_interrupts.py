"""F27, defect 14: Ctrl-C at any line of entering or leaving loses no state and leaves nothing set in the process.

Every line of the guard, of the bench's enter and exit, and of `tune` is hit at its first and at its last run: by an
exception raised on the spot, as between two lines of Python, and by a real SIGINT.
"""

import gc
import signal
import sys
from collections.abc import Callable
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit import api, in_process
from autofit.guard import (
    guard,
    object_state,
    process_state,
    tensor_state,
)
from autofit.guard.object_state import fingerprint
from autofit.probing import frozen_heap, local_bench

PIECES = (object_state, process_state, tensor_state)
MODULES = (api, in_process, local_bench, frozen_heap, guard, *PIECES)
IN_BENCH = ("__init__", "__enter__", "__exit__", "_leave", "_put_back")
IN_API, IN_PROCESS = ("tune",), ("search_in_process", "_opened")
MOST = 40
"""So many points of the pieces' own code are taken; of the guard, the bench and `tune` all are."""
Point = tuple[CodeType, int, int]


class World:
    """A model in evaluation mode, whose statistics a first look changes, and an optimizer with state."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.calls = 0
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 2))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.loader = DataLoader(TensorDataset(torch.randn(16, 4), torch.arange(16) % 2), batch_size=4, shuffle=True)
        F.cross_entropy(self.model(torch.randn(4, 4)), torch.arange(4) % 2).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        self.optimizer.step()
        self.model.eval()
        self.alias = self.model[0].weight.data  # as a flat buffer or an export holds one

    def step(self, model: nn.Module, batch: Any) -> torch.Tensor:
        self.calls += 1
        return F.cross_entropy(model(batch[0]), batch[1])

    def state(self) -> str:
        model = self.model
        values: list[Any] = [self.calls, torch.get_rng_state(), [module.training for module in model.modules()]]
        values += [model.state_dict(), [p.grad for p in model.parameters()], [p.data_ptr() for p in model.parameters()]]
        return fingerprint([*values, [list(state.values()) for state in self.optimizer.state.values()]])

    def search(self, *_: Any) -> Any:
        """Does the harm of a probe that ended in the middle."""
        self.model.train()
        self.calls += 10
        weight = self.model.get_parameter("0.weight")
        weight.data = weight.data + 1
        self.optimizer.zero_grad()
        self.optimizer.state.clear()
        torch.rand(1)
        return SimpleNamespace(caveats=())

    def tune(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(in_process, "search", self.search)
        api.tune(
            self.model, self.loader, step_fn=self.step, optimizer=self.optimizer, device="cpu", strategies=(),
            memory_budget="64MiB", study=":memory:", progress=False,
        )  # fmt: skip


def is_looked_at(code: CodeType) -> bool:
    """Returns whether code belongs to entering or leaving."""
    for module in MODULES:
        if code.co_filename == module.__file__:
            wanted = {local_bench: IN_BENCH, api: IN_API, in_process: IN_PROCESS}.get(module)
            return wanted is None or code.co_name in wanted
    return False


def tracing(seen: Callable[[FrameType], None]) -> Any:
    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not is_looked_at(frame.f_code):
            return None
        if event == "line":
            seen(frame)
        return trace

    return trace


def points(monkeypatch: pytest.MonkeyPatch) -> list[Point]:
    """Returns the first and the last run of each line."""
    counts: dict[tuple[CodeType, int], int] = {}

    def seen(frame: FrameType) -> None:
        key = (frame.f_code, frame.f_lineno)
        counts[key] = counts.get(key, 0) + 1

    world = World()
    sys.settrace(tracing(seen))
    try:
        world.tune(monkeypatch)
    finally:
        sys.settrace(None)
    found = list(dict.fromkeys((*key, run) for key, count in counts.items() for run in (1, count)))
    all_taken = {module.__file__ for module in (api, in_process, local_bench, guard)}
    ours = [point for point in found if point[0].co_filename in all_taken]
    others = [point for point in found if point not in ours]
    return [*ours, *others[:: max(1, len(others) // MOST)]]


def interrupt_at(point: Point, world: World, monkeypatch: pytest.MonkeyPatch, strike: Callable[[], object]) -> bool:
    """Tunes with an interrupt at one point; returns whether it was reached and came out."""
    left = [point[2]]

    def seen(frame: FrameType) -> None:
        if (frame.f_code, frame.f_lineno) == point[:2]:
            left[0] -= 1
            if left[0] == 0:
                sys.settrace(None)
                strike()

    sys.settrace(tracing(seen))
    try:
        world.tune(monkeypatch)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def raise_on_the_spot() -> None:
    raise KeyboardInterrupt


def raise_the_signal() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def young_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the bench collect young objects only before it freezes the heap: all of it is most of the time of a call."""
    short = SimpleNamespace(**{**vars(gc), "collect": lambda: gc.collect(0)})
    monkeypatch.setattr(frozen_heap, "gc", short)


@pytest.mark.usefixtures("heap_not_frozen", "young_heap")
@pytest.mark.timeout(900)  # a minute alone, five on a machine that does much else
@pytest.mark.parametrize(
    ("strike", "every"),
    [
        pytest.param(raise_on_the_spot, 1, marks=pytest.mark.slow),
        pytest.param(raise_the_signal, 1, marks=pytest.mark.slow),
        (raise_the_signal, 3),
    ],
)
@pytest.mark.fault("F26", "F56")
def test_f27_defect_14_an_interrupt_at_any_line_loses_nothing(
    strike: Callable[[], object], every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = points(monkeypatch)
    names = {code.co_qualname for code, _, _ in found}
    assert {
        "Guard.__exit__",
        "Backstop.__exit__",
        "LocalBench.__exit__",
        "LocalBench.__enter__",
        "LocalBench.__init__",
        *IN_API,
        *IN_PROCESS,
    } <= names
    handler, came = signal.getsignal(signal.SIGINT), 0
    found = found[::every]
    for point in found:
        world = World()
        before = world.state()
        came += interrupt_at(point, world, monkeypatch, strike)
        where = f"{point[0].co_qualname}:{point[1]} (run {point[2]})"
        assert world.state() == before, where
        assert not frozen_heap.is_frozen(), where
        assert signal.getsignal(signal.SIGINT) is handler, where
        assert gc.isenabled(), where
    assert came > 0.9 * len(found)
