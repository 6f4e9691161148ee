"""Gradients that are compared start alike: random numbers, state, modes; nothing is left behind."""

import functools
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autofit.gates.compare import difference
from autofit.gates.gradients import Gradients, Steps
from autofit.guard import Guard
from autofit.workloads.batch_algebra import split
from tests.gates.comparing import Loss, build, mean, norm, vectors


class Averaged(nn.Module):
    """A model with a moving average of its inputs, which each step changes and the next one uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(8, 4)
        self.register_buffer("seen", torch.zeros(8))
        self.seen: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.line(x - self.seen)
        self.seen.lerp_(x.mean(0), 0.5)
        return found


def guarded(model: nn.Module, loss: Loss) -> Steps:
    guard = Guard(model)
    return Steps(build(model, loss), 0, guard.restore, guard.differences)


def test_each_micro_batch_finds_the_state_that_the_whole_batch_found() -> None:
    model, batch = Averaged(), vectors()
    with Gradients(guarded(model, mean)) as gradients:
        gradients.rehearse(split(batch, [1] * 8)[0])
        assert gradients.moves == ("model.seen",)
        whole, parts = gradients.of([batch]), gradients.of(split(batch, [1] * 8))
    assert difference(parts.vector, whole.vector) < 1e-6
    assert len(parts.losses) == 8
    assert torch.equal(model.seen, torch.zeros(8))


def test_state_is_put_back_when_a_step_fails() -> None:
    def broken(model: nn.Module, batch: Any) -> torch.Tensor:
        mean(model, batch)
        raise KeyError("labels")

    model = Averaged()
    with pytest.raises(KeyError), Gradients(guarded(model, broken)) as gradients:
        gradients.rehearse(vectors())
    assert torch.equal(model.seen, torch.zeros(8))


def test_weights_are_those_given_and_a_part_without_any_is_left_out() -> None:
    batch = vectors(4)
    parts = split(batch, [1] * 4)
    gradients = Gradients(Steps(build(norm("none"), mean)))
    gradients.rehearse(parts[0])
    two = gradients.of(parts, weights=[0.5, 0, 0.5, 0])
    wanted = gradients.of([parts[0], parts[2]])
    assert difference(two.vector, wanted.vector) < 1e-6
    assert len(two.losses) == 2


def numpy_state() -> list[int]:
    state: Any = np.random.get_state()
    words: list[int] = state[1].tolist()
    return words


def test_random_numbers_of_python_and_numpy_are_alike_in_each_part_or_not_as_asked() -> None:
    seen: list[tuple[float, float]] = []

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.append((random.random(), float(np.random.rand())))
        return mean(model, batch)

    before = random.getstate(), numpy_state(), torch.get_rng_state()
    gradients = Gradients(Steps(build(norm("none"), step)))
    parts = split(vectors(4), [1] * 4)
    gradients.of(parts)
    assert len(set(seen)) == 1
    seen.clear()
    gradients.of(parts, draw=5)
    assert len(set(seen)) == 4
    assert random.getstate() == before[0]
    assert numpy_state() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


def test_what_torch_sets_on_a_function_is_not_a_move_of_the_step() -> None:
    """torch keeps the wrapper that hides a function from its compiler on the function, at the first call."""

    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(8, 4)
            self.call = functools.partial(recomputed)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.call(self.line, x)
            return output

    def recomputed(function: nn.Module, x: torch.Tensor) -> torch.Tensor:
        recomputed.__dynamo_disable = object()  # type: ignore[attr-defined]
        recomputed.calls = getattr(recomputed, "calls", 0) + 1  # type: ignore[attr-defined]
        output: torch.Tensor = checkpoint(function, x, use_reentrant=False)
        return output

    model = Checkpointed()
    with Gradients(guarded(model, mean)) as gradients:
        gradients.rehearse(vectors())
        assert any("calls" in name for name in gradients.moves)
        assert not any("dynamo" in name for name in gradients.moves)
