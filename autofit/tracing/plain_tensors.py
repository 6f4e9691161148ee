"""Makes torch treat fake tensors as plain tensors where the difference would change allocations.

Each of these differences was found by comparing a trace with a real run, allocation by allocation.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from torch import nn
from torch.nn import functional

from autofit.strategies.undo import Undo
from autofit.torch_internals import FakeTensor, foreach_types
from autofit.tracing.recorder import Recorder, in_backward
from autofit.workloads.tree import Batch, tensors


@contextmanager
def as_plain(recorder: Recorder, padded: bool = True) -> Iterator[None]:
    """Makes torch and `recorder` treat fake tensors as plain tensors.

    Where attention masks hide any position (`padded`), transformers makes the same masks for both.
    """
    with Undo() as undo, sums_in_place(recorder):
        # Optimizers and gradient clipping check the exact type of tensors before they use foreach implementations.
        for types in foreach_types():
            types.append(FakeTensor)
            undo.callback(types.remove, FakeTensor)
        # For fake tensors, transformers would keep a mask that hides nothing. Without a mask another attention kernel
        # runs. transformers checks a condition on values, which a trace assumes true.
        masking = sys.modules.get("transformers.utils.import_utils")
        if not padded and getattr(masking, "is_fake_tensor", None) is not None:  # not all versions check
            undo.set(masking, "is_fake_tensor", lambda tensor: False)
        yield


@contextmanager
def sums_in_place(recorder: Recorder) -> Iterator[None]:
    """Has `recorder` merge a sum with its first operand where torch adds in place unless a dispatch mode is active.

    These are the biases of products of inputs that are not contiguous, also inside recurrent modules: `at::linear` in
    aten/src/ATen/native/Linear.cpp.
    """
    thread = get_ident()
    with Undo() as undo:
        for owner, name in ((functional, "linear"), (nn.RNN, "forward"), (nn.GRU, "forward"), (nn.LSTM, "forward")):
            undo.set(owner, name, _in_place(recorder, thread, getattr(owner, name)))
        yield


def _in_place(recorder: Recorder, thread: int, original: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        if get_ident() != thread and not in_backward():  # a thread of the user's, beside what is recorded
            return original(*args, **kwargs)
        before, recorder.in_place = recorder.in_place, True
        try:
            return original(*args, **kwargs)
        finally:
            recorder.in_place = before

    return run


def has_padding(batch: Batch) -> bool:
    """Returns whether a batch may have a mask that hides any position: an integer or bool tensor of ones and zeros."""
    flags = (tensor for tensor in tensors(batch) if tensor.dim() > 1 and not tensor.is_floating_point())
    return any(bool((tensor == 0).any() and (tensor == 1).any() and (tensor <= 1).all()) for tensor in flags)
