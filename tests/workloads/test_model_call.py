"""A model takes a batch whole, as positional arguments or as keywords."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.errors import WorkloadError
from autofit.workloads.loss import call_for, check_keys, whole_call


class OfOne(nn.Module):
    def forward(self, x: Any) -> Any:
        return [x]


class OfTwo(nn.Module):
    def forward(self, x: Any, mask: Any) -> Any:
        return [x, mask]


class OfLabels(nn.Module):
    def forward(self, x: Any, labels: Any = None) -> Any:
        return [x, labels]


class OfAny(nn.Module):
    def forward(self, **entries: Any) -> Any:
        return list(entries.values())


A, B = torch.zeros(2), torch.ones(2)


@pytest.mark.parametrize(
    ("model", "inputs", "text", "got"),
    [
        (OfOne(), A, "model(inputs)", [A]),
        (OfTwo(), (A, B), "model(*inputs)", [A, B]),
        (OfOne(), [A, B], "model(inputs)", [[A, B]]),  # one argument that is a list
        (OfTwo(), {"mask": B, "x": A}, "model(**inputs)", [A, B]),
        (OfOne(), {"rays": A, "depth": B}, "model(inputs)", [{"rays": A, "depth": B}]),  # and none of its keys
    ],
)
def test_the_inputs_of_a_pair(model: nn.Module, inputs: Any, text: str, got: list[Any]) -> None:
    call, said = call_for(model, inputs)
    assert said == text
    assert call(model, inputs) == got


@pytest.mark.parametrize(
    ("model", "batch", "text", "got"),
    [
        (OfOne(), A, "model(batch)", [A]),
        (OfOne(), (A, B), "model(inputs)", [A]),  # the second of a pair is the target
        (OfLabels(), (A, B), "model(*batch)", [A, B]),  # unless the model takes it as labels
        (OfTwo(), {"x": A, "mask": B}, "model(**batch)", [A, B]),
    ],
)
def test_a_whole_batch(model: nn.Module, batch: Any, text: str, got: list[Any]) -> None:
    call, said = whole_call(model, batch)
    assert said == text
    assert call(model, batch) == got


@pytest.mark.parametrize("model", [OfAny(), OfLabels()])
def test_keys_that_the_model_takes(model: nn.Module) -> None:
    batch: Mapping[str, Any] = {"x": A, "labels": B}
    check_keys(model, batch)
    check_keys(model, {**batch, "y": B}, without="y")


def test_a_model_that_takes_some_of_the_keys_is_not_called_with_all_of_them_as_one_argument() -> None:
    with pytest.raises(WorkloadError, match="found the keys depth"):
        call_for(OfOne(), {"x": A, "depth": B})


def test_keys_that_the_model_does_not_take_are_named() -> None:
    with pytest.raises(WorkloadError, match=r"found the keys y in the batch.*expected some of x, labels"):
        check_keys(OfLabels(), {"x": A, "y": B})
