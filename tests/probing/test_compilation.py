"""Each plan is compiled as if it were the only one."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo import config, convert_frame
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader, TensorDataset

from autofit import devices
from autofit.core.briefing import Options
from autofit.core.budget import Clock
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.probing import compilation
from autofit.probing.compilation import MOST_COMPILED, shapes_of_a_training, start_cold
from autofit.probing.local_bench import LocalBench
from autofit.probing.watchdog import Watchdog
from autofit.workloads.workload import Workload
from tests.fakes import FakeTime, notes

# torch 2.13 warns of its own code while it compiles, and filters that turn warnings into errors would end it.
pytestmark = pytest.mark.filterwarnings("default")


def test_each_size_is_compiled_for_itself_while_shapes_are_fixed() -> None:
    before = config.automatic_dynamic_shapes, config.recompile_limit
    with shapes_of_a_training(vary=False):
        assert (config.automatic_dynamic_shapes, config.recompile_limit) == (False, MOST_COMPILED)
    assert (config.automatic_dynamic_shapes, config.recompile_limit) == before


def test_where_shapes_vary_nothing_is_changed() -> None:
    before = config.automatic_dynamic_shapes, config.recompile_limit
    with shapes_of_a_training(vary=True):
        assert (config.automatic_dynamic_shapes, config.recompile_limit) == before


@pytest.mark.parametrize("compiled", [True, False])
def test_only_a_process_that_compiled_is_reset(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    resets: list[None] = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(None))
    monkeypatch.setitem(counters, "frames", {"total": 1} if compiled else {})
    start_cold()
    assert len(resets) == compiled


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(self.first(x).tanh())
        return output


class Broken(Net):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x).tanh()
        torch._dynamo.graph_break()
        output: torch.Tensor = self.last(hidden)
        return output


Backend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]


def plain(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    return graph.forward


@contextmanager
def compiling(
    backend: Backend, model: nn.Module | None = None, watch: Watchdog | None = None, samples: int = 64, **more: Any
) -> Iterator[LocalBench]:
    """Opens a bench on which torch.compile uses this back end."""
    loader = DataLoader(TensorDataset(torch.randn(samples, 8), torch.randint(0, 4, (samples,))), batch_size=4)
    workload = Workload(model or Net(), loader, **({"loss_fn": F.cross_entropy} | more))
    options = Options(memory_budget="1GiB", strategies=("compilation",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", partial(torch.compile, backend=backend))
        with LocalBench(workload, devices.choose("cpu"), options, watch=watch) as bench:
            yield bench


def compiled_plan(bench: LocalBench) -> Plan:
    return bench.briefing.space.baseline.replace(compile="default")


with_compiler = pytest.mark.usefixtures("compiler")


@with_compiler
def test_the_time_to_compile_is_part_of_the_warm_up_of_each_cold_run() -> None:
    def slow(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        time.sleep(0.3)
        return graph.forward

    with compiling(slow) as bench:
        for purpose, expected in ((Purpose.PROBE, True), (Purpose.PROBE, True), (Purpose.BLOCK, False)):
            measurement = bench.evaluate(compiled_plan(bench), purpose).measurement
            assert measurement is not None
            assert ((measurement.startup_s or 0) >= 0.3) is expected
            assert ((measurement.compile_s or 0) >= 0.3) is expected
            assert measurement.step_time_s < 0.3
        baseline = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE).measurement
        assert baseline is not None
        assert baseline.startup_s is not None
        assert baseline.startup_s < 0.3
        assert baseline.compile_s is None


@with_compiler
def test_a_compilation_that_takes_too_long_ends_as_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(compilation, "COMPILE_S", 0.5)
    began = time.monotonic()
    with Watchdog(Clock()) as watch, compiling(endless, watch=watch) as bench:
        outcome = bench.evaluate(compiled_plan(bench), Purpose.PROBE)
        assert outcome.status is Status.NOT_COMPILED
        assert outcome.status.at_any_size
        assert "the most that autofit waits for one plan" in outcome.reason
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE).measured
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("took_s", "now_s", "limit_s", "reason"),
    [
        (9.04, 61.0, 60.0, "9.04 s, when the time budget of 1 min 0 s ended"),
        (9.04, 40.0, 60.0, "9.04 s, all the time that its probe had"),
        (300.1, 400.0, None, "5 min 0 s, the most that autofit waits for one plan"),
    ],
)
def test_a_missed_deadline_says_which_it_was(took_s: float, now_s: float, limit_s: float | None, reason: str) -> None:
    now = FakeTime()
    clock = Clock(limit_s=limit_s, now=now)
    now.advance(now_s)
    assert compilation._overdue(took_s, clock) == f"compiling was not finished after {reason}"


@with_compiler
def test_a_compilation_may_take_all_of_the_time_that_is_left() -> None:
    def slow(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        time.sleep(3.0)
        return graph.forward

    later_s = [0.0]
    clock = Clock(now=lambda: time.monotonic() + later_s[0], limit_s=100.0)
    with Watchdog(clock) as watch, compiling(slow, watch=watch) as bench:
        later_s[0] = 90.0 - clock.elapsed_s  # the share of a probe in what is left is less than the compilation takes
        measurement = bench.evaluate(compiled_plan(bench), Purpose.PROBE).measurement
    assert measurement is not None
    assert (measurement.compile_s or 0) >= 3.0


@with_compiler
def test_what_cannot_be_compiled_is_an_outcome_with_the_reason() -> None:
    def failing(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        raise RuntimeError("no kernel for this")

    with compiling(failing) as bench:
        outcome = bench.evaluate(compiled_plan(bench), Purpose.PROBE)
        assert outcome.status is Status.NOT_COMPILED
        assert "no kernel for this" in outcome.reason
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE).measured
    users = torch.compile(Broken(), backend=failing)
    assert isinstance(users, nn.Module)
    loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,))), batch_size=4)
    step = Workload(users, loader, step_fn=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
    with LocalBench(step, devices.choose("cpu"), Options(memory_budget="1GiB", strategies=("batching",))) as bench:
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
    assert outcome.status is Status.USER_ERROR
    assert "no kernel for this" in outcome.reason


@with_compiler
def test_graph_breaks_are_noted_with_their_cause_and_line() -> None:
    with compiling(plain, Broken()) as bench:
        measurement = bench.evaluate(compiled_plan(bench), Purpose.PROBE).measurement
    assert measurement is not None
    (note,) = measurement.compiler_notes
    assert note.startswith("torch.compile broke the graph at 1 place and made 2 graphs: ")
    assert "(test_compilation.py:" in note


@with_compiler
@pytest.mark.fault("F51")
def test_recompilations_are_noted_with_their_cause() -> None:
    class Counting(Net):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x) * self.calls

    with compiling(plain, Counting()) as bench:
        measurement = bench.evaluate(compiled_plan(bench), Purpose.PROBE).measurement
    assert measurement is not None
    (note,) = measurement.compiler_notes
    assert "again, because this no longer held: " in note
    assert "calls" in note


@with_compiler
def test_a_step_that_does_not_call_the_model_is_noted() -> None:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        return F.cross_entropy(model.forward(batch[0]), batch[1])

    with compiling(plain, loss_fn=None, step_fn=step) as bench:
        measurement = bench.evaluate(compiled_plan(bench), Purpose.PROBE).measurement
    assert measurement is not None
    assert "compiled nothing" in measurement.compiler_notes[0]


@with_compiler
def test_leaving_the_bench_discards_its_code() -> None:
    with compiling(plain) as bench:
        bench.evaluate(compiled_plan(bench), Purpose.PROBE)
    assert not convert_frame.output_codes.seen


@with_compiler
def test_the_incomplete_last_batch_of_an_epoch_is_proven_without_compiling_it() -> None:
    compiled, ran = list[int](), notes()

    def noting(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        compiled.append(1)
        return graph.forward

    class Noting(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not torch.compiler.is_compiling():
                ran.append(len(x))
            return super().forward(x)

    with compiling(noting, Noting(), samples=65) as bench:
        outcome = bench.evaluate(compiled_plan(bench), Purpose.PROOF)
    assert outcome.measured, outcome.reason
    assert len(compiled) == 1
    assert ran[-1] == 1
