"""How fast the host computes and moves memory at best, measured in a fraction of a second."""

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from autofit.core.work import Ceilings

LONG_S = 2e-3
"""A product that takes so long is large enough to show its peak rate: issuing it takes a thousandth of that."""
SIDES = (128, 256, 512, 1024)
COPIED_BYTES = 64 * 2**20
"""Larger than the last cache of most chips."""
OPERATORS = 200
REPEATS = 3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def measured(*precisions: str) -> Ceilings:
    """Returns the ceilings for products in these precisions ("fp32", "bf16", "fp16"), with torch's present threads."""
    source = torch.empty(COPIED_BYTES, dtype=torch.uint8).fill_(1)
    target, one = torch.empty_like(source).fill_(0), torch.ones(1)

    def issue() -> None:
        for _ in range(OPERATORS):
            torch.add(one, one)

    with torch.inference_mode():
        return Ceilings(
            flops_per_s={precision: _rate(DTYPES[precision]) for precision in precisions},
            bytes_per_s=2 * COPIED_BYTES / _seconds(lambda: target.copy_(source)),
            operator_s=_seconds(issue) / OPERATORS,
            ahead=False,
        )


def _rate(dtype: torch.dtype) -> float:
    """Returns the rate of the largest product that was needed to see it, in operations per second."""
    rate = 0.0
    for side in SIDES:
        factor = torch.ones(side, side, dtype=dtype)
        seconds = _seconds(lambda factor=factor: torch.mm(factor, factor))  # type: ignore[misc]  # bound early
        rate = 2 * side**3 / seconds
        if seconds > LONG_S:
            break
    return rate


def _seconds(work: Callable[[], object]) -> float:
    """Returns the median seconds of a few runs, after one that is not counted."""
    times = []
    for _ in range(REPEATS + 1):
        began = perf_counter()
        work()
        times.append(perf_counter() - began)
    return median(times[1:])
