"""Checks of the device files that no other test of this folder would miss, found by scripts/mutate-cuda."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from autofit import devices
from autofit.devices.base import Device
from tests.cuda.targets import FREE, MIB, evaluate, sized

GIB = 2**30


@pytest.mark.phantom
def test_all_of_an_idle_card_is_available_context_included(card: Callable[[int], None]) -> None:
    card(8 * GIB)
    torch.ones(1, device="cuda")
    assert devices.choose("cuda").available_bytes() == 8 * GIB


def test_a_peak_counts_where_the_step_empties_the_cache(device: Device) -> None:
    def tidy_step(model: nn.Module, batch: Any) -> torch.Tensor:
        loss: torch.Tensor = model(batch[0])
        large = torch.empty(600 * MIB, dtype=torch.uint8, device="cuda")
        del large
        torch.cuda.empty_cache()
        return loss

    outcome = evaluate(sized(tidy_step), device, FREE)
    assert outcome.measurement is not None
    memory = outcome.measurement.memory
    assert memory.reserved_bytes is not None
    assert memory.reserved_bytes >= 600 * MIB
    assert memory.judged_bytes >= memory.reserved_bytes


@pytest.mark.phantom
def test_the_limit_is_the_budget_on_a_card_whose_driver_reports_less_than_it_was_built_with(
    card: Callable[[int], None], device: Device
) -> None:
    # As under MIG, or where the driver keeps some for itself: torch multiplies by what the chip was built with.
    card(8 * GIB)
    torch.ones(1, device="cuda")
    with device.limit(2 * GIB, lambda: 0), pytest.raises(torch.OutOfMemoryError):
        torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
