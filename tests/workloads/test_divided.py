"""A model inside a wrapper: what takes its place while it is tuned, and what comes back."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from autofit.core.errors import UsageError
from autofit.tracing.ranks import fake_ranks
from autofit.workloads.divided import divided_already, inside, unwrapped
from autofit.workloads.workload import Workload


class Tied(nn.Module):
    """Two layers with one weight, a recurrent one, and a frozen parameter with a mark."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.recurrent = nn.Linear(4, 4), nn.Linear(4, 4), nn.LSTM(4, 4)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)
        self.second.bias.mark = "frozen"  # type: ignore[attr-defined]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.recurrent(self.second(self.first(x)))[0]
        return out


@pytest.fixture
def wrapper() -> Iterator[Any]:
    with fake_ranks(2) as ranks:
        found = DistributedDataParallel(Tied(), process_group=ranks.group)
        yield found


def workload(wrapper: nn.Module, **given: Any) -> Workload:
    return Workload(wrapper, [torch.randn(2, 4)], step_fn=lambda model, batch: model(batch).sum(), **given)


def test_meanwhile_the_model_and_the_optimizer_have_other_parameters_with_the_same_memory(wrapper: Any) -> None:
    model: Any = wrapper.module
    optimizer = torch.optim.Adam(wrapper.parameters())
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    own, names = [*wrapper.parameters()], [name for name, _ in wrapper.named_parameters()]
    gradients, states = [each.grad for each in own], [optimizer.state.get(each) for each in own]
    with unwrapped(workload(wrapper, optimizer=optimizer)) as found:
        others = [*found.model.parameters()]
        assert found.model is wrapper.module
        assert [each.data_ptr() for each in others] == [each.data_ptr() for each in own]
        assert not {*map(id, others)} & {*map(id, own)}
        assert [id(each) for each in optimizer.param_groups[0]["params"]] == [*map(id, others)]
        assert {*map(id, optimizer.state)} <= {*map(id, others)}
        assert model.first.weight is model.second.weight
        assert model.second.bias.mark == "frozen"
        assert not model.second.bias.requires_grad
        assert all(each.grad is None for each in own)
        optimizer.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        assert all(each.grad is not None for each in others if each.requires_grad), "the recurrent layer's too"
        assert all(each.grad is None for each in own), "the wrapper sees nothing of it"
        for each, gradient in zip(others, gradients, strict=True):  # as the guard
            each.grad = gradient
        with pytest.raises(UsageError, match="expected it to call the model that it gets as an argument"):
            wrapper(torch.randn(2, 4))
    assert all(x is y for x, y in zip(wrapper.parameters(), own, strict=True))
    assert [name for name, _ in wrapper.named_parameters()] == names
    assert all(each.grad is gradient for each, gradient in zip(own, gradients, strict=True))
    assert all(optimizer.state.get(each) is state for each, state in zip(own, states, strict=True))
    assert "forward" not in vars(wrapper)


def test_several_optimizers_and_none_are_served(wrapper: Any) -> None:
    first, second = (torch.optim.SGD(layer.parameters()) for layer in (wrapper.module.first, wrapper.module.recurrent))
    given: dict[str, Any] = {"update_fn": lambda model, optimizer, batch: model(batch).sum(), "step_fn": None}
    with unwrapped(Workload(wrapper, [torch.randn(2, 4)], optimizer={"a": first, "b": second}, **given)) as found:
        held = {id(each) for optimizer in (first, second) for each in optimizer.param_groups[0]["params"]}
        assert held < {id(each) for each in found.model.parameters()}
    with unwrapped(workload(wrapper, optimizer=torch.optim.SGD)) as found:
        assert found.optimizer is torch.optim.SGD


def test_everything_comes_back_after_an_error(wrapper: Any) -> None:
    own = [*wrapper.parameters()]
    with pytest.raises(KeyboardInterrupt), unwrapped(workload(wrapper)):
        raise KeyboardInterrupt
    assert all(x is y for x, y in zip(wrapper.parameters(), own, strict=True))
    assert wrapper(torch.randn(2, 4)).shape == (2, 4)


def test_another_model_stays_as_it_is(wrapper: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = workload(Tied())
    with unwrapped(plain) as found:
        assert found is plain
    assert inside(wrapper) is wrapper.module
    monkeypatch.setattr(wrapper, "mixed_precision", "bf16")
    assert inside(wrapper) is wrapper, "its hooks cast what is inside"


def test_what_divides_a_model_is_named_with_its_place(wrapper: Any) -> None:
    assert divided_already(Tied()) is None
    said = "is already divided among ranks by DistributedDataParallel; pass the model without it"
    assert divided_already(wrapper) == f"the model {said}"
    assert divided_already(nn.Sequential(wrapper)) == f"the module '0' {said}"
