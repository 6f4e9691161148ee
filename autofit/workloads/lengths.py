"""Variable lengths: how long the samples are, which of them make the worst batch, how many tokens are useful.

Out-of-memories in training come from the one batch that is longer than all batches a probe has seen. The
samples are therefore measured before the first probe, and fit is proven on the longest of them. Only positions
and lengths are kept, never the samples.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from autofit.workloads.batch_algebra import leaves
from autofit.workloads.tree import Batch, asked, children, tensors

_MAX_ENTRIES = 8  # a list with more entries than this is measured as a whole, not entry by entry
_MAX_COLUMNS = 6  # rankings tried one by one when the worst batch is chosen
_LENGTH_NAMES = ("lengths", "length", "input_lengths", "input_length")


@dataclass(frozen=True, slots=True)
class Lengths:
    """What a scan saw: the extents, per scanned sample, that are not the same in all of them.

    Attributes:
        positions: positions of the scanned samples, ascending.
        sizes: element counts by field; only fields that vary.
        dims: single dimensions by field and dimension; only those that vary. A collate function that pads to
            the largest height and the largest width meets its worst batch at the extremes of each.
    """

    positions: tuple[int, ...]
    sizes: Mapping[str, tuple[int, ...]]
    dims: Mapping[str, tuple[int, ...]]

    @property
    def varies(self) -> bool:
        """Whether the samples differ in extent at all."""
        return bool(self.dims)

    def rankings(self) -> list[tuple[int, ...]]:
        """Returns candidate orders of `positions`, longest first, without repetitions.

        By total, by the longest field, a mixture that begins with the extreme of every dimension (a long input
        beside a long target pads both), and by single dimensions.
        """
        rows = list(zip(*self.sizes.values(), strict=True)) or [(0,)] * len(self.positions)
        columns = [self._ranked(values) for values in self.dims.values()]
        mixture = tuple(dict.fromkeys(position for rank in zip(*columns, strict=True) for position in rank))
        orders = [self._ranked([sum(row) for row in rows]), self._ranked([max(row) for row in rows]), mixture]
        return list(dict.fromkeys(order for order in orders + columns[:_MAX_COLUMNS] if order))

    def shortest(self) -> tuple[int, ...]:
        """Returns `positions` by total element count, shortest first."""
        return self.rankings()[0][::-1]

    def _ranked(self, values: Sequence[int]) -> tuple[int, ...]:
        order = sorted(range(len(values)), key=lambda row: (-values[row], self.positions[row]))
        return tuple(self.positions[row] for row in order)


def scan(sample: Callable[[int], Any], count: int, limit: int) -> Lengths:
    """Returns the lengths of up to `limit` of `count` samples.

    Args:
        sample: the sample at a position; called once for each scanned position, its result is dropped at once.
        count: samples in all, at least 1.
        limit: at most this many are looked at: the first, the last, and others evenly spaced. Those without any extent,
            such as the None of a file that cannot be read, are left out where others have one.
    """
    seen_at = {position: extents(sample(position)) for position in spaced(count, limit)}
    positions = [position for position, found in seen_at.items() if found] or list(seen_at)
    table: dict[str, dict[int, tuple[int, ...]]] = {}
    for row, position in enumerate(positions):
        for path, shape in seen_at[position].items():
            table.setdefault(path, {})[row] = shape
    sizes: dict[str, tuple[int, ...]] = {}
    dims: dict[str, tuple[int, ...]] = {}
    for path, shapes in table.items():
        seen = [shapes.get(row, ()) for row in range(len(positions))]
        if len(set(seen)) > 1:
            sizes[path] = tuple(product(shape) for shape in seen)
            for axis in range(max(len(shape) for shape in seen)):
                column = tuple(shape[axis] if axis < len(shape) else 0 for shape in seen)
                if len(set(column)) > 1:
                    dims[f"{path}/{axis}"] = column
    return Lengths(tuple(positions), sizes, dims)


def spaced(count: int, limit: int) -> list[int]:
    """Returns up to `limit` (at least 1) of the positions 0 … count-1: all, or evenly spaced with both ends."""
    if count <= limit:
        return list(range(count))
    if limit < 2:
        return [count - 1]
    return [round(step * (count - 1) / (limit - 1)) for step in range(limit)]


def extents(sample: Any, path: str = "") -> dict[str, tuple[int, ...]]:
    """Returns, by path, the shape of whatever in a sample may grow: tensors, arrays, images, numbers, text.

    A list of numbers and a text count by their length: data sets often leave tokenising and padding to collate_fn.
    """
    if isinstance(sample, (str, bytes)):
        return {path: (len(sample),)}
    if (shape := _shape(sample)) is not None:
        return {path: shape}
    if isinstance(sample, (list, tuple)) and (not sample or isinstance(sample[0], (int, float))):
        return {path: (len(sample),)}
    if isinstance(sample, (list, tuple)) and len(sample) > _MAX_ENTRIES:
        inner = [shape for item in sample for shape in extents(item).values()]
        return {path: (len(sample), sum(product(shape) for shape in inner))}
    found: dict[str, tuple[int, ...]] = {}
    for key, child in (children(sample) or {}).items():
        found |= extents(child, f"{path}.{key}")
    return found


def elements(batch: Batch) -> int:
    """Returns the number of elements in all tensors of a batch, padding included."""
    return sum(tensor.numel() for tensor in tensors(batch))


def useful_tokens(batch: Batch) -> int | None:
    """Returns the tokens of a batch that are not padding; None for data that is not sequences.

    The first of: the sum of `attention_mask`, the `labels` [B, T] that are not -100, the sum of `lengths`, the size
    of `input_ids` [B, T]. Padded tokens do not count, since a throughput in padded tokens rewards waste.
    """
    named: dict[str, torch.Tensor] = {}
    for path, leaf, listed in leaves(batch, -1):
        if isinstance(leaf, torch.Tensor) and not listed and not leaf.is_floating_point():
            named.setdefault(path.rpartition(".")[2], leaf)
    mask, labels, ids = (named.get(name) for name in ("attention_mask", "labels", "input_ids"))
    if mask is not None and mask.dim() <= 2:
        return int(mask.sum())
    if labels is not None and labels.dim() == 2:
        return int((labels != -100).sum())
    for name in _LENGTH_NAMES:
        if name in named and named[name].dim() == 1:
            return int(named[name].sum())
    return ids.numel() if ids is not None and ids.dim() == 2 else None


def _shape(node: Any) -> tuple[int, ...] | None:
    """Returns the shape of a tensor, an array or an image; None for anything else."""
    shape = asked(node, "shape")
    if isinstance(shape, tuple):
        return tuple(int(side) for side in shape)
    if isinstance(asked(node, "mode"), str) and isinstance(asked(node, "size"), tuple):
        return tuple(node.size)  # images in the manner of PIL: (width, height)
    return None


def product(shape: tuple[int, ...]) -> int:
    """Returns the number of elements of a shape; none for a single number, whose extent cannot vary."""
    return math.prod(shape) if shape else 0
