"""Objects come back as the same objects."""

import copy

from torch import nn

from autofit.guard import Guard
from tests.guard.world import (
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
