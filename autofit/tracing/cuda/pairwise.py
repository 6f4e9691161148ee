"""Temporary memory of CUDA operators on pairs of elements: distances, bilinear forms, windows, grids.

Sources: aten/src/ATen/native/Linear.cpp (`_trilinear`), cuda/DistanceKernel.cu, cuda/Im2Col.cu,
AffineGridGenerator.cpp and cuda/Distributions.cpp (`bernoulli`).
"""

import math
from typing import Any

import torch

from autofit.tracing.cuda.reduce_config import AllocatorSteps, Chip, Rule, after_results, nbytes

aten = torch.ops.aten


def _trilinear(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The product of two operands, and its product with the third, for one index of a dimension at a time."""
    operands, absent, summed = args[:3], args[3:6], args[6]
    unrolled = args[7] if len(args) > 7 else 1
    shapes = [_expanded(one.shape, dims) for one, dims in zip(operands, absent, strict=True)]
    first, second = list[int](), list[int]()
    for dim, sizes in enumerate(zip(*shapes, strict=True)):
        early = dim in summed and (dim in absent[2] or dim == unrolled)
        first.append(1 if early or dim == unrolled else max(sizes[:2]))
        second.append(1 if dim in summed or dim == unrolled else max(sizes))
    size = operands[0].element_size()
    return after_results(math.prod(first) * size, math.prod(second) * size)


def _expanded(shape: tuple[int, ...], absent: list[int]) -> list[int]:
    """Returns a shape with size 1 in the dimensions that an operand lacks."""
    sizes = iter(shape)
    return [1 if dim in absent else next(sizes) for dim in range(len(shape) + len(absent))]


def _cdist_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The contribution of each pair of rows to the gradient."""
    left, right = args[1], args[2]
    return after_results(left.numel() * right.shape[-2] * left.element_size())


def _pdist_backward(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The contribution of each pair of rows to the gradient."""
    return after_results((args[1].shape[0] - 1) * nbytes(args[1]))


def _windows(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """A result with the shape of the images, which is then resized to a larger shape."""
    return (nbytes(args[0]), None, ~0) if nbytes(out) > nbytes(args[0]) else ()


def _affine_grid(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The grid before the transformation, with a one appended to each position."""
    return (nbytes(out) // out.shape[-1] * (out.shape[-1] + 1), None, ~0)


def _bernoulli(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """The probabilities in float32, if they are in half precision."""
    return after_results(*(() if args[0].element_size() > 2 else (4 * args[0].numel(),)))


RULES: dict[Any, Rule] = {
    aten._trilinear.default: _trilinear,
    aten._cdist_backward.default: _cdist_backward,
    aten._pdist_backward.default: _pdist_backward,
    aten.im2col.default: _windows,
    aten.affine_grid_generator.default: _affine_grid,
    aten.bernoulli.default: _bernoulli,
}
