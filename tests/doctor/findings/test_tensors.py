"""Tensors that are larger than what is used of them: float64, views, duplicates."""

from collections import deque

import numpy as np
import pytest
import torch
from torch import nn

import autofit
from tests.doctor.cases import Case, diagnosed, of, shown

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
    assert found.size.peak_bytes == 2 * (ROWS * WIDTH * 4 - part)
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


@pytest.mark.parametrize(("copies", "count"), [(True, 1), (False, 0)])
def test_equal_buffers_in_several_layers_are_found_unless_they_are_shared(copies: bool, count: int) -> None:
    mask = torch.ones(ROWS, WIDTH).tril()
    model = nn.Sequential(*(Masked(mask.clone() if copies else mask) for _ in range(3)))
    optimizer, data = torch.optim.SGD(model.parameters()), torch.randn(4, 8)

    def step() -> None:
        model(data).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    found = of(diagnosed(Case(model, step)), "duplicates")
    assert len(found) == count
    for each in found:
        assert each.size is not None
        assert each.size.peak_bytes == 2 * mask.numel() * 4
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
