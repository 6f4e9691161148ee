"""A short real run gives what a trace would have given, and leaves no trace of itself (promise 4)."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from autofit import devices, estimators
from autofit.core.briefing import Options
from autofit.core.errors import DevicePoisoned, SpaceError, Untraceable
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.guard import digest_of
from autofit.memory.scaling import Scaling
from autofit.memory.trace import Kind, Trace
from autofit.probing import short_run as recording
from autofit.probing.local_bench import LocalBench
from autofit.workloads.workload import Workload
from tests.probing import targets

LENGTH, RECORDED = 24, (2, 4, 8)


def bench_of(workload: Workload, **options: Any) -> LocalBench:
    return LocalBench(workload, devices.choose("cpu"), Options(memory_budget="1GiB", **options))


def texts(batch_size: int = 16) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(1, targets.VOCABULARY, (256, LENGTH), generator=generator)
    return DataLoader(TensorDataset(rows), batch_size=batch_size)


def looked_at(model: nn.Module, batch: tuple[torch.Tensor]) -> torch.Tensor:
    """A language model's loss, which is looked at in the middle of the step."""
    logits = model(batch[0])
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch[0][:, 1:].flatten())
    return loss if loss.item() > 0 else loss * 2


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(targets.VOCABULARY, 32)
        self.lstm = nn.LSTM(32, 48, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(48, targets.VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.lstm(self.embed(ids))[0])
        return output


MAKERS: dict[str, Callable[[], nn.Module]] = {"gpt": targets.Transformer, "lstm": Recurrent}


@pytest.mark.parametrize("name", MAKERS)
def test_runs_at_small_batches_estimate_the_peak_at_large_ones(name: str) -> None:
    with bench_of(Workload(MAKERS[name](), texts(), step_fn=looked_at)) as bench:
        base = bench.briefing.space.baseline
        assert bench.briefing.account is not None
        law = estimators.scaling(
            [bench.record(base.replace(micro_batch_size=size)) for size in RECORDED], slack_ratio=0.02
        )
        assert isinstance(law, Scaling), law
        for size in (4 * RECORDED[-1], 16 * RECORDED[-1]):
            scaled = law.at(size)
            assert not isinstance(scaled, estimators.Mismatch)
            estimated = estimators.memory_use(scaled, bench.briefing.account)
            measured = bench.evaluate(base.replace(micro_batch_size=size), Purpose.PROBE).measurement
            assert measured is not None
            assert estimated.judged_bytes == pytest.approx(measured.memory.judged_bytes, rel=0.02)
            assert estimated.static_bytes == pytest.approx(measured.memory.static_bytes or 0, rel=0.001)


def test_a_recording_has_the_phases_of_a_trace_and_names_what_it_can() -> None:
    workload = Workload(targets.mlp(), targets.vectors(), loss_fn=F.cross_entropy)
    with bench_of(workload) as bench:
        plan = bench.briefing.space.baseline
        trace, traced = bench.record(plan), bench.trace(plan)
    assert [mark.name for mark in trace.marks] == [mark.name for mark in traced.marks]
    assert trace.micro_batch_size == plan.micro_batch_size
    kept = (Kind.PARAMETER, Kind.GRADIENT, Kind.OPTIMIZER_STATE, Kind.BATCH)

    def sizes(found: Trace, kind: Kind) -> list[int]:
        return sorted(s for s, k in zip(found.tensors.sizes, found.tensors.kinds, strict=True) if k is kind)

    for kind in kept:
        assert sizes(trace, kind) == sizes(traced, kind)
    assert Kind.ACTIVATION in trace.tensors.kinds


def test_two_micro_batches_stand_for_all_of_a_step() -> None:
    workload = Workload(targets.mlp(), targets.vectors(), loss_fn=F.cross_entropy, global_batch_size=32)
    with bench_of(workload) as bench:
        trace = bench.record(Plan(values={"micro_batch_size": 4, "accumulation_steps": 8}))
    names = [mark.name for mark in trace.marks if mark.name.startswith("step 2")]
    assert names == [*["step 2 forward", "step 2 backward"] * 2, "step 2 optimizer"]


def test_inference_is_recorded_too() -> None:
    workload = Workload(targets.mlp(), targets.vectors(), mode="inference")
    with bench_of(workload) as bench:
        trace = bench.record(bench.briefing.space.baseline)
    assert [mark.name for mark in trace.marks] == [*(f"step {n} forward" for n in (1, 2, 3)), "end"]


class Failing(nn.Module):
    """Fails in one of its calls, after it has changed what it can."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.layers, self.error, self.calls, self.fails_at = targets.mlp(), error, 0, -1
        self.register_buffer("seen", torch.zeros(4))
        self.seen: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen += 1.0
        if self.calls == self.fails_at:
            raise self.error
        output: torch.Tensor = self.layers(x) + self.seen
        return output


OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB.")
POISON = torch.AcceleratorError("CUDA error: an illegal memory access was encountered", 700)


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (KeyError("mine"), Untraceable, "mine"),
        (OUT_OF_MEMORY, Untraceable, "out of memory"),
        (SystemExit(3), Untraceable, "3"),
        (SpaceError("no such k"), SpaceError, "no such k"),
        (KeyboardInterrupt("mine"), KeyboardInterrupt, "mine"),
        (POISON, DevicePoisoned, "illegal memory access"),
        (None, None, ""),
    ],
    ids=str,
)
def test_a_run_leaves_nothing_behind_whatever_becomes_of_it(
    error: BaseException | None, kind: type[BaseException] | None, says: str
) -> None:
    model = Failing(error or KeyError())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    loader = targets.vectors()
    for inputs, labels in loader:
        F.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
    before = digest_of(model, optimizer, loader)
    with bench_of(Workload(model, loader, loss_fn=F.cross_entropy, optimizer=optimizer)) as bench:
        plan = bench.briefing.space.baseline
        if kind is not None:
            model.fails_at = model.calls + 2
            with pytest.raises(kind, match=says) as caught:
                bench.record(plan)
            if kind is Untraceable:
                assert f"at micro batch {plan.micro_batch_size}, in forward" in str(caught.value)
            model.fails_at = -1
        else:
            bench.record(plan)
        assert gc.isenabled()
        if kind is not DevicePoisoned:  # a poisoned device is put back when the bench is left
            assert digest_of(model, optimizer, loader) == before
            assert bench.evaluate(plan, Purpose.PROBE).measured
    assert digest_of(model, optimizer, loader) == before


def test_a_step_with_too_many_requests_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MOST_REQUESTS", 20)
    with (
        bench_of(Workload(targets.mlp(), targets.vectors(), loss_fn=F.cross_entropy)) as bench,
        pytest.raises(Untraceable, match="memory requests"),
    ):
        bench.record(bench.briefing.space.baseline)


def test_signs_of_life_come_during_a_run() -> None:
    beats: list[str] = []
    workload = Workload(targets.mlp(), targets.vectors(), loss_fn=F.cross_entropy)
    with LocalBench(workload, devices.choose("cpu"), Options(memory_budget="1GiB"), beats.append) as bench:
        beats.clear()
        bench.record(bench.briefing.space.baseline)
    assert beats == ["fetch", "prepare", "step", "step", "step"]
