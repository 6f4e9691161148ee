"""Objects come back as the same objects; values are compared by their bits."""

import copy
from array import array
from collections import deque
from typing import Any

import pytest
from torch import nn

from autofit.guard import Guard
from autofit.guard.object_state import fingerprint
from tests.digests import digest_of
from tests.guard.world import (
    MUTATORS,
    Recorder,
    World,
    _half,
)


def test_every_object_is_the_same_object_afterwards() -> None:
    world = World()
    tensors = [*world.model.parameters(), *world.model.buffers()]
    grads, states = [p.grad for p in tensors if p.is_leaf], list(world.optimizer.state.values())
    groups, state = list(world.optimizer.param_groups), world.optimizer.state
    with world.guard():
        world.harm()
        world.optimizer.load_state_dict(copy.deepcopy(world.optimizer.state_dict()))
        _half(world)
    after = [*world.model.parameters(), *world.model.buffers()]
    assert all(a is b for a, b in zip(after, tensors, strict=True))
    assert all(a.grad is g for a, g in zip([p for p in after if p.is_leaf], grads, strict=True))
    assert all(a is b for a, b in zip(world.optimizer.param_groups, groups, strict=True))
    assert world.optimizer.state is state
    assert all(a is b for a, b in zip(state.values(), states, strict=True))


def test_an_extra_of_unknown_class_returns_through_its_state_dict() -> None:
    recorder = Recorder()
    with Guard(nn.Linear(1, 1), extras={"recorder": recorder}) as guard:
        assert guard.caveats == ()
        for _ in range(2):
            recorder.count.value += 1
            assert guard.differences() == ["recorder.state_dict()"]
            guard.restore()
            assert recorder.state_dict() == {"count": 0}


@pytest.mark.parametrize(
    "kind",
    ["parameter", "one ulp", "sign of zero", "non-persistent buffer", "mode", "learning rate", "torch rng"],
)
def test_the_digest_sees_the_change(kind: str) -> None:
    world = World()
    before = digest_of(world.model, world.optimizer, world.loader, world.extras)
    assert digest_of(world.model, world.optimizer, world.loader, world.extras) == before
    MUTATORS[kind][1](world)
    assert digest_of(world.model, world.optimizer, world.loader, world.extras) != before


def test_values_are_compared_by_their_bits() -> None:
    model: Any = nn.Linear(1, 1)
    nan = array("d", [float("nan")])
    model.values = [nan, array("f", [0.0]), bytearray(b"a")]
    with Guard(model) as guard:
        assert guard.differences() == []
        model.values[1][0] = -0.0
        assert guard.differences() == ["model.values[1]"]
    assert str(model.values[1][0]) == "0.0"


def test_sequences_of_integers_differ_by_type_length_order_and_each_integer() -> None:
    values: list[Any] = [(1, 23), (12, 3), (23, 1), (1, 23, 0), [1, 23], (1, True), (1, 23.0), (1, "23"), ("1 23",), ()]
    values += [(1, -23), (1, 2**70), (1, 2**70 + 1), (1, 10**5000), ((1, 23),), (1, (23,)), deque([1, 23]), "1 23"]
    assert len({fingerprint(value) for value in values}) == len(values)
    assert fingerprint((1, 10**5000)) == fingerprint((1, 10**5000))


def test_entries_that_parameters_name_keep_their_order() -> None:
    model: Any = nn.Linear(2, 1)
    order = model.order = {model.weight: 1, model.bias: 2}
    with Guard(model) as guard:
        order[model.weight] = order.pop(model.weight)
        assert guard.differences() == ["model.order (order of its entries)"]
    assert [key is model.weight for key in order] == [True, False]


def test_a_number_of_any_length_returns() -> None:
    model: Any = nn.Linear(1, 1)
    model.number = model.same = 1 << 20_000
    with Guard(model) as guard:
        model.number, model.same = model.number | 1, (1 << 19_999) * 2
        assert guard.differences() == ["model.number"]
    assert model.number == 1 << 20_000
    assert fingerprint(model.number) != fingerprint(model.number + 1)
