"""The operations on deferred logits: what stays deferred is what the operation gives, and what else is computed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autofit.strategies.deferred_logits import DeferredLogits, DeferringForward

SAMPLES, TOKENS, FEATURES, CLASSES = 4, 6, 3, 5
MASK = torch.arange(SAMPLES * TOKENS).view(SAMPLES, TOKENS) % 3 == 0
Operation = Callable[[torch.Tensor], Any]


def logits() -> torch.Tensor:
    torch.manual_seed(0)
    layer = nn.Linear(FEATURES, CLASSES)
    vars(layer)["forward"] = DeferringForward(layer)
    output: torch.Tensor = layer(torch.randn(SAMPLES, TOKENS, FEATURES))
    return output


def ordinary() -> torch.Tensor:
    torch.manual_seed(0)
    layer = nn.Linear(FEATURES, CLASSES)
    output: torch.Tensor = layer(torch.randn(SAMPLES, TOKENS, FEATURES))
    return output


DEFERRED: dict[str, Operation] = {
    "view": lambda x: x.view(-1, CLASSES),
    "view by a tuple": lambda x: x.view((SAMPLES * TOKENS, CLASSES)),
    "view with the last size inferred": lambda x: x.view(SAMPLES * TOKENS, -1),
    "reshape": lambda x: torch.reshape(x, (2, -1, TOKENS, CLASSES)),
    "flatten": lambda x: x.flatten(0, 1),
    "flatten to the second last": lambda x: torch.flatten(x, 0, -2),
    "shift": lambda x: x[:, :-1],
    "shift with all dimensions": lambda x: x[:, :-1, :],
    "shift after an ellipsis": lambda x: x[..., :-1, :],
    "last token": lambda x: x[:, -1],
    "one sample": lambda x: x[0],
    "whole": lambda x: x[...],
    "mask": lambda x: x[MASK],
    "mask with the classes": lambda x: x[MASK, :],
    "indices": lambda x: x[torch.tensor([2, 0])],
    "pairs of indices": lambda x: x[torch.tensor([2, 0]), torch.tensor([1, 1])],
    "same type": lambda x: x.to(torch.float32),
    "same device": lambda x: x.to(torch.device("cpu")),
    "float": lambda x: x.float(),
    "contiguous": lambda x: x[:, 1:].contiguous(),
    "transpose": lambda x: x.transpose(1, 2),
    "transpose from behind": lambda x: x.transpose(-1, -2),
    "permute": lambda x: x.permute(0, 2, 1),
}

COMPUTED: dict[str, Operation] = {
    "view that mixes classes": lambda x: x.view(SAMPLES, -1),
    "view as bytes": lambda x: x.view(torch.int32),
    "flatten of all": lambda x: x.flatten(),
    "flatten with classes": lambda x: x.flatten(1),
    "some classes": lambda x: x[..., :2],
    "one class": lambda x: x[:, :, 1],
    "classes after a mask": lambda x: x[MASK, 1],
    "one row": lambda x: x[0, 0],
    "new dimension": lambda x: x[None],
    "list": lambda x: x[[0, 2]],
    "double": lambda x: x.double(),
    "half": lambda x: x.to(torch.float16),
    "transpose of samples": lambda x: x.transpose(0, 1),
    "flatten after transpose": lambda x: x.transpose(1, 2).flatten(0, 1),
    "twice transposed": lambda x: x.transpose(1, 2).transpose(1, 2),
    "log_softmax": lambda x: F.log_softmax(x, dim=-1),
    "softmax": lambda x: x.softmax(-1),
    "detach": lambda x: x.detach(),
    "nll_loss of logits": lambda x: F.nll_loss(x[:, 0], torch.zeros(SAMPLES).long()),
    "deprecated reduction": lambda x: F.cross_entropy(x[:, 0], torch.zeros(SAMPLES).long(), reduce=False),
    "smoothed and weighted": lambda x: F.cross_entropy(
        x[:, 0], torch.zeros(SAMPLES).long(), torch.rand(CLASSES, generator=torch.Generator().manual_seed(0)),
        label_smoothing=0.1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFERRED)
def test_deferred_result_has_the_shape_type_and_values_of_the_operation(name: str) -> None:
    found, expected = DEFERRED[name](logits()), DEFERRED[name](ordinary())
    assert isinstance(found, DeferredLogits)
    assert found.is_deferred
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    torch.testing.assert_close(found + 0, expected)


@pytest.mark.filterwarnings("ignore:size_average and reduce")
@pytest.mark.parametrize("name", COMPUTED)
def test_other_operations_run_on_computed_logits(name: str) -> None:
    found, expected = COMPUTED[name](logits()), COMPUTED[name](ordinary())
    assert not isinstance(found, DeferredLogits)
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected)


def test_wrong_targets_are_the_errors_of_torch() -> None:
    with pytest.raises(ValueError, match=r"batch_size"):
        F.cross_entropy(logits(), torch.zeros(SAMPLES + 1, TOKENS).long())
    with pytest.raises(RuntimeError, match=r"expected (target dtype|scalar type)"):
        F.cross_entropy(logits()[:, 0], torch.zeros(SAMPLES, dtype=torch.int32))


def test_view_of_a_wrong_size_is_the_error_of_torch() -> None:
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        logits().view(7, CLASSES)
