"""Peak speed of the host in arithmetic and memory traffic, measured in a fraction of a second."""

from collections.abc import Callable
from functools import cache
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
SLOW_RATIO = 4
"""A precision is taken to be emulated if training a small convolution in it is this many times slower than in fp32.
fp16 took 40 times as long on a chip with AVX512-FP16 (torch 2.13)."""
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def measured(*precisions: str) -> Ceilings:
    """Measures the ceilings for these precisions ("fp32", "bf16", "fp16"), with the present number of threads."""
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


@cache
def trains_in(precision: str) -> bool:
    """Returns whether training a small convolution in a precision runs without emulation. Measured once per process."""
    plain, reduced = (_training_s(DTYPES[name]) for name in ("fp32", precision))
    return reduced <= SLOW_RATIO * plain


def _training_s(dtype: torch.dtype) -> float:
    # Explicit dtype and device, since the user may have set other defaults.
    images = torch.ones(4, 16, 16, 16, dtype=torch.float32, device="cpu")
    filters = torch.ones(16, 16, 3, 3, dtype=torch.float32, device="cpu", requires_grad=True)

    def train() -> None:
        with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
            outputs = torch.nn.functional.conv2d(images, filters)
        torch.autograd.grad(outputs.float().sum(), filters)

    with torch.enable_grad():
        return _seconds(train)


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
