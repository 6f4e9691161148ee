"""The budget holds although the card has room: what the device loses to this process never exceeds it."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from autofit.core.briefing import Options
from autofit.core.errors import NothingFits
from autofit.core.outcome import Status
from autofit.core.trial import Purpose
from autofit.devices.base import Device
from autofit.probing.local_bench import LocalBench
from tests.cuda.targets import BATCHING, MIB, adam, evaluate, outside_bytes, sized
from tests.fakes import unguarded

GIB = 2**30
Cap = Callable[[int], None]


def budget_of(memory: int | str | float, enforce: bool = True) -> Options:
    return BATCHING.model_copy(update={"memory_budget": memory, "enforce": enforce})


class Watching:
    """The user's step, which looks at the allocator where most is held."""

    def __init__(self) -> None:
        self.most_bytes = 0
        self.fractions: list[float] = []

    def __call__(self, model: nn.Module, batch: tuple[torch.Tensor]) -> torch.Tensor:
        self.fractions.append(torch.cuda.get_per_process_memory_fraction())
        loss: torch.Tensor = model(batch[0])
        self.most_bytes = max(self.most_bytes, torch.cuda.memory_reserved())
        return loss


@pytest.mark.parametrize("held", [100, 200, 400])
def test_a_plan_over_the_budget_is_refused_by_the_allocator(held: int, device: Device) -> None:
    """8 samples of 100, 200, 400 MiB; the card has room for them, the budget of 600 MiB beside the context has not."""
    budget, watching = outside_bytes() + 600 * MIB, unguarded(Watching())
    assert torch.cuda.mem_get_info()[0] > 8 * held * MIB
    outcome = evaluate(sized(watching, held=held), device, budget_of(budget))
    assert outcome.status is Status.OUT_OF_MEMORY
    smaller = evaluate(sized(watching, held=held), device, budget_of(budget), micro_batch_size=1)
    assert smaller.measured
    assert smaller.measurement is not None
    assert held * MIB < smaller.measurement.memory.judged_bytes - outside_bytes() <= 600 * MIB
    assert held * MIB < watching.most_bytes <= 600 * MIB


def test_what_is_not_enforced_is_judged_all_the_same(device: Device) -> None:
    budget = outside_bytes() + 600 * MIB
    outcome = evaluate(sized(held=100), device, budget_of(budget, enforce=False))
    assert outcome.status is Status.OVER_BUDGET
    assert outcome.measurement is not None
    assert outcome.measurement.memory.judged_bytes >= outside_bytes() + 800 * MIB
    assert "is above the budget" in outcome.reason


@pytest.mark.parametrize("enforce", [True, False])
def test_the_budget_is_reached_and_not_passed(enforce: bool, device: Device) -> None:
    """A plan fits into its own footprint to the byte, and not into one segment less."""
    found = evaluate(sized(held=50), device, budget_of("4GiB", enforce)).measurement
    assert found is not None
    fits = found.memory.judged_bytes
    exact = evaluate(sized(held=50), device, budget_of(fits, enforce))
    assert exact.measured, exact
    below = evaluate(sized(held=50), device, budget_of(fits - 2 * MIB, enforce))
    assert below.status.does_not_fit


def test_the_context_counts(device: Device) -> None:
    """Segments alone would be inside this budget; with what CUDA itself takes they are not."""
    assert outside_bytes() > 64 * MIB, "a CUDA context takes more than this"
    inside = budget_of(820 * MIB)
    outcome = evaluate(sized(held=100), device, inside)
    assert outcome.status is Status.OUT_OF_MEMORY


def test_a_budget_below_the_context_leaves_nothing(device: Device) -> None:
    """Not a negative fraction, which torch would refuse with an error of its own."""
    outcome = evaluate(sized(), device, budget_of(outside_bytes() - MIB))
    assert outcome.status.does_not_fit


def test_the_whole_card_may_be_asked_for(device: Device) -> None:
    assert evaluate(sized(), device, budget_of(1.0)).measured
    assert evaluate(sized(), device, budget_of(device.capacity_bytes())).measured


def test_the_limit_is_on_only_while_steps_run(device: Device) -> None:
    watching = unguarded(Watching())
    with LocalBench(sized(watching), device, budget_of("2GiB")) as bench:
        assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(1.0)
        watching.fractions.clear()
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE).measured
        assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(1.0)
    expected = (2 * GIB - outside_bytes()) / device.capacity_bytes()
    assert watching.fractions[1:] == pytest.approx(
        [expected] * (len(watching.fractions) - 1), abs=2 * MIB / device.capacity_bytes()
    )
    assert watching.fractions[0] < 1.0  # the small first step too, though libraries may come with it


@pytest.mark.parametrize("failing", [False, True])
def test_the_limit_is_taken_off_however_the_context_is_left(failing: bool, device: Device) -> None:
    before = torch.cuda.get_per_process_memory_fraction()
    try:
        with device.limit(GIB, lambda: 0):
            assert torch.cuda.get_per_process_memory_fraction() < before
            if failing:
                raise KeyError
    except KeyError:
        assert failing
    assert torch.cuda.get_per_process_memory_fraction() == before


def test_a_limit_of_the_users_own_is_not_lifted(device: Device, cap: Cap) -> None:
    cap(300 * MIB)
    own = torch.cuda.get_per_process_memory_fraction()
    with device.limit(GIB, lambda: 0):
        assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(own)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.get_per_process_memory_fraction() == own
    assert evaluate(sized(held=100), device).status is Status.OUT_OF_MEMORY
    assert torch.cuda.get_per_process_memory_fraction() == own


def test_a_limit_of_the_users_own_comes_back_to_the_last_place(device: Device) -> None:
    """The allocator keeps whole bytes, rounded down: what is read and written again may be one byte less."""
    try:
        for wanted in torch.linspace(0.01, 0.99, 99, dtype=torch.float64).tolist():
            torch.cuda.set_per_process_memory_fraction(wanted)
            own = torch.cuda.get_per_process_memory_fraction()
            with device.limit(GIB, lambda: 0):
                pass
            assert torch.cuda.get_per_process_memory_fraction() == own
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_an_allocator_that_says_no_limit_by_a_large_number(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """As cudaMallocAsync does; torch refuses to be told a fraction above 1."""
    monkeypatch.setattr(torch.cuda.memory, "get_per_process_memory_fraction", lambda *_: 1e9)
    with device.limit(3 * device.capacity_bytes(), lambda: 0):
        assert torch.empty(MIB, device="cuda").numel()


def test_a_limit_above_the_card_is_none(device: Device) -> None:
    """As after a card that was larger; torch refuses a fraction above 1."""
    with device.limit(3 * device.capacity_bytes(), lambda: 0):
        assert torch.cuda.get_per_process_memory_fraction() == 1.0


def test_a_lower_limit_inside_another_holds(device: Device) -> None:
    with device.limit(2 * GIB, lambda: 0):
        outer = torch.cuda.get_per_process_memory_fraction()
        with device.limit(GIB, lambda: 0):
            assert torch.cuda.get_per_process_memory_fraction() < outer
        assert torch.cuda.get_per_process_memory_fraction() == pytest.approx(outer)


def test_two_samples_that_do_not_fit_are_said_to_when_opening(device: Device, cap: Cap) -> None:
    """The loss is looked for by running the model once, before any probe."""
    cap(100 * MIB)
    with pytest.raises(NothingFits, match="not even two samples fit"):
        LocalBench(sized(None, held=100), device, BATCHING)


def test_tensors_of_the_users_that_stay_on_the_device_count(device: Device) -> None:
    budget = budget_of(outside_bytes() + 600 * MIB)
    assert evaluate(sized(held=50), device, budget).measured
    other = torch.empty(300 * MIB, dtype=torch.uint8, device="cuda")
    assert evaluate(sized(held=50), device, budget).status.does_not_fit
    assert other.numel()


@pytest.mark.parametrize("steps", [1, 4])
def test_accumulated_micro_batches_fit_where_the_whole_batch_does_not(
    steps: int, device: Device, trusted_values: None
) -> None:
    workload = sized(held=100, optimizer=adam, global_batch_size=8)
    outcome = evaluate(
        workload, device, budget_of(outside_bytes() + 600 * MIB), micro_batch_size=8 // steps, accumulation_steps=steps
    )
    assert outcome.status is (Status.MEASURED if steps > 1 else Status.OUT_OF_MEMORY)
