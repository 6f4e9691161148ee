"""Tensors that are larger than what is used of them: float64, views, duplicates."""

import re
from collections import deque
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import autofit
from autofit.doctor.diagnosis import Diagnosis, Size
from tests.doctor.cases import MIB, Case, diagnosed, of, peak_bytes, shown

ROWS, WIDTH = 512, 1024


def weighted(good: bool) -> Case:
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, WIDTH)
    optimizer, data = torch.optim.SGD(model.parameters()), torch.randn(ROWS, WIDTH)
    weights = torch.tensor(np.linspace(0.5, 1.5, WIDTH))
    weights = weights.float() if good else weights

    def step() -> None:
        (model(data) * weights).square().mean().backward()  # the line that widens
        optimizer.step()
        optimizer.zero_grad()

    return Case(model, step)


def test_a_constant_in_float64_is_found_with_its_line() -> None:
    (found,) = of(diagnosed(weighted(False)), "float64")
    assert not found.minor
    assert found.size is not None
    assert found.size.peak_bytes is not None
    assert found.size.peak_bytes > ROWS * WIDTH * 4
    assert "aten::mul.Tensor" in found.what
    assert "test_tensors.py" in found.places[0].line
    assert shown(diagnosed(weighted(True))) == []


@pytest.mark.parametrize("good", [False, True])
def test_a_buffer_in_float64_is_named_once_and_no_operator_of_the_backward_pass(good: bool) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)
            self.register_buffer("mask", torch.ones(WIDTH, dtype=torch.float32 if good else torch.float64))

        def forward(self, data: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.layer((data * self.mask).float()) * (1 - self.mask)  # type: ignore[operator]
            return out

    model, data = nn.Sequential(Masked(), Masked()), torch.randn(ROWS, WIDTH)
    optimizer = torch.optim.SGD(model.parameters())

    def step() -> None:
        model(data).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    found = of(diagnosed(Case(model, step)), "float64")
    assert len(found) == (not good)
    for each in found:
        assert each.what.count("the buffer 0.mask in aten::mul.Tensor") == each.what.count("the buffer 0.mask") == 1
        assert "_to_copy" not in each.what
        assert "div" not in each.what


class Sloped(nn.Module):
    """Attention of one head with a slope by distance: a constant that is no buffer."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 16), nn.Linear(16, 16)
        self.slope = -torch.arange(256, dtype=dtype).abs().outer(torch.ones(256, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.inner(x)
        scores = inner @ inner.transpose(-1, -2) + self.slope
        out: torch.Tensor = self.outer(scores.softmax(-1).type_as(x) @ inner)
        return out


def sloped(dtype: torch.dtype) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(Sloped(dtype), Sloped(dtype))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def sloped_case(good: bool) -> Case:
    model, optimizer = sloped(torch.float32 if good else torch.float64)
    data = torch.randn(8, 256, 16)

    def step() -> None:
        model(data).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Case(model, step)


def size_of(found: Diagnosis) -> Size:
    (finding,) = of(found, "float64")
    assert finding.size is not None
    assert not finding.minor
    return finding.size


def test_a_constant_that_widens_is_named_with_its_holder_and_has_the_size_that_its_correction_saves() -> None:
    real = peak_bytes(lambda: sloped_case(False)) - peak_bytes(lambda: sloped_case(True))
    found = diagnosed(sloped_case(False))
    (finding,) = of(found, "float64")
    code = Sloped.forward.__code__
    assert re.search(r"because of `\S*model\.0\.slope`.*, float64 \[256, 256\], and `\S*model\.1\.slope`", finding.what)
    assert finding.places[0].line.endswith(f"test_tensors.py:{code.co_firstlineno + 2}")
    assert "model.0.slope`" in finding.places[0].holder
    assert ".float()" in finding.remedy
    size = size_of(found)
    assert (size.basis, size.bound) == ("replayed", "at least")
    assert real > MIB
    assert size.peak_bytes == pytest.approx(real, rel=0.02)
    assert shown(diagnosed(sloped_case(True))) == []


def test_steps_of_a_workload_run_with_its_constants_in_float32() -> None:
    model, optimizer = sloped(torch.float64)
    before = [each.slope for each in model]
    batches = [torch.randn(8, 256, 16)] * 3

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).mean()  # type: ignore[no-any-return]

    found = autofit.diagnose(model, batches, step_fn=loss, optimizer=optimizer, device="cpu")
    size = size_of(found)
    real = peak_bytes(lambda: sloped_case(False)) - peak_bytes(lambda: sloped_case(True))
    assert (size.basis, size.bound) == ("measured", "at least")
    assert size.peak_bytes == pytest.approx(real, rel=0.02)
    assert of(found, "float64")[0].confirmed == "these constants as float32"
    assert [each.slope for each in model] == before
    assert {each.slope.dtype for each in model} == {torch.float64}


def widened(how: str) -> Callable[[bool], Case]:
    """Returns what makes a training with float64 in a step, or with what it is without."""

    def made(good: bool) -> Case:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 64))
        optimizer, data = torch.optim.SGD(model.parameters()), torch.randn(ROWS, WIDTH)
        numbers = np.linspace(0.5, 1.5, WIDTH).astype(np.float32 if good else np.float64)
        given = data.double() if how == "batch" and not good else data.clone()

        def middle(hidden: torch.Tensor) -> torch.Tensor:
            match how:
                case "array":
                    return hidden * torch.from_numpy(numbers)
                case "numbers":
                    return hidden * torch.tensor(numbers)
                case "cast":
                    return (hidden if good else hidden.double()).exp().log1p()
                case "cast and changed":
                    return (hidden.clone() if good else hidden.double()).add_(1).exp()
                case "part":
                    return (hidden if good else hidden.double())[:, : WIDTH // 2].exp().repeat(1, 2)
            return hidden * given

        def step() -> None:
            model[2](middle(model[1](model[0](data))).float()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        return Case(model, step)

    return made


@pytest.mark.parametrize("how", ["array", "numbers", "cast", "cast and changed", "part", "batch"])
def test_the_size_is_never_more_than_the_correction_saves(how: str) -> None:
    make = widened(how)
    real = peak_bytes(lambda: make(False)) - peak_bytes(lambda: make(True))
    found = diagnosed(make(False))
    size, (finding,) = size_of(found).peak_bytes, of(found, "float64")
    assert size is not None
    assert real > MIB
    assert 0.98 * real <= size <= 1.001 * real
    assert "test_tensors.py:" in finding.places[0].line
    assert not finding.places[0].holder or how == "batch"
    assert shown(diagnosed(make(True))) == []


def test_a_model_in_float64_is_left_alone() -> None:
    case = weighted(False)
    model = case.model.double()
    data, optimizer = torch.randn(ROWS, WIDTH, dtype=torch.float64), torch.optim.SGD(model.parameters())

    def step() -> None:
        model(data).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert of(diagnosed(Case(model, step)), "float64") == []


def banked(good: bool) -> Case:
    """A queue keeps one position of the hidden states of the last two batches."""
    torch.manual_seed(0)
    model, queue = nn.Linear(WIDTH, WIDTH), deque[torch.Tensor](maxlen=2)
    optimizer, data = torch.optim.SGD(model.parameters()), torch.randn(8, ROWS // 8, WIDTH)

    def step() -> None:
        hidden = model(data)
        first = hidden[:, 0].detach()
        queue.append(first.clone() if good else first)
        loss = hidden.square().mean()
        del hidden, first
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Case(model, step)


def test_a_view_that_keeps_the_whole_is_found_with_its_holder() -> None:
    found = max(of(diagnosed(banked(False)), "view-holds"), key=lambda each: (each.size and each.size.peak_bytes) or 0)
    assert "`queue[" in found.places[0].holder
    assert found.size is not None
    assert found.size.peak_bytes is not None
    part = 8 * WIDTH * 4
    assert found.size.peak_bytes == ROWS * WIDTH * 4 - part, "at the peak, the other tensor of the queue is in use"
    real = peak_bytes(lambda: banked(False)) - peak_bytes(lambda: banked(True))
    assert found.size.peak_bytes == pytest.approx(real, rel=0.02)
    assert not found.minor
    assert shown(diagnosed(banked(True))) == []


class Masked(nn.Module):
    mask: torch.Tensor

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("mask", mask)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(data) + self.mask[0, 0]
        return out


def copied(copies: bool) -> Case:
    """Three layers with a copy of a mask each, or with the same."""
    mask = torch.ones(ROWS, WIDTH).tril()
    model = nn.Sequential(Masked(mask), *(Masked(mask.clone() if copies else mask) for _ in range(2)))
    optimizer, data = torch.optim.SGD(model.parameters()), torch.randn(4, 8)

    def step() -> None:
        model(data).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Case(model, step)


@pytest.mark.parametrize(("copies", "count"), [(True, 1), (False, 0)])
def test_equal_buffers_in_several_layers_are_found_unless_they_are_shared(copies: bool, count: int) -> None:
    found = of(diagnosed(copied(copies)), "duplicates")
    assert len(found) == count
    for each in found:
        assert each.size is not None
        assert each.size.peak_bytes == 2 * ROWS * WIDTH * 4
        real = peak_bytes(lambda: copied(True)) - peak_bytes(lambda: copied(False))
        assert each.size.peak_bytes == pytest.approx(real, rel=0.02)
        assert [place.module for place in each.places] == ["0.mask", "1.mask", "2.mask"]


def test_constant_buffers_are_initial_values() -> None:
    model = nn.Sequential(*(Masked(torch.zeros(ROWS, WIDTH)) for _ in range(3)))
    optimizer, data = torch.optim.SGD(model.parameters()), torch.randn(4, 8)

    def step() -> None:
        model(data).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    assert of(diagnosed(Case(model, step)), "duplicates") == []


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_masks_of_several_bytes_are_found(dtype: torch.dtype) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(256))

        def forward(self, inputs: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return (inputs * self.scale).masked_fill(attention_mask == 0, 0.0)

    mask = (torch.rand(4096, 256) > 0.5).to(dtype)
    batch = {"inputs": torch.randn(4096, 256), "attention_mask": mask, "choices": mask.long()}

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        out: torch.Tensor = model(batch["inputs"], batch["attention_mask"]).mean()
        return out

    found = of(autofit.diagnose(Masked(), [batch], step_fn=loss, device="cpu"), "wide-mask")
    if dtype is torch.bool:
        assert found == []
        return
    assert "attention_mask of the batch" in found[0].what
    assert found[0].size is not None
    assert found[0].size.peak_bytes == mask.numel() * (mask.element_size() - 1)
    assert not found[0].minor
