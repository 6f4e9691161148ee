"""BatchMaker: the base class of what makes batches, one subclass for each kind of loader."""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from autofit.core.errors import WorkloadError
from autofit.core.wording import a_type
from autofit.workloads.counted_batches import Counted, Cuttable
from autofit.workloads.tree import Batch

UNCHANGED: Mapping[str, Any] = MappingProxyType({})
"""No change to the arguments of a DataLoader."""


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """Options of a `BatchSource`, as the user set them.

    Attributes:
        worst_case: None, a callable `size -> batch`, or one sample (for ready batches: one batch).
        seed: seed of the private generator that chooses samples.
        scan: maximum number of samples whose length is measured.
        filled: whether the mask of the worst batch says that all samples are long.
        users_size: whether a small batch has the user's size, since their code was seen to run at no other.
    """

    worst_case: Any
    seed: int
    scan: int
    filled: bool = False
    users_size: bool = False


class BatchMaker(ABC):
    """Makes batches from one kind of loader. `BatchSource` checks the arguments before it calls these methods.

    The batches may share memory with the user's data.

    Attributes:
        user_batch_size: number of samples per batch of the user's loader.
        length: number of samples in one pass over the loader. None if it is unknown.
        varies: whether batches of one size differ in shape because sample lengths vary.
        distinct: number of batches of the user's size if each pass has the same; None if samples are batched anew.
        resizable: whether batches of other sizes than the user's can be made.
        max_size: largest batch that can be made if batches can only be cut. None if any size can be made.
        even: whether each tensor of a batch has one row per sample, so that a batch can be cut.
        has_rows: whether the rows of a batch are its samples, so that its shapes give the number of samples.
        notes: notes for the user on how the batches were made. The values are None.
        fixed_loading: why the loader keeps the user's worker processes; "" if it can be made with others.
        fixed_order: why the samples stay in the user's batches; "" if batches can be grouped by length.
        grouped: whether a rule, such as a custom batch sampler, decides which samples are batched together.
        users_order: whether batches of the user's size are those of the user's loader.
    """

    user_batch_size: int
    length: int | None
    varies: bool
    distinct: int | None = None
    resizable: bool = True
    max_size: int | None = None
    even: bool
    has_rows: bool
    fixed_loading: str = "it yields ready batches, so only its own code can make it again with worker processes"
    fixed_order: str = "the loader yields ready batches, so its samples cannot be batched in another order"
    grouped: bool = False
    users_order: bool = True

    def __init__(self, options: BatchOptions, notes: Iterable[str]) -> None:
        self._options = options
        self.notes = dict.fromkeys(notes)  # a dict, so that each note is kept once and in order

    def choose(self, size: int, count: int) -> None:  # noqa: B027  # most subclasses have nothing to choose
        """Chooses the samples of `typical` in advance, so that timing `typical` measures only making batches."""

    @abstractmethod
    def typical(self, size: int, count: int) -> list[Batch]:
        """Returns `count` batches of exactly `size` samples, the same in every call."""

    @abstractmethod
    def fresh(self, size: int, draw: int) -> Iterator[Batch]:
        """Yields batches of exactly `size` samples, endlessly and at random: other ones for each `draw`."""

    @abstractmethod
    def cuttable(self, size: int, count: int) -> list[Cuttable]:
        """Returns the batches of `typical` in a form that can also be cut into parts."""

    @abstractmethod
    def longest(self, size: int) -> Batch:
        """Returns a batch of the longest known samples."""

    @abstractmethod
    def repeated(self, worst: Any, size: int) -> Batch:
        """Returns a batch of `size` samples made from the user's worst sample or batch."""

    @abstractmethod
    def rebuild(self, size: int, changes: Mapping[str, Any] = UNCHANGED) -> Iterable[Batch]:
        """Returns the user's data in batches of `size`, which differs from the user's unless there are `changes`.

        Args:
            size: number of samples per batch.
            changes: arguments of the DataLoader to replace; none with `fixed_loading`.

        Raises:
            WorkloadError: batches of this size cannot be made.
        """

    @abstractmethod
    def counted(self, size: int, changes: Mapping[str, Any] = UNCHANGED) -> Iterable[Batch | Counted]:
        """Returns the user's data in batches of `size`, each with its number of samples where that can be counted.

        The arguments are those of `rebuild`.

        Raises:
            WorkloadError: batches of this size cannot be made.
        """

    def remainder(self, size: int) -> int:
        """Returns the number of samples in the incomplete last batch of a pass; 0 if there is none, or it is unknown.

        Args:
            size: number of samples in the other batches.
        """
        return 0

    def by_length(self) -> "BatchMaker":
        """Returns a maker of batches of similar length from the same samples.

        Raises:
            WorkloadError: the samples stay in the user's batches (`fixed_order`).
        """
        raise WorkloadError(
            f"batches of similar length were requested, but {self.fixed_order}; expected a DataLoader over a data set "
            "with a length, with shuffle=True or False"
        )

    def padding(self, size: int) -> float:
        """Returns the share of padding in batches of `size`, from 0 to 1.

        Raises:
            WorkloadError: the samples of a batch are not known (`fixed_order`).
        """
        raise WorkloadError(f"the padding of batches was requested, but {self.fixed_order}; expected single samples")

    def reading_s(self) -> float:
        """Returns the estimated seconds for reading each sample once in this process, to measure its length.

        Raises:
            WorkloadError: there are no single samples (`fixed_order`).
        """
        raise WorkloadError(f"the time per sample was requested, but {self.fixed_order}; expected single samples")

    @abstractmethod
    def structure(self) -> str:
        """Returns the batches' keys, dtypes and shapes as one stable line. See `batch_algebra.describe`."""

    def _chance_of(self, draw: int) -> random.Random:
        """Returns the random generator of a draw of `fresh`, which the seed and the draw determine."""
        return random.Random(f"{self._options.seed} {draw}")

    def _note_repeats(self, size: int) -> None:
        if self.length is not None and size > self.length:
            self._note(f"batches above {self.length} samples repeat samples: the data holds no more")

    def _note(self, text: str) -> None:
        self.notes[text] = None


def no_batches(loader: object, found: str = "it is empty") -> WorkloadError:
    """Returns the error for a loader that yields no batch. `found` describes the loader."""
    return WorkloadError(
        f"found {a_type(loader)} that yields no batch ({found}); expected at least one; check the "
        "data set, the sampler and drop_last"
    )
