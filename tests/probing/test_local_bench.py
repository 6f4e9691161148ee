"""A bench knows the workload before the first probe, and leaves no trace of any (promise 4)."""

import math
import time
from collections.abc import Iterator
from threading import Thread
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from autofit import estimators
from autofit.core.account import Account
from autofit.core.briefing import Briefing, Options
from autofit.core.budget import Clock
from autofit.core.errors import (
    Untraceable,
    UsageError,
)
from autofit.core.outcome import Status
from autofit.core.trial import Purpose
from autofit.gates.verdict import Checked
from autofit.probing.local_bench import LocalBench
from autofit.probing.probe import UNKNOWN_S
from autofit.probing.watchdog import Watchdog
from autofit.workloads.workload import Workload
from tests.digests import digest_of
from tests.fakes import notes
from tests.probing import targets
from tests.probing.benches import CPU, PLENTY, bench_of
from tests.probing.stateful import used_workload

HOST = Account(allocator="host")


@pytest.fixture
def used() -> Workload:
    return used_workload()


def first_weight(workload: Workload) -> nn.Parameter:
    return workload.model.get_parameter("layers.0.weight")


def gradient_of(weight: nn.Parameter) -> torch.Tensor:
    assert weight.grad is not None
    return weight.grad


def digest(workload: Workload) -> str:
    assert isinstance(workload.optimizer, torch.optim.Optimizer)
    return digest_of(workload.model, workload.optimizer, workload.loader, {"loss_fn": workload.loss_fn})


def test_opening_and_evaluating_leaves_no_trace(used: Workload) -> None:
    before, gradient = digest(used), first_weight(used).grad
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
    assert first_weight(used).grad is gradient


@pytest.mark.fault("F26")
def test_failing_plans_leave_no_trace(used: Workload) -> None:
    before = digest(used)
    with bench_of(used, numerics="any") as bench:
        baseline = bench.briefing.space.baseline
        model: Any = used.model
        kept = model.calls
        for number in (1, 3, 5):
            model.fails_at = kept + number
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
            first_weight(used).data.zero_()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        spoil()
    assert digest(used) == before


def test_an_opening_that_fails_leaves_no_trace(used: Workload) -> None:
    before = digest(used)
    with pytest.raises(UsageError, match="memory"):
        bench_of(used, memory_budget="9999TiB")
    assert digest(used) == before


class Dying(CPU):  # type: ignore[misc]  # a class that is looked up
    """A device that stops answering when it is told to."""

    dead = False

    def synchronize(self) -> None:
        if self.dead:
            raise RuntimeError("CUDA error: device-side assert triggered")


def test_nothing_is_written_to_a_poisoned_device(monkeypatch: pytest.MonkeyPatch) -> None:
    device, workload = Dying(), targets.make_mlp()
    with bench_of(workload, device) as bench:
        workload.model.get_submodule("2").register_forward_hook(lambda *_: setattr(device, "dead", True))
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


@pytest.mark.parametrize("global_batch_size", [4, 16])
def test_a_measured_plan_is_known_whether_or_not_a_whole_step_ran_on_the_worst_batch(global_batch_size: int) -> None:
    """A compilation has more time as long as no plan is known that could be the answer."""
    workload = Workload(targets.mlp(), targets.vectors(batch_size=4), global_batch_size=global_batch_size)
    with bench_of(workload) as bench:
        assert math.isinf(bench._fastest_s)
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE).measured
        assert (bench._fastest_s == UNKNOWN_S) is (global_batch_size == 16)
        assert math.isfinite(bench._fastest_s)


def test_what_was_assumed_is_said() -> None:
    caveats = bench_of(targets.make_mlp()).briefing.caveats
    assert any(text.startswith("the loss was inferred: ") and "cross_entropy" in text for text in caveats)
    assert any("measured with torch.optim.AdamW" in text for text in caveats)
    given = targets.make_mlp(loss_fn=nn.functional.cross_entropy, optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1))
    assert [text for text in bench_of(given).briefing.caveats if "accelerator" not in text] == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has an accelerator")
def test_a_search_on_the_cpu_for_want_of_anything_better_is_said() -> None:
    assert any(text.startswith("tuned for the CPU") for text in bench_of(targets.make_mlp()).briefing.caveats)


class Untried(CPU):  # type: ignore[misc]  # a class that is looked up
    """A device with something to say."""

    def caveats(self) -> tuple[str, ...]:
        return ("nobody has tried this device",)


def test_what_the_device_has_to_say_is_said() -> None:
    assert "nobody has tried this device" in bench_of(targets.make_mlp(), Untried()).briefing.caveats


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


def test_inference_runs_in_evaluation_mode_and_training_in_training_mode() -> None:
    seen = notes()
    modes: tuple[tuple[Literal["train", "inference"], bool], ...] = (("inference", False), ("train", True))
    for mode, expected in modes:
        model = targets.mlp().train(not expected)
        model[0].register_forward_hook(lambda module, x, y: seen.append(module.training))
        with bench_of(Workload(model, targets.vectors(), mode=mode), strategies=("batching",)) as bench:
            seen.clear()
            bench.evaluate(bench.briefing.space.baseline, Purpose.BLOCK)
        assert set(seen) == {expected}
        assert model.training is not expected


class Stream(IterableDataset[Any]):
    """Samples that can only be iterated; the iterator in flight belongs to the user."""

    def __iter__(self) -> Iterator[Any]:
        for at in range(64):
            yield torch.full((8,), float(at)), torch.tensor(at % 4)


@pytest.mark.fault("F29")
def test_a_running_iterator_of_the_users_goes_on_as_if_nothing_had_happened() -> None:
    loader = DataLoader(Stream(), batch_size=8)
    iterator = iter(loader)
    next(iterator)
    with bench_of(Workload(targets.mlp(), loader)) as bench:
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE).measured
    inputs, _ = next(iterator)
    assert inputs[:, 0].tolist() == [float(at) for at in range(8, 16)]


def test_gradients_from_before_do_not_enter_the_first_step(used: Workload) -> None:
    norms, weight = notes(), first_weight(used)
    assert isinstance(used.optimizer, torch.optim.Optimizer)
    used.optimizer.register_step_pre_hook(lambda *_: norms.append(float(gradient_of(weight).abs().max())))
    gradient_of(weight).fill_(1e6)
    with bench_of(Workload(used.model, used.loader, optimizer=used.optimizer)) as bench:
        bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
    assert norms
    assert max(norms) < 1e3
    assert float(gradient_of(weight).max()) == 1e6


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
            output: torch.Tensor = self.layer(x) * float(x.numpy().max())
            return output

    workload = Workload(Looks(), targets.vectors(), loss_fn=nn.functional.cross_entropy)
    with bench_of(workload) as bench:
        plan = bench.briefing.space.baseline
        with pytest.raises(Untraceable):
            bench.trace(plan)
        assert bench.evaluate(plan, Purpose.PROBE).measured


def slow(seconds: float) -> Workload:
    """A workload whose loss takes long, except when the bench is opened."""
    opened: list[bool] = []

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        if opened:
            time.sleep(seconds)
        opened.append(True)
        return nn.functional.cross_entropy(output, target)

    return Workload(targets.mlp(), targets.vectors(), loss_fn=loss, global_batch_size=16)


def checked_in(limit_s: float, workload: Workload) -> Checked:
    """Returns the check of other micro batches, which has so many seconds."""
    with Watchdog(Clock()) as watch, LocalBench(workload, CPU(), PLENTY, watch=watch) as bench:
        watch.clock.limit_s = watch.clock.elapsed_s + limit_s
        return bench.check(bench.briefing.space.baseline.replace(micro_batch_size=4, accumulation_steps=4), {})


def test_time_that_runs_out_leaves_a_plan_unchecked() -> None:
    found = checked_in(0.2, slow(60))
    assert (found.passed, found.checked, found.verdicts) == (False, False, {})
    assert "ran out" in found.reason
    assert "give more time for this check" in found.reason


def test_in_another_thread_a_check_ends_between_two_gradients() -> None:
    """No signal comes there."""
    results: list[Checked] = []
    work = Thread(target=lambda: results.append(checked_in(0.2, slow(2.5))))
    work.start()
    work.join()
    (found,) = results
    assert (found.passed, found.checked) == (False, False)
    assert "ran out" in found.reason


class OfEight(nn.Module):
    """Admits only batches of 8, as a model does whose hidden state was made for them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4)), nn.Linear(8, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.blocks(x.view(8, 8))
        return output


@pytest.mark.parametrize(
    "terms",
    [{}, {"loss_fn": F.cross_entropy}, {"step_fn": lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])}],
)
def test_a_model_that_admits_only_the_users_batch_is_looked_at_with_that(terms: dict[str, Any]) -> None:
    workload = Workload(OfEight(), targets.vectors(batch_size=8), **terms)
    with LocalBench(workload, CPU(), Options(memory_budget="1GiB")) as bench:
        baseline = bench.briefing.space.baseline
        knobs = {knob.name for knob in bench.briefing.space.knobs}
        assert "checkpointed_blocks" in knobs
        assert bench.trace(baseline).events
        assert bench.evaluate(baseline, Purpose.PROBE).measured
        assert bench.evaluate(baseline.replace(micro_batch_size=4), Purpose.PROBE).status is Status.USER_ERROR
