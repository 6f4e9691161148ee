"""Whose step an optimizer has, who watches it, and where its counters are."""

from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from autofit.strategies.torch_optimizers import (
    grouped_parameters,
    has_own_step,
    is_scheduled,
    placed_counter,
    watched_step,
)


class Own(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # torch's has overloads
        """Updates nothing."""


def parameters() -> list[torch.Tensor]:
    return [torch.zeros(2, requires_grad=True), torch.zeros(3, requires_grad=True)]


def test_a_step_that_a_subclass_inherits_is_torchs() -> None:
    class Named(torch.optim.SGD):
        pass

    assert not has_own_step(Named(parameters()))
    assert has_own_step(Own(parameters()))


def test_a_scheduler_is_no_watcher_but_a_replaced_step_is() -> None:
    optimizer = torch.optim.SGD(parameters(), lr=1.0)
    assert not is_scheduled(optimizer)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert is_scheduled(optimizer)
    assert watched_step(optimizer) is None
    vars(optimizer)["step"] = lambda: None
    assert "replaced" in str(watched_step(optimizer))


def test_hooks_watch_the_step() -> None:
    optimizer = torch.optim.SGD(parameters(), lr=1.0)
    handle = optimizer.register_step_pre_hook(lambda *arguments: None)
    assert "step hooks" in str(watched_step(optimizer))
    handle.remove()
    everywhere = register_optimizer_step_post_hook(lambda *arguments: None)
    assert "step hooks" in str(watched_step(optimizer))
    everywhere.remove()
    assert watched_step(optimizer) is None


def test_parameters_come_with_their_groups() -> None:
    one, other = parameters()
    groups: list[dict[str, Any]] = [{"params": [one]}, {"params": [other], "lr": 2.0}]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    assert [(group["lr"], parameter) for group, parameter in grouped_parameters(optimizer)] == [
        (1.0, one),
        (2.0, other),
    ]


@pytest.mark.parametrize(
    ("fused", "capturable", "device"), [(False, False, "cpu"), (True, False, "meta"), (False, True, "meta")]
)
def test_counters_are_on_the_host_unless_the_update_reads_them_on_the_device(
    fused: bool, capturable: bool, device: str
) -> None:
    parameter = torch.zeros(2, device="meta")
    placed = placed_counter(torch.tensor(3.0), {"capturable": capturable}, parameter, fused=fused)
    assert (placed.device.type, placed.dtype) == (device, torch.float32)


def test_a_counter_in_its_place_is_the_same_object() -> None:
    step = torch.tensor(3.0)
    assert placed_counter(step, {}, torch.zeros(2), fused=False) is step
