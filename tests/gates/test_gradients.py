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
from autofit.gates.gradients import WIDTH, Gradients, Steps, sketch
from autofit.guard import Guard
from autofit.workloads.batch_algebra import split
from autofit.workloads.counted_batches import counted
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
        singles = [counted(part) for part in split(batch, [1] * 8)]
        gradients.rehearse(singles[0])
        assert gradients.moves == ("model.seen",)
        whole, parts = gradients.of(counted(batch)), [gradients.of(part).vector for part in singles]
    assert difference(torch.stack(parts).mean(0), whole.vector) < 1e-6
    assert torch.equal(model.seen, torch.zeros(8))


def test_state_is_put_back_when_a_step_fails() -> None:
    def broken(model: nn.Module, batch: Any) -> torch.Tensor:
        mean(model, batch)
        raise KeyError("labels")

    model = Averaged()
    with pytest.raises(KeyError), Gradients(guarded(model, broken)) as gradients:
        gradients.rehearse(counted(vectors()))
    assert torch.equal(model.seen, torch.zeros(8))


def numpy_state() -> list[int]:
    state: Any = np.random.get_state()
    words: list[int] = state[1].tolist()
    return words


def test_random_numbers_of_python_and_numpy_are_alike_in_each_part_or_not_as_asked() -> None:
    seen: list[tuple[float, float]] = []

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.append((random.random(), float(np.random.rand())))
        return mean(model, batch)

    gradients = Gradients(Steps(build(norm("none"), step)))
    before = random.getstate(), numpy_state(), torch.get_rng_state()
    parts = [counted(part) for part in split(vectors(4), [1] * 4)]
    for start, part in enumerate(parts):
        gradients.of(part, start=start)
    assert len(set(seen)) == 1
    seen.clear()
    for start, part in enumerate(parts):
        gradients.of(part, start=start, draw=5)
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
        gradients.rehearse(counted(vectors()))
        assert any("calls" in name for name in gradients.moves)
        assert not any("dynamo" in name for name in gradients.moves)


def test_hooks_that_a_library_installs_at_the_first_call_are_no_move_of_the_step() -> None:
    """As transformers do where a model returns what its layers put out, such as the logits of a router."""

    class Capturing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.calls, self._output_capturing_hooks_installed = nn.Linear(8, 4), 0, False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not self._output_capturing_hooks_installed:
                self.line.register_forward_hook(lambda module, inputs, output: None)
                self._output_capturing_hooks_installed = True
            self.calls += 1
            output: torch.Tensor = self.line(x)
            return output

    with Gradients(guarded(Capturing(), mean)) as gradients:
        gradients.rehearse(counted(vectors()))
        assert any("calls" in name for name in gradients.moves)
        assert not any("hook" in name for name in gradients.moves)


def parameters(*sizes: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    found = [torch.zeros(size) for size in sizes]
    for parameter in found:
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    return found


def gradient(parameters: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])


@pytest.mark.parametrize(("sizes", "error"), [((7, 300, 1), 1e-6), ((70_000, 5, 300_000, WIDTH, 5_000_000), 0.02)])
def test_a_sketch_keeps_lengths_and_distances(sizes: tuple[int, ...], error: float) -> None:
    one, other = parameters(*sizes), parameters(*sizes, seed=1)
    first, second = sketch(one), sketch(other)
    assert len(first) == min(sum(sizes), WIDTH)
    assert float(first.norm() / gradient(one).norm()) == pytest.approx(1, abs=error)
    apart = float((first - second).norm() / (gradient(one) - gradient(other)).norm())
    assert apart == pytest.approx(1, abs=error)


def test_a_sketch_keeps_a_small_difference_in_one_place() -> None:
    one, other = parameters(300_000, 300_000), parameters(300_000, 300_000)
    assert one[1].grad is not None
    one[1].grad[100_000:100_100] *= 1.5
    expected = difference(gradient(one), gradient(other))
    assert 0 < expected < 0.01
    assert difference(sketch(one), sketch(other)) == pytest.approx(expected, rel=0.02)


def test_a_parameter_without_a_gradient_counts_as_zero_and_a_complex_one_as_two() -> None:
    one, two, three = torch.zeros(3), torch.zeros(2, dtype=torch.cfloat), torch.zeros(2)
    two.grad, three.grad = torch.tensor([3 + 4j, 0]), torch.ones(2)
    found = sketch([one, two, three])
    assert found.abs().tolist() == [0, 0, 0, 3, 4, 0, 0, 1, 1]


def test_a_number_that_is_not_finite_is_not_finite_in_a_sketch() -> None:
    (one,) = parameters(200_000)
    assert one.grad is not None
    one.grad[150_000] = torch.inf
    assert int((~sketch([one]).isfinite()).sum()) == 1
