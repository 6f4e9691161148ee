"""Operations on batches: counting their samples, and cutting and joining them along the batch dimension.

Two layouts hold one entry per sample: a tensor whose first dimension is the batch, and a list or tuple with one entry
per sample (file names, the boxes of each image).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from autofit.core.errors import WorkloadError
from autofit.workloads.tree import Batch, children, rebuilt, safe_getattr, same, sequence, tensors

_WHOLE = object()  # the key used for a batch that is itself a list of samples


def batch_size(batch: Batch) -> int:
    """Returns the number of samples: the first dimension that most tensors share. The first tensor breaks a tie.

    Tensors in a list with one entry per sample (the boxes of each image) are not counted. If the tensors disagree and
    the batch holds only such lists (images of many sizes and their targets), returns the length of the lists.

    Raises:
        WorkloadError: the batch has no tensor with at least one dimension.
    """
    first = next((tensor.shape[0] for tensor in tensors(batch) if tensor.dim()), None)
    if first is None:
        raise WorkloadError(
            f"found a batch of type {type(batch).__name__} without a tensor that has a batch dimension; "
            "expected a tensor, or tensors in mappings, sequences or dataclasses; make the loader's "
            "collate_fn return those"
        )
    if lists := _sample_lists(batch):
        return len(next(iter(lists.values())))
    # `most_common` keeps the order of equal counts, and the first tensor is counted first.
    votes = Counter(
        leaf.shape[0]
        for _, leaf, inside in leaves(batch, first)
        if isinstance(leaf, torch.Tensor) and leaf.dim() and not inside
    )
    return votes.most_common(1)[0][0] if votes else first


def split(batch: Batch, sizes: Sequence[int]) -> list[Batch]:
    """Returns `batch` cut along the batch dimension into pieces of the given sizes.

    The tensors of a piece are views. Lists, tuples and arrays with one entry per sample are cut too. Everything else
    (a tensor of class weights, a scalar) is in every piece.

    Raises:
        WorkloadError: the sizes are not positive or do not add up to `batch_size(batch)`.
    """
    total = batch_size(batch)
    if sum(sizes) != total or min(sizes, default=0) < 1:
        raise WorkloadError(
            f"found sizes {list(sizes)} for a batch of {total} samples; expected positive sizes that add up "
            f"to {total}; choose sizes that divide the batch"
        )
    lists, pieces, start = _sample_lists(batch), [], 0
    for size in sizes:
        part = slice(start, start + size)
        cut = {key: list(items[part]) for key, items in lists.items()}
        pieces.append(_of_lists(batch, cut) if lists else _sliced(batch, total, part))
        start += size
    return pieces


def concat(batches: Sequence[Batch]) -> Batch:
    """Returns the batches joined along the batch dimension. A single batch is returned as it is.

    Raises:
        WorkloadError: the batches differ in structure, or in shape beyond the batch dimension.
    """
    if len(batches) == 1:
        return batches[0]
    lists = [_sample_lists(batch) for batch in batches]
    if all(lists) and all(other.keys() == lists[0].keys() for other in lists):
        joined = {key: [item for held in lists for item in held[key]] for key in lists[0]}
        return _of_lists(batches[0], joined)
    return _joined(list(batches), [batch_size(batch) for batch in batches], "")


def regroup(batches: Iterable[Batch], size: int, *, join: bool = True) -> Iterator[Batch]:
    """Yields the samples of `batches`, in order, in batches of `size`; the last may be smaller.

    With `join=False`, samples of two batches are never joined, so each batch may end in a smaller piece.
    """
    held: list[Batch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch_size(batch)
        if join and count < size:
            continue
        pieces = split(concat(held), [size] * (count // size) + [count % size] * (count % size > 0))
        held = [pieces.pop()] if join and count % size else []
        count = count % size if held else 0
        yield from pieces
    yield from held and [concat(held)]


def non_batch_tensors(batch: Batch) -> dict[str, torch.Tensor]:
    """Returns, by path, the tensors without one entry per sample. A batch that has none can be split safely."""
    size = batch_size(batch)
    return {
        path: leaf
        for path, leaf, listed in leaves(batch, size)
        if isinstance(leaf, torch.Tensor) and not listed and not _has_batch_dim(leaf, size)
    }


def describe(batches: Sequence[Batch], sizes: Sequence[int] | None = None) -> str:
    """Returns the common structure of the batches as one stable line.

    For example "input_ids int64[B, *]; labels int64[B]": `B` is the batch dimension, `*` a dimension that varies.

    Args:
        batches: at least one batch.
        sizes: number of samples of each batch. None uses `batch_size`.
    """
    found: dict[str, list[tuple[Any, int]]] = {}
    for batch, size in zip(batches, sizes or [batch_size(batch) for batch in batches], strict=True):
        for path, leaf, _ in leaves(batch, size):
            found.setdefault(path, []).append((leaf, size))
    return "; ".join(f"{path} {_leaf_text(seen)}".lstrip(" .") for path, seen in found.items())


def leaves(batch: Batch, size: int) -> Iterator[tuple[str, Any, bool]]:
    """Yields (path, leaf, whether the leaf is in a list with one entry per sample) for a batch of `size` samples."""
    lists = _sample_lists(batch)
    for key, items in lists.items():
        for item in items:
            yield from _leaves(item, -1, "[B]" if key is _WHOLE else f"{_step(key)}[B]", listed=True)
    if not lists:
        yield from _leaves(batch, size, "")


def _leaves(node: Any, size: int, path: str, *, listed: bool = False) -> Iterator[tuple[str, Any, bool]]:
    kids = children(node)
    if kids is None:
        yield path, node, listed
    elif not listed and per_sample(node, size):
        for item in node:
            yield from _leaves(item, -1, f"{path}[B]", listed=True)
    else:
        for key, child in kids.items():
            yield from _leaves(child, size, path + _step(key), listed=listed)


def _step(key: Any) -> str:
    return f"[{key}]" if isinstance(key, int) else f".{key}"


def per_sample(node: Any, size: int) -> bool:
    """Returns whether a list or tuple has one entry per sample, unlike a pair (inputs, targets).

    This is so if it has `size` entries and fewer than half of its tensors have the batch as first dimension.
    """
    if not isinstance(node, (list, tuple)) or safe_getattr(node, "_fields") or len(node) != size:
        return False
    inside = list(tensors(list(node)))
    return 2 * sum(_has_batch_dim(tensor, size) for tensor in inside) < max(len(inside), 1)


def _sample_lists(batch: Batch) -> dict[Any, Any]:
    """Returns, by key, the lists with one entry per sample that make up a batch. Any other batch gives an empty dict.

    Such a batch is a list of mappings with the same keys (one per sample), or holds lists of equal length. Its tensors
    differ in their first dimension, so that dimension is not the batch.
    """
    kids = children(batch) or {}
    if len({tensor.shape[:1] for tensor in tensors(batch)}) < 2:
        return {}
    first = next(iter(kids.values()))
    if isinstance(batch, (list, tuple)) and all(isinstance(kid, Mapping) for kid in kids.values()):
        return {_WHOLE: batch} if all(kid.keys() == first.keys() for kid in kids.values()) else {}
    lists = all(isinstance(kid, (list, tuple)) and not safe_getattr(kid, "_fields") for kid in kids.values())
    return kids if lists and {len(kid) for kid in kids.values()} == {len(first)} else {}


def _of_lists(batch: Batch, lists: Mapping[Any, list[Any]]) -> Batch:
    """Returns a copy of `batch`, which consists of lists, with the lists replaced."""
    if _WHOLE in lists:
        return sequence(batch, lists[_WHOLE])
    kids = children(batch) or {}
    return rebuilt(batch, {key: sequence(kids[key], items) for key, items in lists.items()})


def _has_batch_dim(node: Any, size: int) -> bool:
    """Returns whether the first dimension of a tensor or array has `size` entries and can be cut."""
    sparse = isinstance(node, torch.Tensor) and node.layout is not torch.strided
    return bool(len(node.shape)) and node.shape[0] == size and not sparse


def _is_array(node: Any) -> bool:
    """Returns whether a leaf is a numpy-like array, whose first dimension can be sliced."""
    return isinstance(safe_getattr(node, "shape"), tuple) and hasattr(type(node), "__getitem__")


def _sliced(node: Any, size: int, part: slice) -> Any:
    """Returns the samples `part` of a node in a batch of `size` samples."""
    if isinstance(node, torch.Tensor):
        return node[part] if _has_batch_dim(node, size) else node
    if per_sample(node, size):
        return sequence(node, list(node[part]))
    kids = children(node)
    if kids is None:
        return node[part] if _is_array(node) and _has_batch_dim(node, size) else node
    return rebuilt(node, {key: _sliced(child, size, part) for key, child in kids.items()})


def _joined(nodes: list[Any], sizes: list[int], path: str) -> Any:
    """Returns the nodes at one path of several batches, joined along the batch dimension."""
    first = nodes[0]
    if isinstance(first, torch.Tensor):
        return _joined_tensors(nodes, sizes, path)
    if all(per_sample(node, size) for node, size in zip(nodes, sizes, strict=True)):
        return sequence(first, [item for node in nodes for item in node])
    kids = [children(node) for node in nodes]
    if kids[0] is None:
        if _is_array(first) and _has_batch_dim(first, sizes[0]):
            return np.concatenate(nodes)
        return first
    if any(other is None or other.keys() != kids[0].keys() for other in kids):
        raise _mismatch(path, "different keys")
    return rebuilt(first, {key: _joined([kid[key] for kid in kids if kid], sizes, f"{path}.{key}") for key in kids[0]})


def _joined_tensors(nodes: list[Any], sizes: list[int], path: str) -> torch.Tensor:
    if not all(isinstance(node, torch.Tensor) for node in nodes):
        raise _mismatch(path, "not a tensor in every batch")
    if all(_has_batch_dim(node, size) for node, size in zip(nodes, sizes, strict=True)):
        if len({(node.shape[1:], node.dtype) for node in nodes}) > 1:
            raise _mismatch(path, ", ".join(str(list(node.shape)) for node in nodes[:3]))
        return torch.cat(nodes)
    first: torch.Tensor = nodes[0]
    if all(same(node, first) for node in nodes):
        return first
    raise _mismatch(path, "a tensor without batch dimension whose values differ")


def _mismatch(path: str, found: str) -> WorkloadError:
    return WorkloadError(
        f"found batches that differ at {path.lstrip('.') or 'the top'} ({found}); expected batches that can "
        "be joined along the first dimension; pass a DataLoader with a collate_fn, so that batches are "
        "made from samples"
    )


def _leaf_text(seen: list[tuple[Any, int]]) -> str:
    """Describes a leaf from its values in several batches: "float32[B, 3, *]", or its type."""
    kinds = {
        str(leaf.dtype).removeprefix("torch.") if isinstance(leaf, torch.Tensor) else type(leaf).__name__
        for leaf, _ in seen
    }
    text = "|".join(sorted(kinds))
    shapes = [tuple(leaf.shape) for leaf, _ in seen if isinstance(leaf, torch.Tensor)]
    if not shapes:
        return text
    if len({len(shape) for shape in shapes}) > 1:
        return f"{text}[...]"
    dims = [str(column[0]) if len(set(column)) == 1 else "*" for column in zip(*shapes, strict=True)]
    if dims and all(not isinstance(leaf, torch.Tensor) or leaf.shape[0] == size for leaf, size in seen):
        dims[0] = "B"
    return f"{text}[{', '.join(dims)}]"
