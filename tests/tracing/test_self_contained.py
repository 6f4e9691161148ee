"""What the user's functions hold is found before a trace, and what a trace left in them after it (promise 4)."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from autofit.core.errors import Untraceable
from autofit.tracing.fake_copy import fake_mode
from autofit.tracing.static_memory import SAFE_GLOBALS, check_nothing_left, check_self_contained, fake_tensors
from autofit.workloads.workload import Workload
from tests.probing import targets
from tests.workloads import gans

TABLE: dict[int, torch.Tensor] = {}


KEPT = [torch.ones(3)]
data, last = object(), torch.zeros(())  # a name that tensors have as an attribute, and one that a step assigns


def stateless(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def workload(**more: object) -> Workload:
    return Workload(targets.mlp(), targets.vectors(), **more)  # type: ignore[arg-type]  # what each test is about


def test_functions_that_hold_nothing_are_self_contained() -> None:
    check_self_contained(workload(loss_fn=nn.functional.cross_entropy))
    check_self_contained(workload(loss_fn=nn.CrossEntropyLoss()))
    check_self_contained(workload(step_fn=stateless))
    check_self_contained(Workload(targets.Transformer(), targets.sentences(), step_fn=targets.token_mean))


def test_functions_that_hold_something_are_not() -> None:
    seen: list[torch.Tensor] = []

    def closing(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        seen.append(batch[0])
        return stateless(model, batch)

    class Bound:
        def loss(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return outputs.mean()

    def filled(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return stateless(model, batch) + KEPT[0].sum()

    hooked = workload(step_fn=stateless)
    hooked.model.register_forward_hook(lambda module, given, found: seen.append(found))
    for unsafe, what in (
        (workload(step_fn=closing), "step_fn holds seen"),
        (workload(step_fn=filled), "step_fn holds KEPT, an object of type list"),
        (workload(loss_fn=Bound().loss), "loss_fn holds an object of type method"),
        (hooked, "a hook of the model holds seen"),
    ):
        with pytest.raises(Untraceable, match=what):
            check_self_contained(unsafe)


def test_an_attribute_with_the_name_of_a_global_is_not_that_global() -> None:
    def reading(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return stateless(model, batch) + batch[0].data.sum()

    assert "data" in reading.__code__.co_names
    assert not isinstance(globals()["data"], SAFE_GLOBALS)
    check_self_contained(workload(step_fn=reading))


def nested(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    def keep() -> torch.Tensor:
        return KEPT[0].sum()

    return stateless(model, batch) + keep()


def assigning(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    global last  # noqa: PLW0603  # what is tested
    last = stateless(model, batch)
    return last


@pytest.mark.parametrize(("step", "name"), [(nested, "KEPT"), (assigning, "last")])
def test_globals_of_nested_functions_and_those_that_are_assigned_count(step: Callable[..., Any], name: str) -> None:
    with pytest.raises(Untraceable, match=f"step_fn holds {name}, an object of type "):
        check_self_contained(workload(step_fn=step))


def test_a_fake_tensor_that_stays_is_noticed() -> None:
    before = list(fake_tensors())  # what torch.compile keeps of other tests
    check_nothing_left(before)
    with fake_mode():
        TABLE[0] = torch.empty(3)
    assert isinstance(TABLE[0], FakeTensor)
    try:
        with pytest.raises(Untraceable, match="1 fake tensors are kept by something outside the model"):
            check_nothing_left(before)
    finally:
        TABLE.clear()
    check_nothing_left(before)


def test_a_step_of_the_user_is_looked_at_too() -> None:
    check_self_contained(gans.workload())
    kept: list[torch.Tensor] = []

    def keeping(models: nn.Module, optimizers: object, batch: object) -> torch.Tensor:
        kept.append(torch.zeros(()))
        return kept[-1]

    with pytest.raises(Untraceable, match="update_fn holds kept from the enclosing function"):
        check_self_contained(gans.workload(update_fn=keeping))
