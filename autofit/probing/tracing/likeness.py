"""Likeness: makes torch treat fake tensors as the plain ones that they stand for, where it makes a difference.

Each of these was found by comparing a trace, allocation by allocation, with a real run.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.optim.optimizer as torch_optimizer
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.utils import _foreach_utils as torch_foreach

from autofit.probing.tracing.recorder import Recorder


@contextmanager
def as_plain(recorder: Recorder) -> Iterator[None]:
    """Makes torch choose, and `recorder` record, for fake tensors what happens to plain ones."""
    with _by_lists(), _bias_in_place(recorder):
        yield


@contextmanager
def _by_lists() -> Iterator[None]:
    """Optimizers and gradient clipping choose their implementation by the exact type of their tensors."""
    lists: list[list[Any]] = [torch_optimizer._foreach_supported_types, torch_foreach._foreach_supported_types]
    with ExitStack() as undo:
        for types in lists:
            types.append(FakeTensor)
            undo.callback(types.remove, FakeTensor)
        yield


@contextmanager
def _bias_in_place(recorder: Recorder) -> Iterator[None]:
    """`linear` of an input that does not lie in one piece adds its bias in place, but not to tensor subclasses."""
    original = functional.linear

    def linear(*args: Any, **kwargs: Any) -> torch.Tensor:
        before, recorder.in_place = recorder.in_place, True
        try:
            return original(*args, **kwargs)
        finally:
            recorder.in_place = before

    functional.linear = linear
    try:
        yield
    finally:
        functional.linear = original
