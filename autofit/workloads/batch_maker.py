"""BatchMaker: the base of what makes batches, one for each thing a loader can be."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from autofit.core.errors import WorkloadError
from autofit.workloads.counted import Counted, Cuttable
from autofit.workloads.tree import Batch


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What the user asked of a source.

    Attributes:
        worst_case: None, a callable `size -> batch`, or one sample (for ready batches: one batch).
        seed: of the private generator that chooses samples.
        scan: at most this many samples are measured for their length.
    """

    worst_case: Any
    seed: int
    scan: int


class BatchMaker(ABC):
    """Makes batches from one kind of loader; `BatchSource` checks what is asked of it first.

    The batches may share memory with the user's data.

    Attributes:
        user_batch_size: samples per batch of the user's own loader.
        length: samples that one pass over the loader gives; None when it cannot be known.
        varies: whether batches of one size differ in shape, because the lengths of samples vary.
        resizable: False only when no other batch size than the user's can be made.
        max_size: largest batch that can be made where only cutting is possible; None when any can.
        even: whether each tensor of a batch has one row per sample, so that a batch can be cut.
        has_rows: whether the rows of a batch are its samples, so that its shapes tell how many it holds.
        notes: what a person should know about how the batches were made; the values are None.
    """

    user_batch_size: int
    length: int | None
    varies: bool
    resizable: bool = True
    max_size: int | None = None
    even: bool
    has_rows: bool

    def __init__(self, options: BatchOptions, notes: Iterable[str]) -> None:
        self._options = options
        self.notes = dict.fromkeys(notes)  # a dict, so that each note is kept once and in order

    def choose(self, size: int, count: int) -> None:  # noqa: B027  # most have nothing to choose
        """Chooses what `typical` makes batches of, so that what it takes then is what making batches takes."""

    @abstractmethod
    def typical(self, size: int, count: int) -> list[Batch]:
        """Returns `count` batches of exactly `size` samples, the same ones in every call."""

    @abstractmethod
    def cuttable(self, size: int, count: int) -> list[Cuttable]:
        """Returns the batches of `typical`, which can be had in parts too."""

    @abstractmethod
    def longest(self, size: int) -> Batch:
        """Returns a batch of the longest samples known."""

    @abstractmethod
    def repeated(self, worst: Any, size: int) -> Batch:
        """Returns a batch of `size` samples made from the user's one worst sample, or batch."""

    @abstractmethod
    def rebuild(self, size: int) -> Iterable[Batch]:
        """Returns the user's data in batches of `size`, which is not the user's own.

        Raises:
            WorkloadError: the size cannot be made.
        """

    @abstractmethod
    def counted(self, size: int) -> Iterable[Batch | Counted]:
        """Returns the user's data in batches of `size`, with their samples where these can be counted.

        Raises:
            WorkloadError: the size cannot be made.
        """

    @abstractmethod
    def structure(self) -> str:
        """Returns the batches' keys, dtypes and shapes as one stable line, see `tree.describe`."""

    def _note_repeats(self, size: int) -> None:
        if self.length is not None and size > self.length:
            self._note(f"batches above {self.length} samples repeat samples: the data has no more")

    def _note(self, text: str) -> None:
        self.notes[text] = None


def no_batches(loader: object, found: str = "no batch at all") -> WorkloadError:
    """Returns the error of a loader that gives no batch; `found` says what it has."""
    return WorkloadError(
        f"found a {type(loader).__name__} that gives no batch ({found}); expected at least one; check the "
        "data set, the sampler and drop_last"
    )
