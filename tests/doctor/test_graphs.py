"""What a graph holds, on graphs of a few nodes."""

from typing import Any

import torch
from torch import nn

from autofit.doctor.graphs import NODE_BYTES, DatedGraphs, nodes_of, saved_tensors
from autofit.torch_internals import next_sequence_number


def names(tensor: torch.Tensor) -> list[str]:
    """Returns the kinds of the nodes, sorted."""
    return sorted(type(node).__name__ for node in nodes_of([tensor.grad_fn]))


def test_each_node_is_visited_once() -> None:
    x = torch.ones(3, requires_grad=True)
    twice = x.exp()
    assert names(twice * twice + twice) == ["AccumulateGrad", "AddBackward0", "ExpBackward0", "MulBackward0"]


def test_graphs_that_share_nodes_count_them_once() -> None:
    x = torch.ones(3, requires_grad=True).exp()
    first, second = x.sum(), x.mean()
    both = list(nodes_of([first.grad_fn, second.grad_fn]))
    assert len(both) == len(set(both)) == 4


def test_what_has_no_graph_has_no_nodes() -> None:
    assert list(nodes_of([torch.ones(3).grad_fn, None])) == []
    assert list(nodes_of([])) == []


def test_a_long_graph_is_no_recursion() -> None:
    total = torch.ones((), requires_grad=True)
    for _ in range(5000):
        total = total + 1
    assert sum(1 for _ in nodes_of([total.grad_fn])) == 5001


def test_nodes_are_dated_by_the_steps_that_made_them() -> None:
    total, begins = torch.ones((), requires_grad=True) + 1, list[int]()
    for _ in range(3):
        begins.append(next_sequence_number())
        total = total + 1
        apart = torch.ones((), requires_grad=True) * total.detach()
    dated = DatedGraphs(begins)
    assert dated.steps(total.grad_fn) == 0b1111, "before, and in each of three steps"
    assert dated.steps(apart.grad_fn) == 0b1001, "what adds to a gradient has no date"
    assert dated.step_of(total.grad_fn) == 3


def test_saved_tensors_are_found_until_a_pass_frees_them() -> None:
    weight = torch.ones(4, 3, requires_grad=True)
    x = torch.ones(2, 4)
    out = (x @ weight).exp()
    kept = {tensor.data_ptr() for tensor in saved_tensors(out.grad_fn)}
    assert {x.data_ptr(), out.data_ptr()} <= kept
    out.sum().backward()  # type: ignore[no-untyped-call]  # torch has no types here
    assert list(saved_tensors(out.grad_fn)) == []


def test_a_retained_graph_still_has_them() -> None:
    out = torch.ones(3, requires_grad=True).exp()
    out.sum().backward(retain_graph=True)  # type: ignore[no-untyped-call]  # torch has no types here
    assert [tuple(tensor.shape) for tensor in saved_tensors(out.grad_fn)] == [(3,)]


def test_lists_of_saved_tensors_are_looked_into() -> None:
    x = torch.ones(3, requires_grad=True)
    index = torch.tensor([0, 2])
    assert index.data_ptr() in {tensor.data_ptr() for tensor in saved_tensors(x[index].grad_fn)}


class Doubled(torch.autograd.Function):
    """Saves its input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return 2 * grads[0]


def test_functions_of_the_user_are_looked_into() -> None:
    x = torch.ones(3, requires_grad=True).exp()
    out = Doubled.apply(x)  # type: ignore[no-untyped-call]  # torch has no types here
    assert x.data_ptr() in {tensor.data_ptr() for tensor in saved_tensors(out.grad_fn)}
    out.sum().backward()
    assert list(saved_tensors(out.grad_fn)) == []


def test_a_node_is_as_large_as_was_measured() -> None:
    """A graph that was used up takes some hundred bytes per node. The figure is that of a GPT-2."""
    assert 100 < NODE_BYTES < 2000
    model = nn.Linear(2, 2)
    assert len(list(nodes_of([model(torch.ones(1, 2)).sum().grad_fn]))) >= 4
