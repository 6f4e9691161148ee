"""What the tests of rules share: tensors without data, and what an operator's steps come to.

The figures beside them are what the CUDA code of torch 2.11 asked of its allocator, on 108 multiprocessors.
"""

from typing import Any

import torch

from autofit.tracing.cuda.allocator_steps import Chip
from autofit.tracing.cuda.temporaries import temporary_steps


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def taken(func: Any, *args: Any) -> list[int]:
    """Returns the sizes that an operator takes beside its results, and checks that all are given back."""
    steps = temporary_steps(Chip(), func, args, func(*args))
    sizes = [step for step in steps if step is not None and step >= 0]
    assert sorted(~step for step in steps if step is not None and step < 0) == list(range(len(sizes)))
    return sizes
