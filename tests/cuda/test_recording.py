"""What short runs of steps that cannot be traced say of their memory, against what larger ones then take."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit import devices, estimators
from autofit.core.briefing import Options
from autofit.core.errors import Untraceable
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.guard import digest_of
from autofit.memory.scaling import Scaling
from autofit.memory.trace import Kind
from autofit.probing.local_bench import LocalBench
from autofit.workloads.workload import Workload
from tests.cuda.searches import MIB, quick

OPTIONS = Options(strategies=("batching", "precision"), enforce=True)
LENGTH, VOCABULARY, WIDTH = 256, 2000, 128
RECORDED = (2, 4, 8)

pytestmark = pytest.mark.usefixtures("trusted_values")


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)


@pytest.fixture(autouse=True)
def history_off() -> Iterator[None]:
    assert not torch._C._cuda_isHistoryEnabled()
    yield
    assert not torch._C._cuda_isHistoryEnabled()


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.blocks(self.embed(ids)))
        return output


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.head(self.lstm(self.embed(ids))[0])
        return output


def looked_at(model: nn.Module, batch: tuple[torch.Tensor]) -> torch.Tensor:
    """A language model's loss, which is looked at in the middle of the step."""
    logits = model(batch[0])
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), batch[0][:, 1:].flatten())
    return loss if loss.item() == loss.item() else loss * 2


def workload(maker: Callable[[], nn.Module]) -> Workload:
    with torch.device("cuda"):
        model = maker()
    rows = torch.randint(1, VOCABULARY, (1, LENGTH)).expand(256, -1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Workload(model, DataLoader(TensorDataset(rows), batch_size=8), step_fn=looked_at, optimizer=optimizer)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("maker", [Transformer, Recurrent])
def test_runs_at_small_batches_estimate_what_is_reserved_at_large_ones(
    maker: Callable[[], nn.Module], precision: str
) -> None:
    with LocalBench(workload(maker), devices.choose("cuda"), OPTIONS) as bench:
        account = bench.briefing.account
        assert account is not None

        def plan(size: int) -> Plan:
            changes = {} if precision == "fp32" else {"precision": precision}
            return bench.briefing.space.baseline.replace(micro_batch_size=size, **changes)

        bench.record(plan(2))  # tables that libraries make once
        law = estimators.scaling([bench.record(plan(size)) for size in RECORDED], slack_ratio=0.02)
        assert isinstance(law, Scaling), law
        for size in (8 * RECORDED[0], 8 * RECORDED[-1]):
            scaled = law.at(size)
            assert not isinstance(scaled, estimators.Mismatch)
            estimated = estimators.memory_use(scaled, account)
            measured = bench.evaluate(plan(size), Purpose.PROBE).measurement
            assert measured is not None
            assert estimated.allocated_bytes == pytest.approx(measured.memory.allocated_bytes, rel=0.01)
            assert estimated.reserved_bytes == pytest.approx(measured.memory.reserved_bytes, rel=0.01, abs=2 * MIB)
            assert estimated.judged_bytes == pytest.approx(measured.memory.judged_bytes, rel=0.01)


def test_a_recording_has_what_was_there_and_leaves_no_trace() -> None:
    used = workload(Transformer)
    assert isinstance(used.optimizer, torch.optim.Optimizer)
    looked_at(used.model, (torch.randint(1, VOCABULARY, (2, LENGTH), device="cuda"),)).backward()  # type: ignore[no-untyped-call]  # torch has no types here
    used.optimizer.step()
    used.optimizer.zero_grad()
    elsewhere = torch.zeros(3 * 2**20, dtype=torch.uint8, device="cuda")
    before = digest_of(used.model, used.optimizer, used.loader)
    with LocalBench(used, devices.choose("cuda"), OPTIONS) as bench:
        bench.device.release()
        held = torch.cuda.memory_allocated()
        trace = bench.record(bench.briefing.space.baseline.replace(micro_batch_size=2))
        assert torch.cuda.memory_allocated() == held
        assert digest_of(used.model, used.optimizer, used.loader) == before
    sizes = {kind: 0 for kind in Kind}
    first = trace.marks[0].event
    for handle in trace.alive(first):
        sizes[trace.tensors.kinds[handle]] += trace.tensors.sizes[handle]
    parameters = sum(p.nbytes for p in used.model.parameters())
    assert sizes[Kind.PARAMETER] == parameters
    assert sizes[Kind.OPTIMIZER_STATE] == 2 * parameters  # Adam's counters of steps are on the host
    assert sizes[Kind.BUFFER] == elsewhere.nbytes
    assert digest_of(used.model, used.optimizer, used.loader) == before


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.calls, self.wanted = 0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.wanted and self.calls > 1:
            torch.empty(self.wanted, dtype=torch.uint8, device=x.device)
        output: torch.Tensor = self.layer(x)
        return output


def test_a_run_that_needs_more_than_the_budget_says_so_and_the_limit_goes() -> None:
    model = Failing().cuda()
    loader = DataLoader(TensorDataset(torch.zeros(64, 8)), batch_size=8)
    tuned = Workload(model, loader, step_fn=lambda model, batch: model(batch[0]).square().mean())
    with LocalBench(tuned, devices.choose("cuda"), OPTIONS.model_copy(update={"memory_budget": "3GiB"})) as bench:
        model.wanted = 4 * 2**30
        with pytest.raises(Untraceable, match="out of memory"):
            bench.record(bench.briefing.space.baseline)
    assert torch.cuda.get_per_process_memory_fraction() == 1.0


def test_marks_are_where_they_were_made() -> None:
    device = devices.choose("cuda")
    with device.recording() as recording:
        first = torch.empty(2**20, dtype=torch.uint8, device="cuda")
        recording.mark()
        del first
        second = torch.empty(2**21, dtype=torch.uint8, device="cuda")
        recording.mark()
        recording.mark()
    assert [request.size_bytes for request in recording.requests] == [2**20, -(2**20), 2**21]
    assert recording.marks == [1, 3, 3]
    del second


def test_a_history_of_the_users_is_left_alone() -> None:
    torch.cuda.memory._record_memory_history("all", context=None)
    try:
        kept = torch.empty(2**20, dtype=torch.uint8, device="cuda")
        with pytest.raises(Untraceable, match="the allocator's history is on"), devices.choose("cuda").recording():
            pass
        assert torch._C._cuda_isHistoryEnabled()
        entries = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
        assert any(entry["addr"] == kept.data_ptr() for entry in entries)
    finally:
        torch.cuda.memory._record_memory_history(None)
