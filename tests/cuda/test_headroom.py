"""The budget that nobody asked for: what is available less the headroom, in words that add up."""

from collections.abc import Callable

import pytest
import torch

from autofit import devices
from autofit.core.errors import UsageError
from autofit.core.units import format_bytes
from autofit.devices.base import Device
from autofit.probing.local_bench import LocalBench
from autofit.workloads.workload import Workload
from tests.cuda.targets import FREE, MIB, sized
from tests.phantom.phantom import Phantom
from tests.probing.targets import Transformer, sentences, token_mean

GIB = 2**30
Card = Callable[[int], None]


def headroom(available: int, factor: float = 1.0) -> int:
    """8 % and at least 512 MiB, more when shapes vary, and never more than half."""
    return min(round(max(0.08 * available, 512 * MIB) * factor), available - available // 2)


@pytest.mark.parametrize("varies", [False, True])
def test_the_default_leaves_headroom(varies: bool, device: Device) -> None:
    available = device.available_bytes()
    budget = device.budget(None, varies)
    assert available - budget.memory_bytes == pytest.approx(headroom(available, 1.5 if varies else 1.0), abs=2)
    assert ("times 1.5 for varying shapes" in budget.memory_note) is varies
    assert budget.memory_note.startswith(f"{format_bytes(available)} available - ")
    assert budget.memory_note.endswith(f" = {format_bytes(budget.memory_bytes)}")


@pytest.mark.phantom
@pytest.mark.parametrize("gib", [1, 2, 4, 6, 8, 16, 24, 80, 141])
def test_on_cards_of_every_size(gib: int, device: Device, card: Card) -> None:
    card(gib * GIB)
    assert device.capacity_bytes() == gib * GIB
    available = device.available_bytes()
    assert 0 < available <= gib * GIB
    budget = device.budget(None, varies=False)
    assert available - budget.memory_bytes == pytest.approx(headroom(available), abs=2)
    assert ("at most half" in budget.memory_note) is (available < GIB)
    assert ("(8%" in budget.memory_note) is True


def fill(kept: list[torch.Tensor], size: int) -> None:
    for _ in range(100):
        kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))


@pytest.mark.phantom
@pytest.mark.parametrize("gib", [4, 24])
def test_the_limit_follows_the_card(gib: int, device: Device, card: Card) -> None:
    """A fraction of the capacity is no fixed number of bytes."""
    card(gib * GIB)
    budget = device.budget(0.5, varies=False)
    assert budget.memory_bytes == gib * GIB // 2
    free, total = torch.cuda.mem_get_info()
    outside = total - free - torch.cuda.memory_reserved()
    kept: list[torch.Tensor] = []
    with device.limit(budget.memory_bytes, lambda: 0), pytest.raises(torch.OutOfMemoryError):
        fill(kept, gib * 16 * MIB)
    held = sum(tensor.nbytes for tensor in kept)
    assert budget.memory_bytes - outside - gib * 32 * MIB < held <= budget.memory_bytes - outside


def test_what_this_process_holds_is_available_to_it(device: Device) -> None:
    """A model that is on the device already does not make the budget smaller."""
    before = device.available_bytes()
    kept = torch.empty(700 * MIB, dtype=torch.uint8, device="cuda")
    assert device.available_bytes() == pytest.approx(before, abs=32 * MIB)
    assert kept.numel()


@pytest.mark.phantom
def test_what_another_process_holds_is_not(phantom: Phantom) -> None:
    before = devices.choose("cuda").available_bytes()
    phantom.take(8 * GIB)
    # Up to 1.5 GiB that are in use may be this process's context: that much cannot be told from another process.
    assert before - 8 * GIB <= devices.choose("cuda").available_bytes() <= before - 6.5 * GIB
    phantom.give_back()
    assert devices.choose("cuda").available_bytes() == before


@pytest.mark.phantom
def test_a_driver_that_reports_more_free_than_there_is_gives_no_more_than_the_card(
    device: Device, phantom: Phantom
) -> None:
    phantom.misreport_free(2 * phantom.total_bytes)
    assert 0 < device.available_bytes() <= device.capacity_bytes()
    assert 0 < device.budget(None, varies=False).memory_bytes < device.capacity_bytes()


@pytest.mark.phantom
def test_figures_that_cannot_be_make_no_negative_footprint(device: Device, phantom: Phantom) -> None:
    phantom.misreport_free(2 * phantom.total_bytes)
    with device.meter(lambda: 0) as reading:
        torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
    assert reading.memory is not None
    assert reading.memory.footprint_bytes == reading.memory.reserved_bytes


def test_a_limit_of_the_users_own_is_all_that_is_available(device: Device, cap: Card) -> None:
    free, total = torch.cuda.mem_get_info()
    context = total - free - torch.cuda.memory_reserved()
    cap(3 * GIB)
    assert device.available_bytes() == pytest.approx(3 * GIB + context, abs=64 * MIB)
    assert device.budget(None, varies=False).memory_bytes < 3 * GIB


@pytest.mark.parametrize(("wanted", "ratio"), [(0.5, 0.5), (1.0, 1.0), (0.125, 0.125)])
def test_a_fraction_is_one_of_the_capacity(wanted: float, ratio: float, device: Device) -> None:
    budget = device.budget(wanted, varies=True)
    assert budget.memory_bytes == round(ratio * device.capacity_bytes())
    assert "of the capacity" in budget.memory_note


@pytest.mark.parametrize("wanted", ["3GiB", 3 * GIB, float(3 * GIB), "3072 MiB"])
def test_what_is_asked_for_is_what_holds(wanted: str | float, device: Device) -> None:
    budget = device.budget(wanted, varies=True)
    assert (budget.memory_bytes, budget.memory_note) == (3 * GIB, "3 GiB as requested")


def test_more_than_the_card_has_is_refused_with_both_numbers(device: Device) -> None:
    capacity = device.capacity_bytes()
    assert device.budget(capacity, varies=False).memory_bytes == capacity
    with pytest.raises(UsageError) as error:
        device.budget(2 * capacity, varies=False)
    text = str(error.value)
    assert format_bytes(2 * capacity) in text
    assert format_bytes(capacity) in text
    assert device.name() in text


@pytest.mark.parametrize("varies", [False, True])
def test_a_search_takes_the_varying_of_its_data_into_account(
    varies: bool, device: Device, trusted_values: None
) -> None:
    uneven = Workload(Transformer().cuda(), sentences((3, 24)), step_fn=token_mean)
    workload = uneven if varies else sized()
    with LocalBench(workload, device, FREE.model_copy(update={"memory_budget": None})) as bench:
        note = bench.briefing.budget.memory_note
    assert ("varying shapes" in note) is varies
