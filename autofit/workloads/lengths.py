"""Variable lengths: how long samples are, which samples make the worst batch, and how many tokens are useful.

Training runs out of memory on a batch that is longer than every batch a probe has seen. Samples are therefore measured
before the first probe. Only positions and lengths are kept, never the samples.
"""

import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from time import monotonic
from typing import Any

import torch

from autofit.workloads.batch_algebra import leaves
from autofit.workloads.tree import Batch, children, map_tensors, safe_getattr, tensors

LEAST_SCANNED = 16
"""Number of samples that are read for their length, however long that takes."""
IDS, MASK = "input_ids", "attention_mask"
"""Names of the tokens of a batch of sequences and of their mask, [B, T]: 1 for tokens and 0 for padding."""
_MAX_ENTRIES = 8  # longer lists are measured as a whole, not entry by entry
_MAX_COLUMNS = 6  # maximum number of single dimensions by which samples are ranked
_LENGTH_NAMES = ("lengths", "length", "input_lengths", "input_length")


@dataclass(frozen=True, slots=True)
class Lengths:
    """Result of a scan: the extents of the scanned samples that differ between samples.

    Attributes:
        positions: positions of the scanned samples, ascending.
        sizes: number of elements by field, for fields that vary.
        dims: single dimensions by field and dimension, for those that vary. If a collate function pads to the largest
            height and the largest width, its worst batch has the extreme of each.
    """

    positions: tuple[int, ...]
    sizes: Mapping[str, tuple[int, ...]]
    dims: Mapping[str, tuple[int, ...]]

    @property
    def varies(self) -> bool:
        """Whether the samples differ in extent."""
        return bool(self.dims)

    def rankings(self) -> list[tuple[int, ...]]:
        """Returns candidate orders of `positions`, longest first, without duplicates.

        The orders are by total size, by the largest field, a mixture that begins with the extreme of every dimension
        (a long input next to a long target pads both), and by single dimensions.
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


def scan(sample: Callable[[int], Any], count: int, limit: int, most_s: float = math.inf) -> Lengths:
    """Returns the lengths of up to `limit` of `count` samples, read from coarse to fine until the time is over.

    Args:
        sample: returns the sample at a position. Called once per scanned position; the result is not kept.
        count: total number of samples, at least 1.
        limit: maximum number of samples scanned: the first, the last, and others evenly spaced. Samples without an
            extent, such as None for a file that cannot be read, are left out if other samples have one.
        most_s: seconds after which no further sample is read, once there are `LEAST_SCANNED`.
    """
    seen_at = _read(sample, evenly_spaced(count, limit), most_s)
    positions = [position for position, shapes in seen_at.items() if shapes] or list(seen_at)
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


def evenly_spaced(count: int, limit: int) -> list[int]:
    """Returns up to `limit` (at least 1) of the positions 0 … count-1, evenly spaced and with both ends."""
    if count <= limit:
        return list(range(count))
    if limit < 2:
        return [count - 1]
    return [round(step * (count - 1) / (limit - 1)) for step in range(limit)]


def _read(
    sample: Callable[[int], Any], positions: Sequence[int], most_s: float
) -> dict[int, dict[str, tuple[int, ...]]]:
    """Returns the extents of the samples that are read in the time, by ascending position."""
    found, began, last = dict[int, dict[str, tuple[int, ...]]](), monotonic(), len(positions) - 1
    # From coarse to fine: any beginning of the order is spread over all. Both ends come first, then every half.
    for place in sorted(range(len(positions)), key=lambda at: (at not in (0, last), -(at & -at), at)):
        if len(found) >= LEAST_SCANNED and monotonic() - began > most_s:
            break
        found[positions[place]] = extents(sample(positions[place]))
    return dict(sorted(found.items()))


def extents(sample: Any, path: str = "") -> dict[str, tuple[int, ...]]:
    """Returns, by path, the shapes of whatever in a sample may vary in size: tensors, arrays, images, lists, text.

    Lists of numbers and text are measured by their length, since data sets often leave tokenising and padding to
    collate_fn.
    """
    if isinstance(sample, (str, bytes)):
        return {path: (len(sample),)}
    if isinstance(shape := safe_getattr(sample, "shape"), tuple):
        return {path: tuple(int(side) for side in shape)}
    if isinstance(safe_getattr(sample, "mode"), str) and isinstance(safe_getattr(sample, "size"), tuple):
        return {path: tuple(sample.size)}  # images as in PIL: (width, height)
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
    """Returns the number of tokens of a batch that are not padding. None for data that is not sequences.

    Uses the first available of: the sum of `attention_mask`, the number of `labels` [B, T] other than -100, the sum of
    `lengths`, the size of `input_ids` [B, T]. Padding is not counted, since a throughput in padded tokens would reward
    waste.
    """
    named: dict[str, torch.Tensor] = {}
    for path, leaf, listed in leaves(batch, -1):
        if isinstance(leaf, torch.Tensor) and not listed and not leaf.is_floating_point():
            named.setdefault(path.rpartition(".")[2], leaf)
    mask, labels, ids = (named.get(name) for name in (MASK, "labels", IDS))
    if mask is not None and mask.dim() <= 2:
        return int(mask.sum())
    if labels is not None and labels.dim() == 2:
        return int((labels != -100).sum())
    for name in _LENGTH_NAMES:
        if name in named and named[name].dim() == 1:
            return int(named[name].sum())
    return ids.numel() if ids is not None and ids.dim() == 2 else None


def sequence_length(batch: Batch) -> int | None:
    """Returns T of a batch's tensors, [B, T, ...]; None if they have not one in common."""
    found = {tensor.shape[1] for tensor in tensors(batch) if tensor.dim() > 1}
    return found.pop() if len(found) == 1 else None


def with_length(batch: Batch, length: int) -> Batch:
    """Returns a batch whose tensors [B, T, ...] are cut to another T, or continued with what they have."""

    def changed(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() < 2:
            return tensor
        return torch.cat([tensor] * math.ceil(length / tensor.shape[1]), dim=1)[:, :length]

    return map_tensors(batch, changed)


def product(shape: tuple[int, ...]) -> int:
    """Returns the number of elements of a shape. 0 for a scalar, whose extent cannot vary."""
    return math.prod(shape) if shape else 0


LengthOf = Callable[[Any], int]
"""Returns the length of the sample with a key."""


class SampleLengths:
    """The lengths of samples by key. Those of a scan are known; others are measured and kept.

    Attributes:
        fields: names of the fields that vary in size.

    Args:
        keys: keys of the samples.
        sample: key -> sample.
        lengths: result of the scan of the samples.
    """

    def __init__(self, keys: Sequence[Any], sample: Callable[[Any], Any], lengths: Lengths) -> None:
        self.fields = tuple(lengths.sizes)
        self._keys, self._sample = keys, sample
        rows = zip(*lengths.sizes.values(), strict=True)
        self._known = {keys[at]: row for at, row in zip(lengths.positions, rows, strict=False)}

    def __contains__(self, key: Any) -> bool:
        return key in self._known

    def of_fields(self, key: Any) -> tuple[int, ...]:
        """Returns the number of elements of a sample in each field that varies."""
        if key not in self._known:
            found = extents(self._sample(key))
            self._known[key] = tuple(product(found.get(field, ())) for field in self.fields)
        return self._known[key]

    def total(self, key: Any) -> int:
        """Returns the number of elements of a sample in all fields that vary."""
        return sum(self.of_fields(key))

    @cached_property
    def of_all(self) -> LengthOf:
        """Orders samples as `total` does, but reads none: all samples are read when this is first asked for.

        All fields are counted: one that does not vary changes no order, and a short scan may not have seen one vary.
        """
        totals = (sum(map(product, extents(self._sample(key)).values())) for key in self._keys)
        if self._keys == range(len(self._keys)):  # an array, since a data set may have many millions
            return array("q", totals).__getitem__
        return dict(zip(self._keys, totals, strict=True)).__getitem__
