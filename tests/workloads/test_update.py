"""A step that the user's function does: how it is called, and what it may return."""

from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.errors import WorkloadError
from autofit.workloads.update import rule_of_update
from autofit.workloads.workload import OptimizerSet
from tests.workloads import gans

BATCH = (torch.randn(8, gans.WIDTH),)


def returning(found: Any) -> torch.Tensor:
    rule = rule_of_update(lambda model, optimizer, batch: found)
    assert rule.update is not None
    made = gans.models()
    return rule.update(made, OptimizerSet(gans.optimizers(made)), BATCH)


def test_it_gets_the_model_and_the_optimizers_as_the_user_gave_them() -> None:
    seen: list[Any] = []

    def noting(model: nn.Module, optimizer: Any, batch: Any) -> torch.Tensor:
        seen.extend((model, optimizer, batch))
        return torch.zeros(())

    made, rule = gans.models(), rule_of_update(noting)
    given = gans.optimizers(made)
    assert rule.update is not None
    rule.update(made, OptimizerSet(given), BATCH)
    assert seen == [made, given, BATCH]
    rule.update(made, given["critic"], BATCH)
    assert seen[-2] is given["critic"]


def test_losses_are_detached_and_added_up() -> None:
    weight = torch.ones((), requires_grad=True)
    assert not returning(weight * 2).requires_grad
    assert returning({"one": weight * 2, "other": weight * 3}).item() == 5.0
    assert not returning({"one": weight * 2, "other": weight * 3}).requires_grad


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (1.5, "returned a float; expected a scalar tensor"),
        (None, "returned a NoneType"),
        (torch.ones(3), "returned a tensor of shape [3]"),
        ({}, "returned a dict"),
        ({"loss": 1.5}, "returned a dict"),
    ],
)
def test_anything_else_is_refused(found: Any, said: str) -> None:
    with pytest.raises(WorkloadError) as error:
        returning(found)
    assert said in str(error.value)


def test_a_function_of_other_arguments_is_refused() -> None:
    with pytest.raises(WorkloadError, match=r"found update_fn\(model, batch\).*update_fn\(model, optimizer, batch\)"):
        rule_of_update(lambda model, batch: None)


def test_there_is_no_loss_without_the_update() -> None:
    with pytest.raises(WorkloadError, match="the gradient of a loss was requested, but update_fn does the whole"):
        rule_of_update(gans.update).compute(gans.models(), BATCH)
