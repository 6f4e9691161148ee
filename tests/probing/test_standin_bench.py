"""A bench that only traces: for this machine in this process, and for a card that is not here in one of its own."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit.chips import StandIn, find
from autofit.core.account import Account
from autofit.core.briefing import Options
from autofit.core.errors import SpaceError, Untraceable, UsageError, UserCodeError, WorkloadError
from autofit.core.plan import Plan
from autofit.memory.trace import Kind
from autofit.probing.remote.bench import RemoteBench, Target
from autofit.probing.standin_bench import CONTEXT_BYTES, StandInBench
from autofit.tracing import isolation
from autofit.workloads.workload import Workload
from tests.probing import targets

TARGETS = str(Path(targets.__file__))
HERE = StandIn(type="cpu")


def opened(workload: Workload, described: StandIn = HERE, **asked: Any) -> StandInBench:
    return StandInBench.of(workload, Options(own_process=True, **asked), described, lambda phase: None)


def mlp(**changes: Any) -> Workload:
    return Workload(targets.mlp(), targets.vectors(), **changes)


class Recurrent(nn.Module):
    """Made of a recurrent layer of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(8, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.inner(x[:, None])[0][:, 0]
        return output


def make_recurrent() -> Workload:
    return Workload(Recurrent(), targets.vectors(), loss_fn=F.cross_entropy)


class Scoring(nn.Module):
    """Computes its own loss; remembers the types of what it was given."""

    saw: ClassVar[list[type]] = []

    def __init__(self) -> None:
        super().__init__()
        self.layers = targets.mlp()

    def forward(self, x: torch.Tensor) -> Any:
        self.saw.append(type(x))
        return SimpleNamespace(loss=self.layers(x).square().mean())


class Picky(nn.Module):
    """Looks at values in its forward pass: nothing to see on fake tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.calls = targets.mlp(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.tolist():
            self.calls += 1
        output: torch.Tensor = self.layers(x)
        return output


def test_on_the_host_live_tensors_count_and_nothing_is_stood_in_for() -> None:
    bench = opened(mlp())
    assert bench.briefing.account == Account(allocator="host")
    assert bench.briefing.environment.device_type == "cpu"
    assert not bench.briefing.enforced
    trace = bench.trace(bench.briefing.space.baseline)
    parameters = sum(p.numel() * p.element_size() for p in targets.mlp().parameters())
    sizes = zip(trace.tensors.sizes, trace.tensors.kinds, strict=True)
    assert sum(size for size, kind in sizes if kind is Kind.PARAMETER) == parameters
    assert trace.micro_batch_size == 8


def test_it_traces_more_samples_than_there_are() -> None:
    bench = opened(mlp())
    plan = bench.briefing.space.baseline.replace(micro_batch_size=4096)
    assert bench.trace(plan).micro_batch_size == 4096
    assert max(bench.briefing.space.sizes) > 64, "the samples that are here do not bound the sizes"


def test_a_loader_that_cannot_be_resized_keeps_its_own_batch() -> None:
    batches = [{"x": torch.randn(6, 8), "y": torch.zeros(6), "edges": torch.zeros(2, at + 3)} for at in range(3)]
    bench = opened(Workload(targets.mlp(), batches, step_fn=lambda model, batch: model(batch["x"]).sum()))
    assert bench.briefing.space.sizes == (6,)
    assert "micro_batch_size" in [refused.name for refused in bench.briefing.space.refused]
    assert bench.trace(bench.briefing.space.baseline).micro_batch_size == 6


def test_no_gate_runs_so_that_what_would_fail_one_is_let_in() -> None:
    loss = nn.CrossEntropyLoss(reduction="sum")  # accumulation changes its gradient
    bench = opened(mlp(loss_fn=loss, global_batch_size=16))
    assert bench.briefing.space.sizes == (1, 2, 4, 8, 16)
    assert bench.briefing.space.baseline.accumulation_steps == 2


def test_the_loss_is_found_without_running_the_model_where_that_can_be() -> None:
    Scoring.saw.clear()
    loader = [{"x": torch.randn(4, 8)} for _ in range(2)]
    assert any("computes its own loss" in note for note in opened(Workload(Scoring(), loader)).briefing.caveats)
    assert Scoring.saw
    assert torch.Tensor not in Scoring.saw, "only fake tensors went through"


def test_a_model_that_looks_at_values_gets_real_ones() -> None:
    model = Picky()
    opened(Workload(model, targets.vectors()))
    assert model.calls > 0


def test_the_users_error_is_shown_as_theirs() -> None:
    loader = DataLoader(TensorDataset(torch.randn(8, 5), torch.zeros(8, dtype=torch.long)), batch_size=4)
    with pytest.raises(UserCodeError, match="mat1 and mat2") as caught:
        opened(Workload(targets.mlp(), loader))
    assert "on the CPU" in str(caught.value)


def test_bad_options_are_refused() -> None:
    with pytest.raises(SpaceError, match="unknown strategy 'magic'"):
        opened(mlp(), strategies=("magic",))
    with pytest.raises(UsageError, match="cannot read '7XB'"):
        opened(mlp(), memory_budget="7XB")


@pytest.mark.fault("F24")
def test_where_no_process_can_be_forked_a_card_needs_a_factory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "IS_SUPPORTED", False)
    with pytest.raises(UsageError, match=r"for NVIDIA H200; expected a factory"):
        StandInBench.of(mlp(), Options(), find("H200").stand_in(), alone=False)


def test_what_can_only_be_measured_is_refused() -> None:
    bench = opened(mlp())
    device = type("Odd", (type(bench._device),), {"account": lambda self: None})()
    with pytest.raises(WorkloadError, match="can only be measured"):
        StandInBench(mlp(), device, Options())


@pytest.fixture(scope="module")
def h200() -> Iterator[RemoteBench]:
    """A child process that stands in for a card."""
    target = Target(f"{TARGETS}:make_transformer", options=Options(), stand_in=find("H200").stand_in())
    with RemoteBench(target) as bench:
        yield bench


@pytest.mark.slow
def test_a_card_that_is_not_here_is_described_with_its_arithmetic(h200: RemoteBench) -> None:
    briefing, capacity = h200.briefing, find("H200").capacity_bytes
    assert briefing.environment.device_name == "NVIDIA H200"
    assert briefing.environment.capacity_bytes == capacity
    assert briefing.account == Account(allocator="caching", outside_bytes=CONTEXT_BYTES)
    assert "headroom" in briefing.budget.memory_note
    assert any("512 MiB are assumed for context and libraries" in note for note in briefing.caveats)
    assert 0.85 * capacity < briefing.budget.memory_bytes < 0.93 * capacity
    (precision,) = (knob for knob in briefing.space.knobs if knob.name == "precision")
    assert precision.values == ("fp32", "tf32", "bf16", "fp16")


@pytest.mark.slow
def test_it_traces_what_only_the_card_has(h200: RemoteBench) -> None:
    plan = h200.briefing.space.baseline
    single, half = (h200.trace(plan.replace(precision=name)) for name in ("fp32", "bf16"))
    workspaces = [s for s, k in zip(single.tensors.sizes, single.tensors.kinds, strict=True) if k is Kind.WORKSPACE]
    assert workspaces[0] == 32 * 2**20, "cuBLAS takes 32 MiB from compute capability 9.0 on"
    assert half.tensors.sizes != single.tensors.sizes


@pytest.mark.slow
def test_a_plan_that_the_stand_in_cannot_apply_has_its_reason(h200: RemoteBench) -> None:
    with pytest.raises(Untraceable, match="tf32"):
        h200.trace(h200.briefing.space.baseline.replace(precision="tf32"))
    assert h200.trace(h200.briefing.space.baseline).events, "the same child goes on"


@pytest.mark.slow
def test_without_a_card_only_the_memory_bounds_and_a_note_says_which_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))  # this file imports others of the tests
    options = Options(memory_budget="3GiB")
    with RemoteBench(Target(f"{__file__}:make_recurrent", options=options, stand_in=StandIn())) as bench:
        assert bench.briefing.budget.memory_bytes == 3 * 2**30
        assert any("compute capability 8.0" in note for note in bench.briefing.caveats)
        assert bench.briefing.account is not None
        assert bench.briefing.account.settings == "expandable_segments:True"
        with pytest.raises(Untraceable, match=r"a library runs the LSTM.*'inner'"):
            bench.trace(bench.briefing.space.baseline)


def test_recurrent_layers_are_not_estimated_on_a_host_either() -> None:
    with pytest.raises(Untraceable, match="a library runs the LSTM"):
        opened(make_recurrent()).trace(Plan(values={"micro_batch_size": 8}))


@pytest.mark.parametrize("length", [3, 12])
def test_a_trace_at_another_length_is_that_of_a_loader_with_this_length(length: int) -> None:
    def of(words: int) -> StandInBench:
        return opened(Workload(targets.Transformer(), targets.sentences((words,)), step_fn=targets.token_mean))

    bench, there = of(6), of(length)
    assert (bench.briefing.sequence_length, there.briefing.sequence_length) == (6, length)
    plan = bench.briefing.space.baseline
    assert bench.trace(plan, length).tensors.sizes == there.trace(plan).tensors.sizes
    assert bench.trace(plan).tensors.sizes != there.trace(plan).tensors.sizes


def test_a_step_that_fails_at_another_length_is_not_traced_at_it() -> None:
    bench = opened(mlp(loss_fn=F.cross_entropy))  # its second extent is the number of features
    with pytest.raises(Untraceable):
        bench.trace(bench.briefing.space.baseline, 5)
