"""Several optimizers read as one: groups, state and gradients of all, and no step of their own."""

import pytest
import torch
from torch import nn

from autofit.workloads.workload import OptimizerSet, as_given, each_of, names_of, state_tensors
from tests.workloads import gans


def trained() -> tuple[nn.ModuleDict, OptimizerSet]:
    made = gans.models()
    found = OptimizerSet(gans.optimizers(made))
    gans.update(made, found.members, (torch.randn(8, gans.WIDTH),))
    return made, found


def test_it_has_the_groups_and_the_state_of_all_members() -> None:
    made, found = trained()
    held = [p for group in found.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in made.parameters()}
    assert found.state.keys() == set(made.parameters())
    each = [t for member in found.members.values() for t in state_tensors(member)]
    assert [id(t) for t in state_tensors(found)] == [id(t) for t in each]
    assert len(each) == 3 * len(held)  # two moments and a counter


def test_a_group_that_is_added_later_is_seen() -> None:
    _, found = trained()
    found.members["critic"].add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    assert len(found.param_groups) == 3


def test_it_clears_the_gradients_of_all_members() -> None:
    made, found = trained()
    assert all(p.grad is not None for p in made.parameters())
    found.zero_grad()
    assert all(p.grad is None for p in made.parameters())


def test_only_the_user_knows_when_each_is_stepped() -> None:
    _, found = trained()
    with pytest.raises(NotImplementedError, match="update_fn steps each"):
        found.step()


def test_the_user_gets_back_what_he_gave() -> None:
    given = gans.optimizers(gans.models())
    assert as_given(OptimizerSet(given)) == given
    assert each_of(OptimizerSet(given)) == tuple(given.values())
    one = given["critic"]
    assert as_given(one) is one
    assert each_of(one) == (one,)


def test_it_is_named_by_its_members() -> None:
    given = gans.optimizers(gans.models())
    assert names_of(OptimizerSet(given)) == "critic: AdamW, generator: Adam"
    assert names_of(given["critic"]) == "AdamW"
    assert names_of(None) == ""
