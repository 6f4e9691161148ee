"""The algebra of batches: how many samples they hold, and cutting and joining them along the samples.

Two shapes of "one entry per sample" are known: a tensor whose first dimension is the batch, and a list or tuple with
one entry per sample (file names, the boxes of each image).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from autofit.core.errors import WorkloadError
from autofit.workloads.tree import Batch, asked, children, rebuilt, same, sequence, tensors

_WHOLE = object()  # stands for the key of a batch that is a list of samples itself


def batch_size(batch: Batch) -> int:
    """Returns the number of samples: the leading dimension that most tensors share, the first's on a tie.

    Tensors in a list that has one entry per sample (the boxes of each image) have no vote. Where tensors disagree
    and the batch is nothing but such lists (images of many sizes and their targets), it is the lists' length.

    Raises:
        WorkloadError: no tensor with at least one dimension.
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
    # The first tensor's own dimension is counted first, and `most_common` keeps that order among equals.
    votes = Counter(
        leaf.shape[0]
        for _, leaf, inside in leaves(batch, first)
        if isinstance(leaf, torch.Tensor) and leaf.dim() and not inside
    )
    return votes.most_common(1)[0][0] if votes else first


def split(batch: Batch, sizes: Sequence[int]) -> list[Batch]:
    """Returns `batch` cut along the samples into pieces of the given sizes.

    Tensors of a piece are views. Lists, tuples and arrays with one entry per sample are cut too; everything
    else (a tensor of class weights, a scalar) is in each piece.

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
        if lists:
            pieces.append(_of_lists(batch, {key: list(items[part]) for key, items in lists.items()}))
        else:
            pieces.append(_taken(batch, total, part))
        start += size
    return pieces


def concat(batches: Sequence[Batch]) -> Batch:
    """Returns the batches joined along the samples; the only batch itself when there is one.

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

    With `join=False` samples of two batches are never put together, so each batch may end in a smaller piece.
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


def strays(batch: Batch) -> dict[str, torch.Tensor]:
    """Returns, by path, the tensors that are not one entry per sample; a batch without any is safely split."""
    size = batch_size(batch)
    return {
        path: leaf
        for path, leaf, listed in leaves(batch, size)
        if isinstance(leaf, torch.Tensor) and not listed and not _leads(leaf, size)
    }


def describe(batches: Sequence[Batch], sizes: Sequence[int] | None = None) -> str:
    """Returns the structure that the batches have in common, as one stable line.

    Args:
        batches: at least one batch.
        sizes: samples of each batch; their `batch_size` when None.

    Returns:
        For example "input_ids int64[B, *]; labels int64[B]": `B` is the batch, `*` a dimension that varies.
    """
    found: dict[str, list[tuple[Any, int]]] = {}
    for batch, size in zip(batches, sizes or [batch_size(batch) for batch in batches], strict=True):
        for path, leaf, _ in leaves(batch, size):
            found.setdefault(path, []).append((leaf, size))
    return "; ".join(f"{path} {_leaf_text(seen)}".lstrip(" .") for path, seen in found.items())


def leaves(batch: Batch, size: int) -> Iterator[tuple[str, Any, bool]]:
    """Yields (path, leaf, whether it lies in a list with one entry per sample) for a batch of `size`."""
    lists = _sample_lists(batch)
    for key, items in lists.items():
        for item in items:
            path = "[B]" if key is _WHOLE else f"{_step(key)}[B]"
            yield from ((inner, leaf, True) for inner, leaf, _ in _leaves(item, -1, path))
    if not lists:
        yield from _leaves(batch, size, "")


def _leaves(node: Any, size: int, path: str) -> Iterator[tuple[str, Any, bool]]:
    kids = children(node)
    if kids is None:
        yield path, node, False
    elif per_sample(node, size):
        for item in node:
            yield from ((inner, leaf, True) for inner, leaf, _ in _leaves(item, -1, f"{path}[B]"))
    else:
        for key, child in kids.items():
            yield from _leaves(child, size, path + _step(key))


def _step(key: Any) -> str:
    return f"[{key}]" if isinstance(key, int) else f".{key}"


def per_sample(node: Any, size: int) -> bool:
    """Returns whether a list or tuple has one entry per sample, rather than being (inputs, targets).

    It has `size` entries, and fewer than half of the tensors below it have the batch as first dimension.
    """
    if not isinstance(node, (list, tuple)) or asked(node, "_fields") or len(node) != size:
        return False
    inside = list(tensors(list(node)))
    return 2 * sum(_leads(tensor, size) for tensor in inside) < max(len(inside), 1)


def _sample_lists(batch: Batch) -> dict[Any, Any]:
    """Returns the lists, one entry per sample, that a batch consists of, by key; empty for any other batch.

    Such a batch is a list of mappings with the same keys (a sample each), or holds lists of one length; and its
    tensors disagree in their first dimension, so that this is not the batch.
    """
    kids = children(batch) or {}
    if len({tensor.shape[:1] for tensor in tensors(batch)}) < 2:
        return {}
    first = next(iter(kids.values()))
    if isinstance(batch, (list, tuple)) and all(isinstance(kid, Mapping) for kid in kids.values()):
        return {_WHOLE: batch} if all(kid.keys() == first.keys() for kid in kids.values()) else {}
    lists = all(isinstance(kid, (list, tuple)) and not asked(kid, "_fields") for kid in kids.values())
    return kids if lists and {len(kid) for kid in kids.values()} == {len(first)} else {}


def _of_lists(batch: Batch, lists: Mapping[Any, list[Any]]) -> Batch:
    """Returns a batch like `batch`, which consists of lists, with other lists in their place."""
    if _WHOLE in lists:
        return sequence(batch, lists[_WHOLE])
    kids = children(batch) or {}
    return rebuilt(batch, {key: sequence(kids[key], items) for key, items in lists.items()})


def _leads(node: Any, size: int) -> bool:
    """Returns whether a tensor or array has `size` as its first dimension, and can be cut along it."""
    sparse = isinstance(node, torch.Tensor) and node.layout is not torch.strided
    return bool(len(node.shape)) and node.shape[0] == size and not sparse


def _is_array(node: Any) -> bool:
    """Returns whether a leaf is an array in the manner of numpy, whose first dimension can be sliced."""
    return isinstance(asked(node, "shape"), tuple) and hasattr(type(node), "__getitem__")


def _taken(node: Any, size: int, part: slice) -> Any:
    """Returns the samples in `part` of a node of a batch of `size`."""
    if isinstance(node, torch.Tensor):
        return node[part] if _leads(node, size) else node
    if per_sample(node, size):
        return sequence(node, list(node[part]))
    kids = children(node)
    if kids is None:
        return node[part] if _is_array(node) and _leads(node, size) else node
    return rebuilt(node, {key: _taken(child, size, part) for key, child in kids.items()})


def _joined(nodes: list[Any], sizes: list[int], path: str) -> Any:
    """Returns the nodes at one place of several batches, joined along the samples."""
    first = nodes[0]
    if isinstance(first, torch.Tensor):
        return _joined_tensors(nodes, sizes, path)
    if all(per_sample(node, size) for node, size in zip(nodes, sizes, strict=True)):
        return sequence(first, [item for node in nodes for item in node])
    kids = [children(node) for node in nodes]
    if kids[0] is None:
        if _is_array(first) and _leads(first, sizes[0]):
            import numpy  # noqa: PLC0415  torch does without it; it is installed, since here is an array

            return numpy.concatenate(nodes)
        return first
    if any(other is None or other.keys() != kids[0].keys() for other in kids):
        raise _unlike(path, "other keys")
    return rebuilt(first, {key: _joined([kid[key] for kid in kids if kid], sizes, f"{path}.{key}") for key in kids[0]})


def _joined_tensors(nodes: list[Any], sizes: list[int], path: str) -> torch.Tensor:
    if not all(isinstance(node, torch.Tensor) for node in nodes):
        raise _unlike(path, "no tensor in one of them")
    if all(_leads(node, size) for node, size in zip(nodes, sizes, strict=True)):
        if len({(node.shape[1:], node.dtype) for node in nodes}) > 1:
            raise _unlike(path, ", ".join(str(list(node.shape)) for node in nodes[:3]))
        return torch.cat(nodes)
    first: torch.Tensor = nodes[0]
    if all(same(node, first) for node in nodes):
        return first
    raise _unlike(path, "a tensor without batch dimension whose values differ")


def _unlike(path: str, found: str) -> WorkloadError:
    return WorkloadError(
        f"found batches that differ at {path.lstrip('.') or 'the top'} ({found}); expected batches that can "
        "be joined along the first dimension; give a DataLoader with a collate_fn, so that batches are "
        "made from samples"
    )


def _leaf_text(seen: list[tuple[Any, int]]) -> str:
    """Returns one leaf as text, from that leaf in several batches: "float32[B, 3, *]", or its type."""
    kinds = sorted({_leaf_kind(leaf) for leaf, _ in seen})
    shapes = [tuple(leaf.shape) for leaf, _ in seen if isinstance(leaf, torch.Tensor)]
    if not shapes:
        return "|".join(kinds)
    if len({len(shape) for shape in shapes}) > 1:
        return f"{'|'.join(kinds)}[...]"
    dims = [str(column[0]) if len(set(column)) == 1 else "*" for column in zip(*shapes, strict=True)]
    if dims and all(not isinstance(leaf, torch.Tensor) or leaf.shape[0] == size for leaf, size in seen):
        dims[0] = "B"
    return f"{'|'.join(kinds)}[{', '.join(dims)}]"


def _leaf_kind(leaf: Any) -> str:
    return str(leaf.dtype).removeprefix("torch.") if isinstance(leaf, torch.Tensor) else type(leaf).__name__
