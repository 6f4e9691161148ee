"""Memory that a run leaves on the device is noticed, counted and named, so that a person finds the line to mend."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autofit.api import tune
from autofit.core.outcome import Status
from autofit.core.trial import Purpose
from autofit.devices.base import Device
from autofit.probing.local_bench import LocalBench
from autofit.probing.remote.bench import RemoteBench, Target
from tests.cuda import targets
from tests.cuda.targets import BATCHING, FREE, MIB, own_loss, rows, sized
from tests.fakes import unguarded

Step = Callable[[nn.Module, Any], torch.Tensor]


class Shelf(list[Any]):
    """A global list of the user's. Its tensors are not for showing: a phantom's hold nothing that can be printed."""

    def __repr__(self) -> str:
        return f"{len(self)} things"


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    kept = unguarded(Shelf())  # a plain list of the user's is put back after each run, once its leak was counted
    yield kept
    kept.clear()


def keeping(shelf: Shelf, what: Callable[[torch.Tensor], Any]) -> Step:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = model(batch[0])
        shelf.append(what(loss))
        return loss

    return step


def activations(loss: torch.Tensor) -> torch.Tensor:
    return torch.empty(5, 2 * MIB, dtype=torch.float16, device=loss.device)


def run(step: Step, device: Device, purpose: Purpose = Purpose.PROBE, **sizes: Any) -> str:
    with LocalBench(sized(step, **sizes), device, FREE) as bench:
        outcome = bench.evaluate(bench.briefing.space.baseline, purpose)
        assert outcome.status is Status.MEASURED, outcome
        return outcome.leaked


def test_what_a_plain_list_keeps_is_named_and_then_let_go(device: Device) -> None:
    kept: list[Any] = []

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        kept.append(activations(model(batch[0])))
        loss: torch.Tensor = model(batch[0])
        return loss

    with LocalBench(sized(step), device, FREE) as bench:
        before = device.live_bytes()
        leaked = bench.evaluate(bench.briefing.space.baseline, Purpose.BLOCK).leaked
        assert re.match(r"\d+ MiB stayed on the device after the run: your code keeps \d tensors", leaked), leaked
        assert kept == []
        assert device.live_bytes() == before


@pytest.mark.parametrize("purpose", list(Purpose))
@pytest.mark.fault("F12")
def test_tensors_in_a_global_list_are_counted_and_named(purpose: Purpose, shelf: Shelf, device: Device) -> None:
    leaked = run(keeping(shelf, activations), device, purpose)
    count = len(shelf) - 1  # the opening made a forward pass
    assert leaked.startswith(f"{20 * count} MiB stayed on the device after the run: ")
    assert f"your code keeps {count} tensors, the largest float16 (5, 2097152)" in leaked
    assert ".cpu()" in leaked


def test_a_kept_loss_keeps_the_activations_of_its_step(shelf: Shelf, device: Device) -> None:
    """The most common leak of all: `losses.append(loss)`. Backward frees what was saved, a forward alone does not."""

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        shelf.append(model(batch[0]))  # for a plot
        loss: torch.Tensor = model(batch[0])
        return loss

    leaked = run(step, device, held=4)
    found = re.match(r"([0-9.]+) MiB stayed", leaked)
    assert found is not None, leaked
    assert float(found[1]) == pytest.approx(32 * (len(shelf) - 1), abs=2)  # the opening made a forward pass
    assert "Keep loss.item() instead" in leaked


@pytest.mark.parametrize(
    "what",
    [lambda loss: loss.item(), lambda loss: activations(loss)[0, : MIB // 4].cpu(), lambda loss: loss.detach()],
    ids=["item", "cpu", "one number"],
)
def test_what_is_kept_elsewhere_or_is_next_to_nothing_is_no_leak(
    what: Callable[[torch.Tensor], Any], shelf: Shelf, device: Device
) -> None:
    assert run(keeping(shelf, what), device) == ""
    assert shelf


def test_a_reference_cycle_is_garbage_and_no_leak(device: Device) -> None:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = model(batch[0])
        cycle: list[Any] = [activations(loss)]
        cycle.append(cycle)
        return loss

    assert run(step, device) == ""


def test_what_was_on_the_device_before_is_no_leak(device: Device) -> None:
    before = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    assert run(own_loss, device) == ""
    assert before.numel()


def test_each_run_names_its_own_leak(shelf: Shelf, device: Device) -> None:
    with LocalBench(sized(keeping(shelf, activations)), device, FREE) as bench:
        plan = bench.briefing.space.baseline
        shelf.clear()  # of what the opening left
        first = bench.evaluate(plan, Purpose.BLOCK).leaked
        count = len(shelf)
        second = bench.evaluate(plan, Purpose.BLOCK).leaked
    assert first.startswith(f"{20 * count} MiB stayed")
    assert second.startswith(f"{20 * (len(shelf) - count)} MiB stayed")


@pytest.mark.fault("F12")
def test_a_run_that_fails_leaks_too(shelf: Shelf, device: Device, cap: Callable[[int], None]) -> None:
    cap(500 * MIB)
    with LocalBench(sized(keeping(shelf, activations), held=10), device, FREE) as bench:
        plan = bench.briefing.space.baseline.replace(micro_batch_size=64)
        outcome = bench.evaluate(plan, Purpose.PROBE)
        assert outcome.status is Status.OUT_OF_MEMORY
        assert outcome.leaked == ""  # it failed before it kept anything
        shelf.append(None)
        plan = plan.replace(micro_batch_size=32)
        outcome = bench.evaluate(plan, Purpose.PROBE)
        assert outcome.status is Status.OUT_OF_MEMORY  # its first step kept 20 MiB, and so on
        assert "MiB stayed on the device" in outcome.leaked


def test_the_answer_warns(shelf: Shelf, device: Device) -> None:
    fit = tune(
        targets.Sized(),
        rows(),
        step_fn=keeping(shelf, activations),
        strategies=("batching",),
        memory_budget="4GiB",
        global_batch_size=8,
        study=":memory:",
        progress=False,
    )
    told = [text for text in fit.caveats if "left memory behind" in text]
    assert len(told) == 1
    assert "float16 (5, 2097152)" in told[0]


@pytest.mark.fault("F12")
def test_a_worker_with_a_leak_is_replaced(tmp_path: Path) -> None:
    """The memory of a process that ended is free again, whatever held it."""
    pids = tmp_path / "pids"
    target = Target(f"{Path(targets.__file__)}:make_leaking", {"pids": str(pids)}, device="cuda", options=BATCHING)
    with RemoteBench(target) as bench:
        plan = bench.briefing.space.baseline
        for _ in range(3):  # once could be a table that is made once
            outcome = bench.evaluate(plan, Purpose.BLOCK)
            assert outcome.measured, outcome
            assert "MiB stayed on the device" in outcome.leaked
    assert len(set(pids.read_text().split())) == 2
