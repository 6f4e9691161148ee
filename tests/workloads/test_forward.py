"""Inference gives a batch to the model as a loss rule would give its inputs."""

from typing import Any

import pytest
import torch
from torch import nn

from autofit.workloads.first_loss import resolve_forward


class Echo(nn.Module):
    """Returns how it was called."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs


X, Y = torch.zeros(2, 3), torch.ones(2)


@pytest.mark.parametrize(
    ("batch", "args", "kwargs", "about"),
    [
        ({"ids": X, "mask": Y}, (), {"ids": X, "mask": Y}, "model(**batch)"),
        ((X, Y), (X,), {}, "model(inputs), for batches (inputs, targets)"),
        ([X, Y], (X,), {}, "model(inputs), for batches (inputs, targets)"),
        (X, (X,), {}, "model(batch)"),
        ([X, X, X], ([X, X, X],), {}, "model(batch)"),
    ],
)
def test_the_batch_decides_how_the_model_is_called(
    batch: Any, args: tuple[Any, ...], kwargs: dict[str, Any], about: str
) -> None:
    rule = resolve_forward(batch, None)
    given, named = rule.compute(Echo(), batch)
    assert len(given) == len(args)
    assert all(mine is theirs or mine == theirs for mine, theirs in zip(given, args, strict=True))
    assert named.keys() == kwargs.keys()
    assert all(named[key] is kwargs[key] for key in kwargs)
    assert rule.about == about
    assert rule.inferred


def test_a_step_fn_does_it_all() -> None:
    rule = resolve_forward((X, Y), lambda model, batch: batch[1])
    assert rule.compute(Echo(), (X, Y)) is Y
    assert rule.name == "forward by step_fn"
    assert not rule.inferred
