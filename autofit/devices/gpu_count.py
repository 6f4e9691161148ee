"""The number of GPUs that torch sees, and how a process answers with a known number without starting their driver."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def gpu_count() -> int:
    """Returns the number of GPUs that torch sees in this process."""
    return torch.cuda.device_count()


def gpu_in_use() -> bool:
    """Returns whether torch has used a GPU in this process."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]  # torch has no types here


@contextmanager
def known_gpu_count(count: int) -> Iterator[None]:
    """Has torch answer with a known number of GPUs, without a question to the driver, until the context is left."""
    before = torch.cuda.is_available, torch.cuda.device_count
    torch.cuda.is_available, torch.cuda.device_count = (lambda: count > 0), (lambda: count)
    try:
        yield
    finally:
        torch.cuda.is_available, torch.cuda.device_count = before
