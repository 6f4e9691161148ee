"""Temporary memory of CUDA's reductions: partial results of several blocks, and copies in a wider type.

Sources: aten/src/ATen/native/cuda/Reduce.cuh (`gpu_reduce_kernel`) and the kernels that use it: ReduceSumProdKernel.cu,
ReduceMomentKernel.cu (`WelfordData`), ReduceAMinMaxKernel.cu, ReduceMaxValuesKernel.cu, ReduceArgMaxKernel.cu and
ReduceNormKernel.cu. The copies are made by `make_reduction` in aten/src/ATen/native/ReduceOpsUtils.h.
"""

from functools import partial
from typing import Any

import torch

from autofit.tracing.cuda.reduce_config import AllocatorSteps, Axes, Chip, Rule, after_results, nbytes, staging_bytes

aten = torch.ops.aten
PAIR_BYTES = 16
"""Size of a partial result: a value with its index, or a mean with its sum of squares and two counts."""


def reduction(chip: Chip, x: torch.Tensor, over: Any, partial_bytes: int, vectorised: bool = True) -> tuple[int, int]:
    """Returns the buffers of a reduction of `x` over `over`: a list of dimensions, one dimension, or None for all."""
    given = [over] if isinstance(over, int) else over
    dims = [dim % max(x.dim(), 1) for dim in given or range(x.dim())]
    axes = Axes.of(x.shape, x.stride(), dims)
    return staging_bytes(axes, partial_bytes, chip.multiprocessors, chip.threads, vectorised)


def _sum(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """For a sum or a mean, over some dimensions or all."""
    summed, over = args[0], args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
    if _read_directly(summed.dtype, out.dtype):
        return after_results(*reduction(chip, summed, over, max(summed.element_size(), 4)))
    copied = torch.empty_like(summed, dtype=out.dtype, device="meta")
    return after_results(nbytes(copied), *reduction(chip, copied, over, max(copied.element_size(), 4)))


def _read_directly(read: torch.dtype, written: torch.dtype) -> bool:
    """Returns whether a sum reads one type and writes another without a copy, such as 16-bit types into float32."""
    return read is written or (written is torch.float32 and read in (torch.float16, torch.bfloat16))


def _extremes(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """For values without indices: the partial results have the type of the values."""
    return after_results(*reduction(chip, args[0], args[1] if len(args) > 1 else None, args[0].element_size()))


def _pairs(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """For the index of a value, with or without the value."""
    return after_results(*reduction(chip, args[0], args[1] if len(args) > 1 else None, PAIR_BYTES))


def _moments(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """For a variance or a standard deviation, with or without the mean."""
    over = args[1] if len(args) > 1 else None
    return after_results(
        *reduction(chip, args[0], over, PAIR_BYTES * max(args[0].element_size() // 4, 1), vectorised=False)
    )


def _norm(chip: Chip, args: tuple[Any, ...], out: Any, place: int) -> AllocatorSteps:
    return after_results(
        *reduction(chip, args[0], args[place] if len(args) > place else None, max(args[0].element_size(), 4))
    )


def _logsumexp(chip: Chip, args: tuple[Any, ...], out: Any) -> AllocatorSteps:
    """For logsumexp: the exponential of each element minus the maximum, and the buffers of their sum."""
    return after_results(nbytes(args[0]), *reduction(chip, args[0], args[1], max(args[0].element_size(), 4)))


RULES: dict[Any, Rule] = {
    **dict.fromkeys((aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default), _sum),
    **dict.fromkeys((aten.amax.default, aten.amin.default, aten.max.default, aten.min.default), _extremes),
    **dict.fromkeys((aten.any.default, aten.any.dim, aten.all.default, aten.all.dim), _extremes),
    aten.logsumexp.default: _logsumexp,
    **dict.fromkeys((aten.max.dim, aten.min.dim, aten.argmax.default, aten.argmin.default), _pairs),
    **dict.fromkeys(
        (aten.var.correction, aten.std.correction, aten.var_mean.correction, aten.std_mean.correction), _moments
    ),
    **dict.fromkeys(
        (aten.linalg_vector_norm.default, aten.norm.ScalarOpt_dim, aten.norm.ScalarOpt_dim_dtype),
        partial(_norm, place=2),
    ),
}
