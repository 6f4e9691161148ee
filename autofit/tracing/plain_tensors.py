"""Makes torch treat fake tensors as plain tensors where the difference would change allocations.

Each of these differences was found by comparing a trace with a real run, allocation by allocation.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch.nn import functional

from autofit.torch_internals import FakeTensor, foreach_types
from autofit.tracing.recorder import Recorder
from autofit.workloads.tree import Batch, tensors


@contextmanager
def as_plain(recorder: Recorder, padded: bool = True) -> Iterator[None]:
    """Makes torch and `recorder` treat fake tensors as plain tensors.

    Args:
        recorder: the recorder of the trace.
        padded: whether attention masks hide any position. If so, transformers makes the same masks for fake tensors as
            for plain ones.
    """
    with _foreach_supported(), _bias_in_place(recorder), nullcontext() if padded else _without_masks():
        yield


def has_padding(batch: Batch) -> bool:
    """Returns whether a batch may have a mask that hides any position: an integer or bool tensor of ones and zeros."""
    flags = (tensor for tensor in tensors(batch) if tensor.dim() > 1 and not tensor.is_floating_point())
    return any(bool((tensor == 0).any() and (tensor == 1).any() and (tensor <= 1).all()) for tensor in flags)


@contextmanager
def _foreach_supported() -> Iterator[None]:
    """Lets fake tensors use foreach implementations: optimizers and gradient clipping check the exact tensor type."""
    with ExitStack() as undo:
        for types in foreach_types():
            types.append(FakeTensor)
            undo.callback(types.remove, FakeTensor)
        yield


@contextmanager
def _bias_in_place(recorder: Recorder) -> Iterator[None]:
    """Marks the bias of `linear` as added in place: for non-contiguous inputs torch does so, except for subclasses."""
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
    """Lets transformers omit a mask that hides nothing. For fake tensors it would always keep the mask.

    Without a mask another attention kernel runs. transformers checks a condition on values, which a trace assumes true.
    """
    name, module = "is_fake_tensor", sys.modules.get("transformers.utils.import_utils")
    original = getattr(module, name, None)
    if module is None or original is None:  # transformers is not in use, or this version does not check
        yield
        return
    setattr(module, name, lambda tensor: False)
    try:
        yield
    finally:
        setattr(module, name, original)
