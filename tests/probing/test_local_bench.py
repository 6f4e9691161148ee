"""A bench knows the workload before the first probe, and leaves no trace of any (promise 4)."""

import copy
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from autofit import devices, estimators
from autofit.core.account import Account
from autofit.core.briefing import Briefing, Options
from autofit.core.errors import (
    DevicePoisoned,
    NothingFits,
    SpaceError,
    Untraceable,
    UsageError,
    UserCodeError,
    WorkloadError,
)
from autofit.core.outcome import Status
from autofit.core.trial import Purpose
from autofit.devices.base import Device
from autofit.guard import digest_of
from autofit.guard.tensor_state import StorageBytes
from autofit.identity.identity import signature
from autofit.probing.local_bench import LocalBench
from autofit.probing.workload_facts import own_batch
from autofit.workloads.batches import BatchSource
from autofit.workloads.workload import Workload
from tests.fakes import notes
from tests.probing import targets

CPU: Any = type(devices.choose("cpu"))
PLENTY = Options(memory_budget="1GiB")
HOST = Account(allocator="host")


def bench_of(workload: Workload, device: Device | None = None, **options: Any) -> LocalBench:
    return LocalBench(workload, device or CPU(), PLENTY.model_copy(update=options))


class Stateful(nn.Module):
    """Everything a probe could leave a trace in: statistics, random numbers, attributes, modes, gradients."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 4))
        self.frozen = nn.Dropout(0.5).eval()
        self.register_buffer("seen", torch.zeros(4), persistent=False)
        self.calls, self.fails_at = 0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == self.fails_at:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        self.seen += 1.0
        return self.frozen(self.layers(x + 0.01 * torch.randn_like(x))) + self.seen


@pytest.fixture
def used() -> Workload:
    """A workload in the middle of training, in the middle of an accumulation."""
    model = Stateful()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = targets.vectors()
    for inputs, labels in loader:
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return Workload(
        model, loader, loss_fn=nn.CrossEntropyLoss(label_smoothing=0.1), optimizer=optimizer, max_grad_norm=1.0
    )


def digest(workload: Workload) -> str:
    assert isinstance(workload.optimizer, torch.optim.Optimizer)
    return digest_of(workload.model, workload.optimizer, workload.loader, {"loss_fn": workload.loss_fn})


def test_opening_and_evaluating_leaves_no_trace(used: Workload) -> None:
    before, gradient = digest(used), used.model.layers[0].weight.grad
    assert gradient is not None
    with bench_of(used, numerics="any") as bench:
        assert digest(used) == before
        baseline = bench.briefing.space.baseline
        plans = [
            baseline,
            baseline.replace(micro_batch_size=16),
            baseline.replace(precision="bf16"),
            baseline.replace(optimizer_implementation="for-loop", micro_batch_size=4, accumulation_steps=2),
        ]
        for plan in plans:
            for purpose in Purpose:
                assert bench.evaluate(plan, purpose).measured
                assert digest(used) == before
    assert digest(used) == before
    assert used.model.layers[0].weight.grad is gradient


def test_failing_plans_leave_no_trace(used: Workload) -> None:
    before = digest(used)
    with bench_of(used, numerics="any") as bench:
        baseline = bench.briefing.space.baseline
        kept = used.model.calls
        for number in (1, 3, 5):
            used.model.fails_at = kept + number
            outcome = bench.evaluate(baseline, Purpose.PROOF)
            assert outcome.status is Status.OUT_OF_MEMORY
            assert digest(used) == before  # the attribute that made it fail is back, too
        assert bench.evaluate(baseline.replace(precision="fp8"), Purpose.PROBE).status is Status.REJECTED
        assert bench.evaluate(baseline.replace(micro_batch_size=0), Purpose.PROBE).status is not Status.MEASURED
        assert digest(used) == before


def test_an_exception_inside_leaves_no_trace_and_passes_through(used: Workload) -> None:
    before = digest(used)

    def spoil() -> None:
        with bench_of(used) as bench:
            bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
            used.model.layers[0].weight.data.zero_()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        spoil()
    assert digest(used) == before


def test_an_opening_that_fails_leaves_no_trace(used: Workload) -> None:
    before = digest(used)
    with pytest.raises(UsageError, match="memory"):
        bench_of(used, memory_budget="9999TiB")
    assert digest(used) == before


def test_the_heap_is_frozen_while_open_and_not_afterwards() -> None:
    assert gc.get_freeze_count() == 0
    with bench_of(targets.make_mlp()):
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_a_heap_that_the_user_has_frozen_stays_so() -> None:
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        with bench_of(targets.make_mlp()):
            assert gc.get_freeze_count() <= count
        assert 0 < gc.get_freeze_count() <= count
    finally:
        gc.unfreeze()


class Dying(CPU):
    """A device that stops answering when it is told to."""

    dead = False

    def synchronize(self) -> None:
        if self.dead:
            raise RuntimeError("CUDA error: device-side assert triggered")


def test_nothing_is_written_to_a_poisoned_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device, workload = Dying(), targets.make_mlp()
    with bench_of(workload, device) as bench:
        workload.model[2].register_forward_hook(lambda *_: setattr(device, "dead", True))
        restored: list[int] = []
        monkeypatch.setattr(bench._guard, "restore", lambda: restored.append(1))
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE).status is Status.POISONED
        assert restored == []


def test_the_briefing_survives_json(used: Workload) -> None:
    bench = bench_of(used)
    text = bench.briefing.model_dump_json()
    assert Briefing.model_validate_json(text) == bench.briefing
    settings = bench.briefing.environment.settings
    expected = {"mode": "train", "max_grad_norm": "1.0", "optimizer": "AdamW"}
    assert expected.items() <= settings.items()
    digests = {"code", "attributes", "data", "worst_sample", "flags", "optimizer_options"}
    assert settings.keys() - expected.keys() == digests
    assert bench.briefing.environment.versions.keys() >= {"python", "torch", "autofit"}
    assert bench.briefing.environment.threads == torch.get_num_threads()
    assert bench.briefing.budget.memory_bytes == 2**30
    assert not bench.briefing.enforced


def test_what_was_assumed_is_said() -> None:
    caveats = bench_of(targets.make_mlp()).briefing.caveats
    assert any(text.startswith("the loss was inferred: ") and "cross_entropy" in text for text in caveats)
    assert any("measured with torch.optim.AdamW" in text for text in caveats)
    given = targets.make_mlp(loss_fn=nn.functional.cross_entropy, optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1))
    assert [text for text in bench_of(given).briefing.caveats if "accelerator" not in text] == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has an accelerator")
def test_a_search_on_the_cpu_for_want_of_anything_better_is_said() -> None:
    assert any(text.startswith("tuned for the CPU") for text in bench_of(targets.make_mlp()).briefing.caveats)


class Untried(CPU):
    """A device with something to say."""

    def caveats(self) -> tuple[str, ...]:
        return ("nobody has tried this device",)


def test_what_the_device_has_to_say_is_said() -> None:
    assert "nobody has tried this device" in bench_of(targets.make_mlp(), Untried()).briefing.caveats


def signature_of(workload: Workload) -> str:
    return bench_of(workload).briefing.environment.workload


def test_the_signature_is_that_of_the_structure_and_not_of_the_weights(used: Workload) -> None:
    own = signature_of(used)
    trained = copy.copy(used)
    with torch.no_grad():
        trained.model.layers[0].weight.add_(1.0)
    assert signature_of(trained) == own
    assert signature_of(targets.make_mlp()) != own
    assert signature_of(targets.make_mlp()) == signature_of(targets.make_mlp())


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda: Workload(targets.mlp(width=17), targets.vectors()), "model"),
        (lambda: Workload(targets.mlp()[:3].append(nn.Linear(16, 4, bias=False)), targets.vectors()), "model"),
        (lambda: Workload(targets.mlp().double(), doubles()), "model"),
        (lambda: Workload(frozen(), targets.vectors()), "model"),
        (lambda: targets.make_mlp(loss_fn=nn.CrossEntropyLoss()), "data"),
        (lambda: Workload(targets.mlp(), doubles(torch.float32), loss_fn=lambda x, y: x.mean()), "data"),
    ],
)
def test_the_signature_changes_with(change: Callable[[], Workload], part: str) -> None:
    own, other = signature_of(targets.make_mlp()).split("-"), signature_of(change()).split("-")
    assert own[part == "data"] != other[part == "data"]
    if part == "data":
        assert own[0] == other[0]


def doubles(dtype: torch.dtype = torch.float64) -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(32, 8, dtype=dtype), torch.randn(32, 4)), batch_size=8)


def frozen() -> nn.Module:
    model = targets.mlp()
    model[0].weight.requires_grad_(False)
    return model


def test_a_signature_is_two_short_digests() -> None:
    assert signature(targets.mlp(), "x float32[B]", "mse_loss") == signature(targets.mlp(), "x float32[B]", "mse_loss")
    first, second = signature(targets.mlp(), "x float32[B]", "mse_loss").split("-")
    assert len(first) == len(second) == 8


def test_a_model_elsewhere_is_refused_with_both_places() -> None:
    model = targets.mlp().to("meta")
    with pytest.raises(WorkloadError) as error:
        bench_of(Workload(model, targets.vectors()))
    text = str(error.value)
    assert "the model is on meta, but is to be tuned on cpu" in text
    assert "model.to('cpu')" in text
    assert "pass device='meta'" in text
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(WorkloadError, match="the model is on cpu, meta"):
        bench_of(Workload(mixed, targets.vectors()))


def test_a_model_may_be_moved_where_it_is_not_the_users_own() -> None:
    moved: list[torch.device] = []

    class Movable(nn.Linear):
        def to(self, device: Any) -> Any:
            moved.append(device)
            return super().to(device)

    bench_of(Workload(Movable(8, 4), targets.vectors()), may_move=True)
    assert moved == [torch.device("cpu")]
    bench_of(Workload(Movable(8, 4), targets.vectors()))
    assert len(moved) == 1


def test_an_unknown_strategy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SpaceError) as error:
        bench_of(targets.make_mlp(), strategies=("batching", "magic"))
    assert "unknown strategy 'magic'; expected some of " in str(error.value)
    assert "precision" in str(error.value)


def test_strategies_that_are_left_out_have_no_knob() -> None:
    space = bench_of(targets.make_mlp(), strategies=("batching",)).briefing.space
    assert space.knobs == ()
    assert set(space.baseline.values) == {"micro_batch_size", "accumulation_steps"}


def test_exact_numerics_have_no_precision_knob() -> None:
    class Capable(CPU):
        def capabilities(self) -> frozenset[str]:
            return frozenset({"bf16", "fp16"})

    space = bench_of(targets.make_mlp(), Capable(), numerics="exact").briefing.space
    assert "precision" not in {knob.name for knob in space.knobs}
    assert any("numerics='exact' keeps the arithmetic" in refusal.reason for refusal in space.refused)
    mixed = bench_of(targets.make_mlp(), Capable()).briefing.space
    assert "precision" in {knob.name for knob in mixed.knobs}


@pytest.mark.parametrize(
    ("loader_batch", "total", "expected"),
    [
        (8, None, (8, 1)),
        (8, 45, (5, 9)),
        (10, 45, (9, 5)),
        (8, 7, (7, 1)),
        (8, 13, (1, 13)),
        (64, 16, (16, 1)),
        (8, 24, (8, 3)),
    ],
)
def test_the_users_own_setting_keeps_the_global_batch(
    loader_batch: int, total: int | None, expected: tuple[int, int]
) -> None:
    assert own_batch(loader_batch, total, resizable=True) == expected


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.stats = nn.Linear(8, 4), {"calls": 0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.stats["calls"] += 1
        found: torch.Tensor = self.layer(x)
        return found


def test_a_counter_in_a_container_makes_no_other_workload() -> None:
    """The gates put it back before the second look, so that a study was never used again after a training."""
    model = Counting()
    settings = [bench_of(Workload(model, targets.vectors(), global_batch_size=16)).briefing.environment.settings]
    model.stats["calls"] = 1000
    settings.append(bench_of(Workload(model, targets.vectors(), global_batch_size=16)).briefing.environment.settings)
    assert settings[0] == settings[1]


def test_batches_that_are_only_cut_keep_the_global_batch_exactly() -> None:
    ready = [(torch.randn(12, 3 + length, 8), torch.randint(4, (12, 3 + length))) for length in range(8)]
    workload = Workload(targets.mlp(), ready, step_fn=of_tokens, global_batch_size=20)
    bench = bench_of(workload)
    assert (bench.briefing.space.baseline.micro_batch_size, bench.briefing.space.sizes) == (4, (1, 2, 4))
    draw = BatchSource.of(ready).rebuild(4)
    assert [len(part[0]) for part, _ in zip(draw, range(24), strict=False)] == [4] * 24


def of_tokens(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def test_an_odd_global_batch_has_its_divisors_only() -> None:
    space = bench_of(targets.make_mlp(global_batch_size=45)).briefing.space
    assert space.sizes == (1, 3, 5, 9, 15, 45)
    assert (space.baseline.micro_batch_size, space.baseline.accumulation_steps) == (5, 9)
    assert space.global_batch_size == 45


def test_a_free_batch_is_not_accumulated() -> None:
    space = bench_of(targets.make_mlp(max_global_batch_size=64)).briefing.space
    assert space.global_batch_size is None
    assert space.sizes == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
    assert space.baseline.global_batch_size == 8


def uncut(size: int) -> list[Any]:
    """Batches that hold a tensor which is not one row per sample."""
    return [(torch.randn(size, 8), torch.zeros(size, dtype=torch.long), torch.full((5,), float(at))) for at in range(3)]


def uncut_step(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_batches_that_cannot_be_cut_must_make_up_the_global_batch() -> None:
    with pytest.raises(SpaceError) as error:
        bench_of(Workload(targets.mlp(), uncut(6), step_fn=uncut_step, global_batch_size=16))
    assert "a global batch of 16 with a loader whose batches of 6 can be neither cut nor joined" in str(error.value)
    with bench_of(Workload(targets.mlp(), uncut(6), step_fn=uncut_step, global_batch_size=12)) as bench:
        assert bench.briefing.space.sizes == (6,)
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROOF).measured


def test_inference_has_no_global_batch_to_keep() -> None:
    with bench_of(targets.make_mlp(mode="inference", global_batch_size=24)) as bench:
        space = bench.briefing.space
        assert space.global_batch_size is None
        assert space.baseline.accumulation_steps == 1
        outcome = bench.evaluate(space.baseline, Purpose.PROOF)
        assert outcome.measured, outcome.reason
        assert outcome.measurement is not None
        assert outcome.measurement.loss is None
        assert outcome.measurement.memory.static_bytes == sum(p.nbytes for p in bench.workload.model.parameters())


def test_inference_runs_in_evaluation_mode_and_training_in_training_mode() -> None:
    seen = notes()
    for mode, expected in (("inference", False), ("train", True)):
        model = targets.mlp().train(not expected)
        model[0].register_forward_hook(lambda module, x, y: seen.append(module.training))
        with bench_of(Workload(model, targets.vectors(), mode=mode), strategies=("batching",)) as bench:
            seen.clear()
            bench.evaluate(bench.briefing.space.baseline, Purpose.BLOCK)
        assert set(seen) == {expected}
        assert model.training is not expected


def test_an_error_of_the_users_while_opening_is_shown_as_theirs() -> None:
    class Broken(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("found 7 channels")

    with pytest.raises(UserCodeError) as error:
        bench_of(Workload(Broken(8, 4), targets.vectors()))
    assert "your code failed before the first probe: ValueError: found 7 channels" in str(error.value)
    assert "in forward" in error.value.traceback_text
    assert "/autofit/" not in error.value.traceback_text
    assert isinstance(error.value.__cause__, ValueError)


def test_an_error_of_the_data_while_opening_is_shown_as_theirs() -> None:
    class Rows(TensorDataset):
        def __getitem__(self, at: int) -> Any:
            raise KeyError("label")

    with pytest.raises(UserCodeError, match="KeyError"):
        bench_of(Workload(targets.mlp(), DataLoader(Rows(torch.zeros(8, 8)), batch_size=4)))


def test_two_samples_that_do_not_fit_are_no_error_of_the_users() -> None:
    class Huge(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 900.00 GiB.")

    with pytest.raises(NothingFits, match="not even two samples fit"):
        bench_of(Workload(Huge(8, 4), targets.vectors()))


POISON = "CUDA error: an illegal memory access was encountered"


def test_a_device_that_is_poisoned_when_opening_is_no_error_of_the_users() -> None:
    class Poisoned(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise RuntimeError(POISON)

    with pytest.raises(DevicePoisoned, match="answers every call with an error") as error:
        bench_of(Workload(Poisoned(8, 4), targets.vectors()))
    assert isinstance(error.value.__cause__, RuntimeError)


def test_what_a_poisoned_device_keeps_is_said_beside_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be written, nor read to verify; the error that tells of the poison is the one to see."""
    workload = targets.make_mlp()
    error = DevicePoisoned("no answer")
    bench = bench_of(workload).__enter__()
    workload.model.note = "set by a step"
    monkeypatch.setattr(StorageBytes, "restore", unwritable)
    monkeypatch.setattr(StorageBytes, "differences", unwritable)
    bench.__exit__(DevicePoisoned, error, None)
    assert "model.0.weight" in error.__notes__[0]
    assert not hasattr(workload.model, "note")


def unwritable(*_: object) -> None:
    raise RuntimeError(POISON)


class Stream(IterableDataset):
    """Samples that can only be iterated; the iterator in flight belongs to the user."""

    def __iter__(self) -> Iterator[Any]:
        for at in range(64):
            yield torch.full((8,), float(at)), torch.tensor(at % 4)


def test_a_running_iterator_of_the_users_goes_on_as_if_nothing_had_happened() -> None:
    loader = DataLoader(Stream(), batch_size=8)
    iterator = iter(loader)
    next(iterator)
    with bench_of(Workload(targets.mlp(), loader)) as bench:
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE).measured
    inputs, _ = next(iterator)
    assert inputs[:, 0].tolist() == [float(at) for at in range(8, 16)]


def test_gradients_from_before_do_not_enter_the_first_step(used: Workload) -> None:
    norms = notes()
    used.optimizer.register_step_pre_hook(lambda *_: norms.append(float(used.model.layers[0].weight.grad.abs().max())))
    used.model.layers[0].weight.grad.fill_(1e6)
    with bench_of(Workload(used.model, used.loader, optimizer=used.optimizer)) as bench:
        bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
    assert norms
    assert max(norms) < 1e3
    assert float(used.model.layers[0].weight.grad.max()) == 1e6


def test_a_trace_estimates_the_peak_that_a_probe_measures_and_leaves_no_trace(used: Workload) -> None:
    before = digest(used)
    with bench_of(used) as bench:
        plan = bench.briefing.space.baseline
        assert bench.briefing.account is not None
        estimated = estimators.memory_use(bench.trace(plan), bench.briefing.account).judged_bytes
        assert digest(used) == before
        measurement = bench.evaluate(plan, Purpose.PROBE).measurement
    assert measurement is not None
    assert estimated == pytest.approx(measurement.memory.judged_bytes, rel=0.02)


def test_a_trace_is_of_the_worst_batch() -> None:
    workload = Workload(targets.Transformer(), targets.sentences((3, 24)), step_fn=targets.token_mean)
    with bench_of(workload) as bench:
        sizes = {
            size: estimators.memory_use(
                bench.trace(bench.briefing.space.baseline.replace(micro_batch_size=size)), HOST
            ).allocated_bytes
            for size in (2, 4, 8)
        }
        measured = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE).measurement
    assert sizes[2] < sizes[4] < sizes[8]
    assert measured is not None
    assert sizes[8] == pytest.approx(measured.memory.judged_bytes, rel=0.02)


def test_what_cannot_be_traced_says_so_and_is_measured_all_the_same() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * float(x.numpy().max())

    workload = Workload(Looks(), targets.vectors(), loss_fn=nn.functional.cross_entropy)
    with bench_of(workload) as bench:
        plan = bench.briefing.space.baseline
        with pytest.raises(Untraceable):
            bench.trace(plan)
        assert bench.evaluate(plan, Purpose.PROBE).measured
