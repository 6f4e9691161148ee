"""What a run leaves on the device is noticed and named; what belongs to the search is not."""

import gc
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from autofit import devices, tune
from autofit.core.briefing import Options
from autofit.core.measurement import Measurement
from autofit.core.outcome import Status
from autofit.core.trial import Purpose
from autofit.probing.local_bench import LEAST_BYTES, LeakWatch, LocalBench
from autofit.probing.probe_outcome import growth
from autofit.workloads.workload import Workload
from tests.fakes import FakeTime
from tests.probing import targets

CPU: Any = type(devices.choose("cpu"))
BIG = (1024, 1024)  # 4 MiB of float32


@dataclass
class Shelf:
    """Where the user's code keeps tensors; the device below counts exactly these as live."""

    kept: list[Any] = field(default_factory=list)


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    shelf = Shelf()
    yield shelf
    shelf.kept.clear()


def counting(shelf: Shelf) -> Any:
    class Counting(CPU):  # type: ignore[misc]  # a class that is looked up
        def live_bytes(self) -> int:
            return sum(t.untyped_storage().nbytes() for t in shelf.kept)

    return Counting()


def test_a_kept_tensor_is_found_named_and_not_found_again(shelf: Shelf) -> None:
    watch = LeakWatch(counting(shelf))
    watch.begin()
    shelf.kept.append(torch.zeros(BIG))
    text = watch.found()
    assert text.startswith("4 MiB stayed on the device after the run: your code keeps ")
    assert "float32 (1024, 1024)" in text
    assert ".cpu()" in text
    watch.begin()
    assert watch.found() == ""
    shelf.kept.append(torch.zeros(2048, 1024, dtype=torch.float64))
    assert "the largest float64 (2048, 1024)" in watch.found()


def test_a_kept_graph_is_what_is_said_to_be_kept(shelf: Shelf) -> None:
    watch = LeakWatch(counting(shelf))
    watch.begin()
    shelf.kept.append((torch.zeros(BIG, requires_grad=True) * 2).exp())
    assert "Keep loss.item() instead" in watch.found()


def test_what_was_there_before_is_not_named(shelf: Shelf) -> None:
    old = torch.zeros(4096, 4096)
    watch = LeakWatch(counting(shelf))
    watch.begin()
    shelf.kept.append(torch.zeros(BIG))
    assert "(4096, 4096)" not in watch.found()
    assert old.numel()


@pytest.mark.parametrize("size", [LEAST_BYTES // 4 - 1, 0])
def test_next_to_nothing_is_no_leak(shelf: Shelf, size: int) -> None:
    watch = LeakWatch(counting(shelf))
    watch.begin()
    shelf.kept.append(torch.zeros(size))
    assert watch.found() == ""
    assert shelf.kept[0].nbytes < LEAST_BYTES


def test_memory_that_no_tensor_explains_is_said_to_be_so() -> None:
    class Growing(CPU):  # type: ignore[misc]  # a class that is looked up
        live = 0

        def live_bytes(self) -> int:
            return self.live

    device = Growing()
    watch = LeakWatch(device)
    watch.begin()
    device.live = 7 * 2**20
    assert "7 MiB stayed on the device after the run: no tensor that Python can see" in watch.found()


def test_a_device_that_counts_nothing_is_not_watched(shelf: Shelf) -> None:
    watch = LeakWatch(CPU())
    watch.begin()
    shelf.kept.append(torch.zeros(BIG))
    assert watch.found() == ""


def keeping(shelf: Shelf) -> Callable[[nn.Module, Any], torch.Tensor]:
    def step_fn(model: nn.Module, batch: Any) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        shelf.kept.append(loss * torch.ones(BIG))
        return loss

    return step_fn


def workload_of(shelf: Shelf) -> Workload:
    return Workload(model=targets.mlp(), loader=targets.vectors(), step_fn=keeping(shelf))


@pytest.mark.fault("F12")
def test_a_leaking_run_is_measured_and_says_what_it_left(shelf: Shelf) -> None:
    with LocalBench(workload_of(shelf), counting(shelf), Options(memory_budget="8GiB", strategies=())) as bench:
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
    assert outcome.status is Status.MEASURED
    assert "stayed on the device" in outcome.leaked
    assert "Keep loss.item() instead" in outcome.leaked


def test_a_model_that_keeps_tensors_on_itself_leaks_nothing_once_it_was_put_back(shelf: Shelf) -> None:
    class Remembering(nn.Linear):
        def __init__(self) -> None:
            super().__init__(8, 4)
            self.seen = shelf.kept  # put back with the module's other attributes

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.append(torch.zeros(BIG))
            return super().forward(x)

    workload = Workload(model=Remembering(), loader=targets.vectors())
    with LocalBench(workload, counting(shelf), Options(memory_budget="8GiB", strategies=())) as bench:
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
    assert outcome.measured
    assert outcome.leaked == ""


class Noticing(nn.Linear):
    """Keeps something of 4 MiB in steps, as `keep` says."""

    def __init__(self, keep: Callable[[list[Any]], object]) -> None:
        super().__init__(8, 4)
        self.keep, self.seen = keep, list[Any]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.keep(self.seen)
        return super().forward(x)


def once(seen: list[Any]) -> None:
    """Fills a table in the second step."""
    seen.append(torch.zeros(BIG) if len(seen) == 1 else None)


def cyclic(seen: list[Any]) -> None:
    cycle: list[Any] = [torch.zeros(BIG)]
    cycle.append(cycle)


def replaced(seen: list[Any]) -> None:
    seen[:] = [torch.zeros(BIG)]


def proof_of(keep: Callable[[list[Any]], object]) -> Measurement:
    gc.collect()  # garbage of other tests would be freed in between
    workload = Workload(model=Noticing(keep), loader=targets.vectors(), optimizer=torch.optim.AdamW)
    with LocalBench(workload, CPU(), Options(memory_budget="8GiB", strategies=())) as bench:
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROOF)
    assert outcome.measurement is not None
    assert outcome.measurement.proven
    return outcome.measurement


@pytest.mark.fault("F12")
def test_a_list_that_grows_on_the_model_is_seen_in_the_proof_although_it_is_put_back() -> None:
    assert proof_of(lambda seen: seen.append(torch.zeros(BIG))).growth_bytes == 4 * 2**20


@pytest.mark.parametrize("keep", [once, cyclic, replaced, lambda seen: seen.append(torch.zeros(64))])
def test_what_is_made_once_replaced_or_garbage_is_no_growth(keep: Callable[[list[Any]], object]) -> None:
    assert proof_of(keep).growth_bytes == 0


def test_state_that_the_optimizer_makes_in_its_first_step_is_no_growth() -> None:
    workload = Workload(nn.Sequential(nn.Linear(8, 4096), nn.Linear(4096, 4)), targets.vectors())
    with LocalBench(workload, CPU(), Options(memory_budget="8GiB", strategies=())) as bench:
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROOF)
    assert outcome.measurement is not None
    assert outcome.measurement.growth_bytes == 0


@pytest.mark.parametrize(
    ("live", "now", "grown"),
    [
        ([10, 14, 18], 18, 4),
        ([10, 14, 20], 20, 4),
        ([10, 14], 14, 0),
        ([10, 14, 14], 14, 0),
        ([10, 10, 14], 14, 0),
        ([10, 14, 18], 10, 0),
        ([10, 14, 18], 14, 2),
        ([None, None, None], None, 0),
    ],
)
def test_growth_is_what_each_step_after_the_first_left_behind(
    live: list[int | None], now: int | None, grown: int
) -> None:
    of_mib = [None if each is None else each * 2**20 for each in live]
    assert growth(of_mib, lambda: None if now is None else now * 2**20) == grown * 2**20


def test_the_result_says_by_how_much_memory_grows_and_how_long_it_lasts(step_clock: FakeTime) -> None:
    model = Noticing(lambda seen: seen.append(torch.zeros(BIG)))
    model.register_forward_pre_hook(lambda *_: step_clock.advance(0.1))
    fit = tune(
        model, targets.vectors(), global_batch_size=4, study=":memory:", progress=False, strategies=(), device="cpu",
        memory_budget="1GiB",
    )  # fmt: skip
    told = [text for text in fit.caveats if text.startswith("live memory grew by 4 MiB with each step")]
    assert len(told) == 1
    assert "live memory grew" in " ".join(str(fit).split()), "it is among the few that are always shown"
    steps = re.search(r"after about ([0-9]+) steps", told[0])
    assert steps is not None
    assert 240 <= int(steps[1]) <= 256  # 1 GiB holds 256 of them


def test_the_answer_says_it(shelf: Shelf, monkeypatch: pytest.MonkeyPatch, step_clock: FakeTime) -> None:
    model = targets.mlp()
    # Steps of a known length, since each of them leaves 4 MiB: a race that noise draws out would fill the machine.
    model.register_forward_pre_hook(lambda *_: step_clock.advance(0.1))
    monkeypatch.setattr(CPU, "live_bytes", lambda self: sum(t.untyped_storage().nbytes() for t in shelf.kept))
    fit = tune(
        model,
        targets.vectors(),
        step_fn=keeping(shelf),
        global_batch_size=4,
        study=":memory:",
        progress=False,
        strategies=("batching",),
        device="cpu",
        memory_budget="8GiB",
    )
    told = [text for text in fit.caveats if "left memory behind" in text]
    assert len(told) == 1
    assert "Keep loss.item() instead" in told[0]
