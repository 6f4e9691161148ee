"""Counted batches: how many samples a batch holds is known where it is made, and goes with it.

Shapes do not tell it: a batch of graphs has a row per node and per edge, a batch of bags one per value.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from autofit.workloads.batch_algebra import batch_size, split
from autofit.workloads.tree import Batch, tensors


class Counted(NamedTuple):
    """A batch and the number of samples that were collated into it.

    A named tuple, since a DataLoader pins the memory of one and sends it from its workers as any other batch.
    """

    batch: Batch
    samples: int


def counted(batch: Batch | Counted) -> Counted:
    """Returns a batch with its samples: as they were counted, or, for a plain batch, as its shapes tell.

    Raises:
        WorkloadError: a plain batch without a tensor that has a batch dimension.
    """
    return batch if isinstance(batch, Counted) else Counted(batch, batch_size(batch))


@dataclass(frozen=True, slots=True)
class Cuttable:
    """A batch that can be had in parts.

    Attributes:
        batch: the whole.
        samples: how many it holds.
        cut: returns the same samples in batches of the given sizes, which add up to `samples`.
    """

    batch: Batch
    samples: int
    cut: Callable[[Sequence[int]], list[Counted]]

    @classmethod
    def of(cls, batch: "Batch | Cuttable") -> "Cuttable":
        """Returns a plain batch as one that is cut along its first dimension; a cuttable one as it is."""
        return batch if isinstance(batch, cls) else cls(batch, batch_size(batch), partial(_split, batch))


class Collating:
    """A collate function that counts its samples; runs in a loader's workers.

    Args:
        collate: the user's.
        by_rows: whether the tensors of a batch have a row per sample: fewer where damaged samples are left out.
    """

    def __init__(self, collate: Callable[[list[Any]], Batch], by_rows: bool) -> None:
        self.collate, self.by_rows = collate, by_rows

    def __call__(self, samples: list[Any]) -> Counted:
        """Returns the batch of the samples, with their number."""
        batch = self.collate(samples)
        if not isinstance(samples, (list, tuple)):  # a data set's own __getitems__ may give columns, not samples
            return counted(batch)
        rows = _rows(batch) if self.by_rows else None
        return Counted(batch, min(len(samples), rows or len(samples)))


class KeyLists:
    """A data set that takes a list of keys, and counts them."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, keys: list[Any]) -> Counted:
        return Counted(self.dataset[keys], len(keys))

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # asked for while this object is unpickled in a worker
            raise AttributeError(name)
        return getattr(self.dataset, name)


class CollatingCounted:
    """The collate function of a loader over `KeyLists`."""

    def __init__(self, collate: Callable[[Any], Batch]) -> None:
        self.collate = collate

    def __call__(self, found: Counted) -> Counted:
        """Returns the batch that the user's function makes of what the data set gave, with its samples."""
        return Counted(self.collate(found.batch), found.samples)


class Alike:
    """The batches of a loader whose samples cannot be counted: each has as many as any other."""

    def __init__(self, loader: Iterable[Batch], samples: int) -> None:
        self.loader, self.samples = loader, samples

    def __iter__(self) -> Iterator[Counted]:
        return (Counted(batch, self.samples) for batch in self.loader)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # where the loader has none, this has none


def has_rows(batches: Iterable[tuple[Batch, int]]) -> bool:
    """Returns whether the tensors of batches have a row per sample, or fewer; not where samples lie along another axis.

    Args:
        batches: of several sizes, with the samples that each was collated from.
    """
    along: set[int] | None = None
    for batch, size in batches:
        rows = _rows(batch)
        if rows is None or rows > size:
            return False
        sized = {axis for tensor in tensors(batch) for axis in range(1, tensor.dim()) if tensor.shape[axis] == size}
        along = sized if along is None else along & sized
    return not along


def _rows(batch: Batch) -> int | None:
    """Returns the rows that all tensors of a batch have."""
    found = {tensor.shape[:1] for tensor in tensors(batch)}
    return found.pop().numel() if len(found) == 1 else None


def _split(batch: Batch, sizes: Sequence[int]) -> list[Counted]:
    return [Counted(part, size) for part, size in zip(split(batch, sizes), sizes, strict=True)]
