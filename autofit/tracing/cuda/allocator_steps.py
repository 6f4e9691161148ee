"""Chip, the properties of a CUDA device that a trace needs, and the notation for an operator's allocator steps."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.torch_version import TorchVersion

KIB, MIB = 2**10, 2**20
SHARED_SINCE = "2.13"
"""First torch version in which cuBLASLt shares cuBLAS's workspace (measured: 2.11 does not)."""


@dataclass(frozen=True, slots=True)
class Chip:
    """The properties of a CUDA device that a trace needs.

    Attributes:
        capability: compute capability. It determines which attention kernel runs.
        multiprocessors: number of multiprocessors.
        threads: maximum number of resident threads per multiprocessor.
    """

    capability: tuple[int, int] = (8, 0)
    multiprocessors: int = 108
    threads: int = 2048

    @classmethod
    def of(cls, device: torch.device) -> "Chip":
        """Returns the chip of a device that is present."""
        found = torch.get_device_module(device).get_device_properties(device)
        return cls(
            capability=(found.major, found.minor),
            multiprocessors=found.multi_processor_count,
            threads=found.max_threads_per_multi_processor,
        )

    @property
    def workspaces(self) -> tuple[int, int]:
        """Workspace bytes of cuBLAS per thread and stream, and those of cuBLASLt (0 if it shares cuBLAS's)."""
        blas = 32 * MIB if self.capability >= (9, 0) else 8320 * KIB  # torch's defaults
        pairs = [int(number) for number in re.findall(r"\d+", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))]
        if pairs and len(pairs) % 2 == 0:  # ":KiB:count" pairs
            blas = sum(size * count for size, count in zip(pairs[::2], pairs[1::2], strict=True)) * KIB
        shared = TorchVersion(torch.__version__) >= SHARED_SINCE
        return blas, 0 if shared else int(os.environ.get("CUBLASLT_WORKSPACE_SIZE") or 1024) * KIB


AllocatorSteps = tuple[int | None, ...]
"""The allocator steps of an operator, in order. A size is an allocation, and `~i` releases the i-th allocation. None
stands for the results, which come first if there is no None. With several Nones, each stands for one result, and the
last for all remaining ones. An allocation that occurs only at other batch sizes has size 0, so that the steps do not
depend on the batch."""
Rule = Callable[[Chip, tuple[Any, ...], Any], AllocatorSteps]
"""A function that returns the allocator steps of an operator on a chip, from its arguments and its result."""


def after_results(*sizes: int) -> AllocatorSteps:
    """Returns the steps that allocate `sizes` after the results and release them in reverse order."""
    return (*sizes, *(~place for place in reversed(range(len(sizes)))))


def around_results(*sizes: int, inside: tuple[int, ...] = ()) -> AllocatorSteps:
    """Returns the steps that allocate `sizes` before the results and `inside` after them, and release all of them."""
    both = (*sizes, *inside)
    return (*sizes, None, *inside, *(~place for place in reversed(range(len(both)))))


def copies(*tensors: torch.Tensor) -> tuple[int, ...]:
    """Returns the bytes of a copy of each tensor that is not contiguous."""
    return tuple(each.nbytes for each in tensors if not each.is_contiguous())


def round_up(number: int, step: int) -> int:
    """Returns a number rounded up to a multiple of `step`."""
    return -(-number // step) * step


def power_of_two(number: int) -> int:
    """Returns the largest power of two that is not above a number, at least 1."""
    return 1 << max(number.bit_length() - 1, 0)
