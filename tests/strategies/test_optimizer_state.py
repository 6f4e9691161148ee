"""The optimizer's state follows its parameters to ranks, and comes back as it was from ranks that do not train."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies import members, optimizer_state
from autofit.tracing.ranks import fake_ranks
from tests.conformance.test_strategies import WORKLOADS, Case


def trained(make: Callable[[Any], torch.optim.Optimizer]) -> Case:
    """Returns a case whose optimizer has state."""
    case = Case(WORKLOADS["mlp"])
    case.draft.optimizer = make(case.model.parameters())
    for parameter in case.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    case.draft.optimizer.step()
    case.draft.optimizer.zero_grad()
    return case


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.1)


@pytest.mark.parametrize("layout", ["optimizer", "full", "hybrid"])
@pytest.mark.parametrize("make", [adam, torch.optim.Adagrad])
def test_each_rank_begins_with_its_part_of_the_state(layout: str, make: Any) -> None:
    case = trained(make)
    optimizer = case.draft.optimizer
    assert optimizer is not None
    before = {id(each): dict(optimizer.state[each]) for each in case.model.parameters()}
    whole = {name: dict(optimizer.state[each]) for name, each in case.model.named_parameters()}
    with fake_ranks(4, 1) as case.draft.ranks:
        with prepare(Plan(values={"layout": layout}), case.draft, members()) as step:
            assert step.optimizer is not None
            state: Any = step.optimizer.state
            names = {id(each): name.removeprefix("module.") for name, each in step.model.named_parameters()}
            found = {names[id(owner)]: each for owner, each in state.items()}
            if layout == "optimizer":
                assert 0 < len(found) < len(whole)
            else:
                assert found.keys() == whole.keys()
            for name, entries in found.items():
                for key, value in entries.items():
                    part, expected = value, whole[name][key]
                    if isinstance(value, DTensor):
                        part, expected = value.to_local(), expected.chunk(2 if layout == "hybrid" else 4)[1]
                    assert torch.equal(part, expected), (name, key)
            if layout != "optimizer":
                assert any(isinstance(each, DTensor) for entries in found.values() for each in entries.values())
        after = {id(each): dict(optimizer.state[each]) for each in case.model.parameters()}
    assert {key: {name: id(each) for name, each in state.items()} for key, state in after.items()} == {
        key: {name: id(each) for name, each in state.items()} for key, state in before.items()
    }


@pytest.mark.parametrize("layout", ["optimizer", "full"])
def test_on_guarded_ranks_whole_state_takes_no_memory(layout: str) -> None:
    case = trained(adam)
    optimizer = case.draft.optimizer
    assert optimizer is not None
    moments = [state["exp_avg"] for state in optimizer.state.values()]
    sizes = [each.untyped_storage().nbytes() for each in moments]
    with fake_ranks(2) as ranks:
        case.draft.ranks = replace(ranks, guarded=True)
        with prepare(Plan(values={"layout": layout}), case.draft, members()) as step:
            step(case.batch)
            held = [each.untyped_storage().nbytes() for each in moments]
    owned = sum(map(bool, held))
    assert owned == 0 if layout == "full" else 0 < owned < len(held)
    assert [each.untyped_storage().nbytes() for each in moments] == sizes
    assert [id(state["exp_avg"]) for state in optimizer.state.values()] == [id(each) for each in moments]


class Own(torch.optim.SGD):
    """Keeps rows of its parameters."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter] = {"row": torch.zeros(parameter.shape[-1], 2), "count": 1}


def test_state_of_other_shapes_is_not_divided() -> None:
    case = trained(Own)
    with fake_ranks(2) as case.draft.ranks:
        with pytest.raises(SpaceError, match="Own has state of other shapes than its parameters"):
            prepare(Plan(values={"layout": "full"}), case.draft, members())
        assert case.draft.optimizer is not None
        assert len(case.draft.optimizer.state) == len(list(case.model.parameters()))
        with prepare(Plan(values={"layout": "optimizer"}), case.draft, members()) as step:
            step(case.batch)


@pytest.mark.parametrize("kind", [torch.optim.Adafactor, torch.optim.Rprop])
def test_an_update_that_refuses_sharded_parameters_is_refused_before(kind: Any) -> None:
    case = trained(lambda parameters: kind(parameters, lr=0.01))
    with (
        fake_ranks(2) as case.draft.ranks,
        pytest.raises(SpaceError, match=f"torch's {kind.__name__} does not update sharded parameters"),
    ):
        prepare(Plan(values={"layout": "full"}), case.draft, members())


def test_state_that_does_not_fit_on_a_device_comes_back_in_main_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        mesh = type("Mesh", (), {"device_type": "meta"})
        group = None

    def exhausted(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("of the test")

    ranks: Any = Full
    found: list[int] = []
    monkeypatch.setattr(torch, "zeros", lambda *_, **__: torch.tensor([0]))
    monkeypatch.setattr(torch, "empty", exhausted)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda each, group: found.append(int(each)))
    with pytest.warns(UserWarning, match="comes back in main memory"):
        assert not optimizer_state._fits(10, ranks)
    assert found == [1]
