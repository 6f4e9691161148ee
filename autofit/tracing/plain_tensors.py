"""Likeness: makes torch treat fake tensors as the plain ones that they stand for, where it makes a difference.

Each of these was found by comparing a trace, allocation by allocation, with a real run.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.optim.optimizer as torch_optimizer
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional
from torch.utils import _foreach_utils as torch_foreach

from autofit.tracing.recorder import Recorder
from autofit.workloads.tree import Batch, tensors


@contextmanager
def as_plain(recorder: Recorder, padded: bool = True) -> Iterator[None]:
    """Makes torch choose, and `recorder` record, for fake tensors what happens to plain ones.

    Args:
        recorder: what records.
        padded: whether attention masks hide something. If so, those that transformers makes for fake tensors are what
            it makes for plain ones.
    """
    with _by_lists(), _bias_in_place(recorder), nullcontext() if padded else _without_masks():
        yield


def has_padding(batch: Batch) -> bool:
    """Says whether a batch may have a mask that hides something: whole numbers or booleans, ones and zeros."""
    flags = (tensor for tensor in tensors(batch) if tensor.dim() > 1 and not tensor.is_floating_point())
    return any(bool((tensor == 0).any() and (tensor == 1).any() and (tensor <= 1).all()) for tensor in flags)


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


@contextmanager
def _without_masks() -> Iterator[None]:
    """Lets transformers leave out a mask that would hide nothing; it keeps that where it is shown a fake tensor.

    Without a mask another attention kernel runs. It finds out by a condition on values, which is answered as true.
    """
    name, module = "is_fake_tensor", sys.modules.get("transformers.utils.import_utils")
    original = getattr(module, name, None)
    if module is None or original is None:  # not in use, or a version that does not ask
        yield
        return
    setattr(module, name, lambda tensor: False)
    try:
        yield
    finally:
        setattr(module, name, original)
