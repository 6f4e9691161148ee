"""Peak speed of the host in arithmetic and memory traffic, measured in a fraction of a second."""

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

from autofit.core.work import Ceilings

LONG_S = 2e-3
"""Duration from which a matrix product is large enough to reach the peak rate: its launch takes a thousandth of
this."""
SIDES = (128, 256, 512, 1024)
COPIED_BYTES = 64 * 2**20
"""Size of the copy that shows memory bandwidth: larger than the last-level cache of most chips."""
OPERATORS = 200
REPEATS = 3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def measured(*precisions: str) -> Ceilings:
    """Measures the ceilings for these precisions ("fp32", "bf16"), with the present number of threads."""
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
    """Returns the peak rate in operations per second, from the largest product that was measured."""
    rate = 0.0
    for side in SIDES:
        factor = torch.ones(side, side, dtype=dtype)
        seconds = _seconds(lambda factor=factor: torch.mm(factor, factor))  # type: ignore[misc]  # bound early
        rate = 2 * side**3 / seconds
        if seconds > LONG_S:
            break
    return rate


def _seconds(work: Callable[[], object]) -> float:
    """Returns the median duration of a few runs in seconds, after one warm-up run."""
    times = []
    for _ in range(REPEATS + 1):
        began = perf_counter()
        work()
        times.append(perf_counter() - began)
    return median(times[1:])
