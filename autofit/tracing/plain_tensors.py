"""Makes torch treat fake tensors as plain tensors where the difference would change allocations.

Each of these differences was found by comparing a trace with a real run, allocation by allocation.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from autofit.strategies.undo import Undo
from autofit.torch_internals import FakeTensor, foreach_types
from autofit.tracing.recorder import Recorder
from autofit.workloads.tree import Batch, tensors


@contextmanager
def as_plain(recorder: Recorder, padded: bool = True) -> Iterator[None]:
    """Makes torch and `recorder` treat fake tensors as plain tensors.

    Where attention masks hide any position (`padded`), transformers makes the same masks for both.
    """
    original = functional.linear

    def linear(*args: Any, **kwargs: Any) -> torch.Tensor:
        before, recorder.in_place = recorder.in_place, True
        try:
            return original(*args, **kwargs)
        finally:
            recorder.in_place = before

    with Undo() as undo:
        # Optimizers and gradient clipping check the exact type of tensors before they use foreach implementations.
        for types in foreach_types():
            types.append(FakeTensor)
            undo.callback(types.remove, FakeTensor)
        undo.set(functional, "linear", linear)  # adds the bias in place to what non-contiguous inputs give
        # For fake tensors, transformers would keep a mask that hides nothing. Without a mask another attention kernel
        # runs. transformers checks a condition on values, which a trace assumes true.
        masking = sys.modules.get("transformers.utils.import_utils")
        if not padded and getattr(masking, "is_fake_tensor", None) is not None:  # not all versions check
            undo.set(masking, "is_fake_tensor", lambda tensor: False)
        yield


def has_padding(batch: Batch) -> bool:
    """Returns whether a batch may have a mask that hides any position: an integer or bool tensor of ones and zeros."""
    flags = (tensor for tensor in tensors(batch) if tensor.dim() > 1 and not tensor.is_floating_point())
    return any(bool((tensor == 0).any() and (tensor == 1).any() and (tensor <= 1).all()) for tensor in flags)
