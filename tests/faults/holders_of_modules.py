"""State in the user's modules that a step function reaches by a whole name, or by an `import` of its own."""

from typing import Any

import torch
from torch import nn

import tests.faults.holders_module
from tests.faults.holders import Holder, holder, loss_of


def state() -> Any:
    return [tests.faults.holders_module.STEPS, list(tests.faults.holders_module.SEEN)]


@holder
def globals_of_a_module_by_its_whole_name() -> Holder:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        tests.faults.holders_module.STEPS += 1
        return loss_of(model, batch)

    return Holder({"step_fn": step}, state)


@holder
def globals_of_a_module_that_the_function_imports() -> Holder:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        from tests.faults import holders_module  # noqa: PLC0415  # where such an import stands is what is tested

        holders_module.STEPS += 1
        return loss_of(model, batch)

    return Holder({"step_fn": step}, state)


@holder
def name_that_the_function_imports() -> Holder:
    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        from .holders_module import SEEN  # noqa: PLC0415, TID252

        SEEN.append(1)
        return loss_of(model, batch)

    return Holder({"step_fn": step}, state)
