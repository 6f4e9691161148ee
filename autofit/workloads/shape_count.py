"""Shape count: how many shapes the batches of a loader can have, estimated from a few batches."""

import math
from collections.abc import Sequence

from autofit.workloads.tree import Batch, tensors


def shape_count(batches: Sequence[Batch]) -> float:
    """Returns the estimated number of shapes; infinity if batches differ in their number of tensors or dimensions.

    A dimension counts as many sizes as fit between the smallest and the largest one, in steps of their greatest common
    difference, so that lengths padded to a multiple count once per multiple. Dimensions that grow together, such as
    tokens and labels, count once. From few batches the estimate is low, since the extreme sizes are not among them.

    Args:
        batches: batches with the same number of samples; at least one.
    """
    shapes = [[size for tensor in tensors(batch) for size in tensor.shape] for batch in batches]
    if len({len(shape) for shape in shapes}) > 1:
        return math.inf
    columns = {_ranks(column): _sizes(column) for column in zip(*shapes, strict=True)}
    return math.prod(columns.values())


def _ranks(column: Sequence[int]) -> tuple[int, ...]:
    """Returns the rank of each size of a dimension, by which dimensions that grow together are recognised."""
    ordered = sorted(set(column))
    return tuple(ordered.index(size) for size in column)


def _sizes(column: Sequence[int]) -> int:
    low, high = min(column), max(column)
    step = math.gcd(*(size - low for size in column))
    return (high - low) // step + 1 if step else 1
