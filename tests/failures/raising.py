"""Ways to get a raised exception, which the tests of evidence and of failures share."""

from collections.abc import Callable

import torch

OOM_TEXT = "CUDA out of memory. Tried to allocate 2.00 GiB."


def raised(function: Callable[[], object]) -> BaseException:
    """Returns what `function` raises."""
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def oom() -> None:
    """Raises an out-of-memory error of the device, as the allocator does."""
    raise torch.OutOfMemoryError(OOM_TEXT)
