"""What torch, and transformers, are made to do with fake tensors."""

import sys
from contextlib import AbstractContextManager
from threading import Thread
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from autofit.tracing.plain_tensors import as_plain, has_padding, sums_in_place
from autofit.tracing.recorder import Recorder

ASKS = "transformers.utils.import_utils"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType(ASKS)
    module.is_fake_tensor = lambda tensor: True  # type: ignore[attr-defined]  # a stand-in for the library
    monkeypatch.setitem(sys.modules, ASKS, module)
    return module


def plain(padded: bool) -> AbstractContextManager[None]:
    return as_plain(Recorder("cpu", lambda func, args, kwargs: func(*args, **kwargs)), padded)


def test_without_padding_transformers_is_not_told_that_a_tensor_is_fake(library: ModuleType) -> None:
    with plain(padded=False):
        assert not library.is_fake_tensor(torch.ones(1))
    assert library.is_fake_tensor(torch.ones(1))


def test_with_padding_it_keeps_its_masks(library: ModuleType) -> None:
    with plain(padded=True):
        assert library.is_fake_tensor(torch.ones(1))


def test_a_version_that_does_not_ask_is_left_alone(library: ModuleType) -> None:
    del library.is_fake_tensor
    with plain(padded=False):
        assert not hasattr(library, "is_fake_tensor")
    assert not hasattr(library, "is_fake_tensor")


@pytest.mark.parametrize(
    ("tensor", "padded"),
    [
        (torch.tensor([[1, 1, 1], [1, 1, 0]]), True),
        (torch.tensor([[True, False]]), True),
        (torch.ones(2, 3, dtype=torch.int64), False),
        (torch.zeros(2, 3, dtype=torch.int64), False),  # token types
        (torch.tensor([[0, 1, 2]]), False),  # words
        (torch.tensor([0, 1, 1]), False),  # classes
        (torch.tensor([[0.0, 1.0]]), False),
    ],
)
def test_a_mask_that_hides_something_is_recognised(tensor: torch.Tensor, padded: bool) -> None:
    assert has_padding({"mask": tensor, "other": torch.ones(2, 3)}) is padded


@pytest.mark.parametrize("module", [nn.Linear(4, 4), nn.RNN(4, 4), nn.GRU(4, 4), nn.LSTM(4, 4)])
def test_biases_are_added_in_place_in_linear_and_recurrent_modules(module: nn.Module) -> None:
    seen = set[bool]()

    def run(func: Any, args: Any, kwargs: Any) -> Any:
        seen.add(recorder.in_place)
        return func(*args, **kwargs)

    recorder, before, x = Recorder("cpu", run), type(module).forward, torch.ones(2, 3, 4)
    with recorder, sums_in_place(recorder):
        module(x)
        assert seen == {True}
        assert x.sum() + 1 > 0
        assert seen == {True, False}
    assert type(module).forward is before


ONE: Any = (torch.ones(1),)


def test_threads_beside_the_recording_add_as_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, recorder = list[bool](), Recorder("cpu", lambda func, args, kwargs: func(*args, **kwargs))
    monkeypatch.setattr(functional, "linear", lambda _: seen.append(recorder.in_place))
    with sums_in_place(recorder):
        functional.linear(*ONE)
        thread = Thread(target=functional.linear, args=ONE)
        thread.start()
        thread.join()
    assert seen == [True, False]
