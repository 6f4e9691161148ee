"""Temporary memory of CUDA's losses that are a single operator.

Sources: aten/src/ATen/native/Loss.cpp and aten/src/ATen/native/cuda/Loss.cu.
"""

import math
from functools import partial
from typing import Any

import torch

from autofit.tracing.cuda.reduce_config import AllocatorSteps, Axes, Chip, Rule, after_results, nbytes, staging_bytes
from autofit.tracing.cuda.results import UNREDUCED, broadcast

aten = torch.ops.aten


def _summed(chip: Chip, count: int) -> tuple[int, int]:
    """Returns the buffers of the sum of `count` elements."""
    return staging_bytes(Axes(reduced=((count, 1),), kept=()), 4, chip.multiprocessors, chip.threads)


def _errors(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The loss of each element, and the buffers of their sum. The result itself is allocated for all elements too."""
    if len(args) > 2 and args[2] == UNREDUCED:
        return ()
    errors = math.prod(broadcast(*args[:2]))
    return after_results(errors * out.element_size(), *_summed(chip, errors))


def _shrunk(chip: Chip, args: tuple[Any, ...], out: Any, place: int) -> AllocatorSteps:
    """The mean, besides a result that is allocated for all elements. `place` is the position of `reduction`."""
    if len(args) > place and args[place] == UNREDUCED:
        return ()
    return after_results(out.element_size(), *_summed(chip, math.prod(broadcast(*args[:2]))))


def _huber(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The loss of each element, allocated before the result."""
    if len(args) > 2 and args[2] == UNREDUCED:
        return ()
    errors = math.prod(broadcast(*args[:2]))
    return (errors * out.element_size(), None, *_summed(chip, errors), ~2, ~1, ~0)


def _logits(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The logarithm, its weights, and the loss of each element, which may be the result."""
    shape = broadcast(*args[:2])
    each = math.prod(shape) * args[0].element_size()
    weights = args[3] if len(args) > 3 else None
    before: AllocatorSteps = (each,) if weights is None else (each, nbytes(weights), each, ~1, ~2)
    if len(args) > 4 and args[4] == UNREDUCED:
        return (*before, None, ~0)
    loss = sum(step is not None and step >= 0 for step in before)
    return (*before, each, None, *_summed(chip, math.prod(shape)), ~(loss + 2), ~(loss + 1), ~loss, ~0)


def _soft_margin_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """Exponential, product and quotient. The gradient is allocated before the last release."""
    each = nbytes(out)
    return (each, each, each, ~1, ~0, None, ~2)


RULES: dict[Any, Rule] = {
    aten.mse_loss.default: _errors,
    aten.smooth_l1_loss.default: _errors,
    aten.binary_cross_entropy.default: partial(_shrunk, place=3),
    aten.soft_margin_loss.default: partial(_shrunk, place=2),
    aten.soft_margin_loss_backward.default: _soft_margin_backward,
    aten.huber_loss.default: _huber,
    aten.binary_cross_entropy_with_logits.default: _logits,
}
