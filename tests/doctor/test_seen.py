"""What a watch reads of tensors, operators and optimizers."""

import gc
import sys
from contextlib import ExitStack

import torch
from torch import nn

from autofit.doctor.seen import LiveTensors, has_storage, only_views, replace_with, resting
from autofit.torch_internals import FakeTensorMode
from autofit.workloads.workload import state_tensors

aten = torch.ops.aten


def test_the_state_tensors_an_optimizer_includes_tensors_in_lists() -> None:
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.LBFGS([weight], max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    kept = optimizer.state[weight]
    lists = [value for value in kept.values() if isinstance(value, list)]
    inside = [each for values in lists for each in values if isinstance(each, torch.Tensor)]
    assert inside
    assert {id(each) for each in inside} <= {id(each) for each in state_tensors(optimizer)}


def test_sparse_and_fake_tensors_have_no_storage_here() -> None:
    assert has_storage(torch.ones(2))
    assert not has_storage(torch.ones(2).to_sparse())
    with FakeTensorMode() as mode:
        assert not has_storage(mode.from_tensor(torch.ones(2)))


def test_only_operators_that_make_a_view_read_nothing() -> None:
    assert only_views(aten.view.default)
    assert only_views(aten.detach.default)
    assert not only_views(aten.add.Tensor)
    assert not only_views(aten.add_.Tensor)


def test_tensors_are_found_while_they_live_also_after_a_collection() -> None:
    before = torch.ones(5)
    live = LiveTensors()
    gc.disable()
    try:
        after = torch.ones(6)
        assert {id(before), id(after)} <= {id(each) for each in live.alive()}
        gc.collect()
        assert {id(before), id(after)} <= {id(each) for each in live.alive()}
        gone = id(before)
        del before
        assert gone not in {id(each) for each in live.alive()}
    finally:
        gc.enable()


def test_the_line_that_put_a_module_into_evaluation_mode_is_kept_until_it_is_put_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(), nn.BatchNorm1d(2))
    with resting() as lines:
        model.eval()
        line = sys._getframe().f_lineno - 1
        model[2].train()
    model[1].train()
    assert {module: site.user for module, site in lines.items()} == {model[1]: f"tests/doctor/test_seen.py:{line}"}, (
        "nothing is noted outside"
    )


def test_a_replaced_function_is_put_back_where_it_was() -> None:
    class Base:
        @classmethod
        def name(cls) -> str:
            return cls.__name__

    class Part(Base):
        pass

    with ExitStack() as undo:
        replace_with(undo, Part, "name", lambda before: lambda: f"{before()}!")
        assert Part.name() == "Part!"
    assert Part.name() == "Part"
    assert "name" not in vars(Part)
