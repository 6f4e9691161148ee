"""Counted batches: batches that carry their number of samples, which is known where a batch is collated.

Shapes may not give it: a batch of graphs has one row per node and per edge, a batch of bags one row per value.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from autofit.workloads.batch_algebra import batch_size, split
from autofit.workloads.tree import Batch, tensors


class Counted(NamedTuple):
    """A batch and the number of samples that were collated into it.

    It is a named tuple because a DataLoader can pin its memory and send it from its workers like any other batch.
    """

    batch: Batch
    samples: int


def counted(batch: Batch | Counted) -> Counted:
    """Returns a batch with its number of samples. That of a plain batch is taken from its shapes.

    Raises:
        WorkloadError: a plain batch has no tensor with a batch dimension.
    """
    return batch if isinstance(batch, Counted) else Counted(batch, batch_size(batch))


@dataclass(frozen=True, slots=True)
class Cuttable:
    """A batch that can also be cut into parts.

    Attributes:
        batch: the whole batch.
        samples: number of samples in the batch.
        cut: returns the same samples in batches of the given sizes, which add up to `samples`.
    """

    batch: Batch
    samples: int
    cut: Callable[[Sequence[int]], list[Counted]]

    @classmethod
    def of(cls, batch: "Batch | Cuttable") -> "Cuttable":
        """Wraps a plain batch, to be cut along its first dimension. A `Cuttable` is returned as it is."""
        if isinstance(batch, cls):
            return batch
        return cls(batch, batch_size(batch), lambda sizes: list(map(Counted, split(batch, sizes), sizes)))


class Collating:
    """A collate function that counts its samples. It runs in the loader's workers.

    Args:
        collate: the user's collate function.
        by_rows: whether tensors have one row per sample. A batch has fewer rows if `collate` drops damaged samples.
    """

    def __init__(self, collate: Callable[[Any], Batch], by_rows: bool) -> None:
        self.collate, self.by_rows = collate, by_rows

    def __call__(self, samples: list[Any] | Counted) -> Counted:
        """Returns the batch of the samples, with their number."""
        if isinstance(samples, Counted):  # of `KeyLists`
            return Counted(self.collate(samples.batch), samples.samples)
        batch = self.collate(samples)
        if not isinstance(samples, (list, tuple)):  # a data set's __getitems__ may return columns instead of samples
            return counted(batch)
        rows = _rows(batch) if self.by_rows else None
        return Counted(batch, min(len(samples), rows or len(samples)))


class KeyLists:
    """A data set that takes a list of keys, and counts them for `Collating`."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __getitem__(self, keys: list[Any]) -> Counted:
        return Counted(self.dataset[keys], len(keys))

    def __getattr__(self, name: str) -> Any:
        if name == "dataset":  # looked up while this object is unpickled in a worker
            raise AttributeError(name)
        return getattr(self.dataset, name)


class EquallyCounted:
    """The batches of a loader whose samples cannot be counted: each counts as the same number of samples."""

    def __init__(self, loader: Iterable[Batch], samples: int) -> None:
        self.loader, self.samples = loader, samples

    def __iter__(self) -> Iterator[Counted]:
        return (Counted(batch, self.samples) for batch in self.loader)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]  # raises TypeError if the loader has no length


def has_rows(batches: Iterable[tuple[Batch, int]]) -> bool:
    """Returns whether the tensors of batches have at most one row per sample, and samples are along no other axis.

    Args:
        batches: batches of several sizes, each with the number of samples it was collated from.
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
    """Returns the number of rows if all tensors of a batch have the same number, else None."""
    found = {tensor.shape[:1] for tensor in tensors(batch)}
    return found.pop().numel() if len(found) == 1 else None
