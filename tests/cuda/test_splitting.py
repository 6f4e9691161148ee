"""A micro batch for which the device's memory does not suffice is cut in two, with torch's own allocator and errors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from autofit import devices
from autofit.core.plan import Plan
from autofit.devices.base import Device
from autofit.prepare import prepare
from autofit.splitting import Splitting, check_step
from autofit.strategies import members
from autofit.workloads.loss import resolve_loss
from autofit.workloads.step import Draft, StepBatch, TrainStep
from tests.cuda.targets import MIB, own_loss, rows, sized
from tests.phantom.phantom import Phantom

Cap = Callable[[int], None]


def step_of(device: Device, **sizes: Any) -> TrainStep:
    """A step that splits. A phantom's gradients mean nothing, so that the check before it is left out."""
    workload = sized(**sizes)
    loss = resolve_loss(workload.model, next(iter(rows())), step_fn=own_loss)
    step = prepare(Plan(), Draft.of(workload, loss, device.torch_device), members())
    check_step(step)
    step.splitting = Splitting(device)
    return step


# Batches have 8 samples; the whole needs 640 MiB, its halves 320.
@pytest.mark.parametrize("sizes", [{"held": 80}, {"held": 40, "taken": 40}], ids=["forward", "backward"])
def test_it_runs_in_parts_that_fit_and_nothing_of_the_failed_pass_is_left(
    sizes: dict[str, float], device: Device, cap: Cap
) -> None:
    step, batch = step_of(device, **sizes), next(iter(rows()))
    step(StepBatch.of([tuple(each[:1] for each in batch)]))  # the optimizer's state
    device.release()
    live, generator = torch.cuda.memory_allocated(), torch.cuda.get_rng_state()
    cap(500 * MIB)
    with pytest.warns(UserWarning, match="8 samples ran out of memory"):
        step(batch)
    ooms = device.counters().ooms
    assert step.splits.micro_batches == 1
    assert torch.cuda.memory_allocated() == live
    assert torch.equal(torch.cuda.get_rng_state(), generator)
    step(batch)
    assert device.counters().ooms == ooms + 1
    step(batch)
    assert device.counters().ooms == ooms + 1, "after two failures it is cut at once"
    assert step.splits.micro_batches == 3
    assert all(p.grad is None for p in step.model.parameters())


def test_in_a_later_micro_batch_halves_are_halved_until_they_fit(device: Device, cap: Cap) -> None:
    step, batch = step_of(device, held=80), next(iter(rows()))
    small = tuple(each[:2] for each in batch)
    cap(250 * MIB)
    with pytest.warns(UserWarning, match="8 samples ran out of memory"):
        step(StepBatch.of([small, batch]))
    assert step.splits.micro_batches == 3
    assert step.splits.largest_samples == 8


def test_at_one_sample_and_in_the_update_the_error_is_raised(device: Device, cap: Cap) -> None:
    step, batch = step_of(device, held=80), next(iter(rows()))
    live = torch.cuda.memory_allocated()
    cap(70 * MIB)
    with pytest.warns(UserWarning, match="ran out of memory"), pytest.raises(torch.OutOfMemoryError):
        step(batch)
    step.model.zero_grad(set_to_none=True)
    assert torch.cuda.memory_allocated() == live
    step = step_of(device, weight=24)
    cap(100 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        step(batch)
    assert step.phase == "optimizer"
    assert step.splits.micro_batches == 0


@pytest.mark.phantom
def test_when_another_process_has_the_rest_of_the_card(device: Device, phantom: Phantom) -> None:
    step, batch = step_of(device, held=80), next(iter(rows()))
    phantom.take(torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - 500 * MIB)
    with pytest.warns(UserWarning, match="8 samples ran out of memory"):
        step(batch)
    phantom.give_back()
    step(batch)
    assert step.splits.micro_batches == 1
    assert devices.choose("cuda").counters().ooms >= 1
