"""Useful targets: counting them in a batch, and weighting the micro batches of a step by them.

If a loss is a mean over tokens, accumulation keeps the gradient when micro batches are weighted by their tokens. A loss
function does not show over which entries it averages. `candidates` lists the possibilities, and the accumulation gate
finds the one, if any, with which the gradients of the parts add up to that of the whole batch.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from autofit.core.errors import WorkloadError
from autofit.workloads.micro_batch_weights import Weighing
from autofit.workloads.tree import Batch, children

IGNORED = (-100, -1, 255)
"""Label values that losses usually ignore: in torch and `transformers`, in many data sets, in segmentation masks."""
_TARGETS = ("label", "target", "['y']")
_MOST_VALUES, _LENGTHS_DIM = 8, 2
_UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)


def weights_of(weighing: Weighing, parts: Sequence[Batch]) -> list[float]:
    """Returns the weight of each part: its share of the useful entries, or 1 if the loss is a sum.

    Shares sum to 1. A part without useful entries has 0: its mean is 0 / 0. If the whole step has none, the user's
    loss is 0 / 0 as well, and all parts have equal weights.

    Raises:
        WorkloadError: the batch does not have the tensor.
    """
    if len(parts) == 1 or weighing.summed:
        return [1.0] * len(parts)
    counts = torch.stack([count(weighing, part) for part in parts]).tolist()  # one synchronisation on a device
    total = sum(counts)
    return [number / total if total else 1 / len(parts) for number in counts]


def count(weighing: Weighing, batch: Batch) -> torch.Tensor:
    """Returns the number of useful entries of a batch, as a float64 scalar on the device of its tensor.

    Raises:
        WorkloadError: the batch does not have the tensor.
    """
    node = batch
    for step in weighing.steps:
        key: str | int = int(step[1:-1]) if step[1].isdigit() else step[2:-2] if step[0] == "[" else step[1:]
        node = (children(node) or {}).get(key)
    if not isinstance(node, torch.Tensor):
        raise WorkloadError(
            f"found a batch without {weighing}, by which the plan weights micro batches; expected the batches "
            "that were used for tuning. Use the tuned loader, or tune again with this one."
        )
    node = _widened(node)
    entries = node[..., 1:] if weighing.shifted else node
    return (entries if weighing.ignored is None else entries != weighing.ignored).sum(dtype=torch.float64)


def candidates(batch: Batch, size: int, ignore_index: int | None = None) -> list[Weighing]:
    """Returns the entries over which the loss of a batch may be a mean, most likely first, other than samples.

    Args:
        batch: a batch of several samples that differ in their number of useful entries.
        size: number of samples.
        ignore_index: `ignore_index` of the user's loss function, or None.
    """
    found = []
    for where, tensor in _of_samples(batch, size):
        for ignored in _ignored(tensor, ignore_index):
            found += [Weighing(where, shifted, ignored) for shifted in (False, True)[: tensor.dim()]]
    first = ignore_index, *IGNORED
    found.sort(key=lambda it: (not any(name in it.where for name in _TARGETS), it.ignored not in first))
    return found


def may_differ(batch: Batch, size: int) -> bool:
    """Returns whether a batch of `size` samples has labels or masks with possibly unequal numbers of useful entries."""
    return any(True for _ in _counted(batch, size))


def unevenness(batch: Batch, size: int) -> float:
    """Returns how much the samples of a batch differ in their share of useful entries. 0 if they do not."""
    found = 0.0
    for tensor, values in _counted(batch, size):
        for ignored in values:
            counts = (tensor != ignored).flatten(1).float().mean(1)
            found += float(counts.max() - counts.min())
    return found


def marked(batch: Batch, size: int) -> dict[str, int]:
    """Returns how many samples of a batch each condition marks that a loss may count, such as its positive samples.

    The conditions are those of masks, of labels with two values, and of one integer per sample: an entry that is not 0,
    and in masks also one that is 0.
    """
    found = {}
    for where, tensor in _of_samples(batch, size):
        if not tensor.numel():
            continue
        mask, set_ = _is_mask(tensor), tensor.reshape(size, -1) != 0
        if mask or (tensor.dim() == 1 and not tensor.is_floating_point()):
            found[f"batch{where} != 0"] = int(set_.any(1).sum())
        if mask:
            found[f"batch{where} == 0"] = int((~set_).any(1).sum())
    return found


def _counted(batch: Batch, size: int) -> Iterator[tuple[torch.Tensor, tuple[int, ...]]]:
    """Yields masks and integer tensors with several entries per sample, with the values that losses usually ignore."""
    for _, tensor in _of_samples(batch, size):
        if tensor.dim() > 1 and tensor.numel():
            if _is_mask(tensor):
                yield tensor, (0,)
            elif not tensor.is_floating_point():
                yield tensor, IGNORED


def _of_samples(batch: Batch, size: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the real tensors with one row per sample, by their path."""
    for where, tensor in _tensors(batch, ""):
        if tensor.dim() and tensor.shape[0] == size and not tensor.is_complex():
            yield where, tensor


def _is_mask(tensor: torch.Tensor) -> bool:
    return bool(((tensor == 0) | (tensor == 1)).all())


def ignore_index_of(loss_fn: Any) -> int | None:
    """Returns the `ignore_index` of a loss module, or of a `functools.partial` of a loss. None if it has none."""
    found = getattr(loss_fn, "ignore_index", getattr(loss_fn, "keywords", {}).get("ignore_index"))
    return found if isinstance(found, int) else None


def _ignored(tensor: torch.Tensor, ignore_index: int | None) -> list[int | None]:
    """Returns the values of a tensor that the loss may ignore. None is among them if its values may be summed."""
    if _is_mask(tensor):
        return [0, 1]
    lengths: list[int | None] = [None] if tensor.dim() <= _LENGTHS_DIM and bool((tensor >= 0).all()) else []
    if tensor.is_floating_point():
        return lengths
    edges = tensor[..., (0, -1)] if tensor.dim() > 1 else tensor[:0]  # padding is at one end, whatever its value
    usual = [value for value in (ignore_index, *IGNORED, 0, 1) if value is not None and bool((tensor == value).any())]
    return [
        *dict.fromkeys([*usual, *torch.unique(edges).tolist()[:_MOST_VALUES]]),
        *(lengths if tensor.dim() == 1 else []),
    ]


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor with a wider type, so that comparisons are correct: in uint8, torch compares -100 as 156.

    torch also has few operators for other unsigned types and for 8-bit floating-point types.
    """
    if tensor.dtype in _UNSIGNED:
        return tensor.long()
    return tensor.float() if tensor.is_floating_point() and tensor.dtype.itemsize == 1 else tensor


def _tensors(node: Any, where: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(node, torch.Tensor):
        if node.layout is torch.strided and not node.is_nested:
            yield where, _widened(node)
        return
    for key, child in (children(node) or {}).items():
        if isinstance(key, int):
            step = f"[{key}]"
        elif isinstance(key, str):
            step = f"['{key}']" if hasattr(node, "keys") else f".{key}"
        else:
            continue
        if Weighing.parse(f"batch{where}{step}") is not None:
            yield from _tensors(child, where + step)
