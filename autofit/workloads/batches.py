"""BatchSource: batches of any size from the user's loader, which is never advanced.

A DataLoader makes batches from samples: batches of any size are made from its data set and collate function. Other
loaders yield ready batches, which are cut and joined where that is correct.
"""

import copy
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Self, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from autofit.core.errors import WorkloadError
from autofit.core.wording import a_type
from autofit.workloads.batch_algebra import batch_size, describe, leaves
from autofit.workloads.counted_batches import Counted, Cuttable
from autofit.workloads.lengths import IDS, MASK, useful_tokens
from autofit.workloads.tree import Batch, children, map_tensors

T = TypeVar("T")


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


class BatchSource(ABC):
    """Makes batches of any size from the user's loader without ever advancing it.

    One subclass for each kind of loader makes the batches, by the abstract methods. These get arguments that were
    checked, and their batches may share memory with the user's data.

    Attributes:
        loader: the user's loader. Its settings may be read; it must not be iterated.
        user_batch_size: number of samples per batch of the user's loader.
        length: number of samples in one pass over the loader. None if it is unknown.
        varies: whether batches of one size differ in shape because sample lengths vary.
        distinct: number of batches of the user's size if each pass has the same; None if samples are batched anew.
        resizable: whether batches of other sizes than the user's can be made.
        max_size: largest batch that can be made if batches can only be cut. None if any size can be made.
        even: whether each tensor of a batch has one row per sample. Graphs, bags and lists do not.
        has_rows: whether the rows of a batch are its samples, so that its shapes give the number of samples.
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

    def __init__(self, loader: Iterable[Any], options: BatchOptions, notes: Iterable[str]) -> None:
        self.loader, self._options = loader, options
        self._notes = dict.fromkeys(notes)  # a dict, so that each note is kept once and in order

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user on how the batches were made."""
        return tuple(self._notes)

    def typical(self, size: int, count: int) -> list[Batch]:
        """Returns `count` batches of exactly `size` samples, the same in every call.

        The tensors are copies: changing them in place does not change the user's data.

        Raises:
            WorkloadError: `size` or `count` is below 1, or the size cannot be made (`resizable`, `max_size`).
        """
        self._check(size)
        if count < 1:
            raise WorkloadError(f"found a count of {count} batches; expected at least 1; request one or more")
        return [map_tensors(batch, torch.clone) for batch in self._typical(size, count)]

    def fresh(self, size: int, draw: int) -> Iterator[Batch]:
        """Yields batches as `typical`, endlessly and at random: other ones for each `draw`. Raises as `typical`."""
        self._check(size)
        chance = random.Random(f"{self._options.seed} {draw}")
        return (map_tensors(batch, torch.clone) for batch in self._fresh(size, chance))

    def cuttable(self, size: int, count: int) -> list[Cuttable]:
        """Returns the batches of `typical` in a form that can also be cut. Raises as `typical`."""
        return [Cuttable.of(batch) for batch in self.typical(size, count)]

    def joined(self, size: int) -> list[Cuttable]:
        """Returns a few batches of samples of two of the user's batches, where larger ones join these; else []."""
        return []

    def choose(self, size: int, count: int) -> None:  # noqa: B027  # most subclasses have nothing to choose
        """Chooses the samples of `typical` in advance, so that timing `typical` measures only making batches."""

    def worst(self, size: int) -> Batch:
        """Returns the worst known batch: the longest samples, or what `worst_case` returns.

        Raises:
            WorkloadError: as `typical`, or `worst_case` returned a batch of another size.
        """
        self._check(size)
        worst_case = self._options.worst_case
        if not callable(worst_case):
            made = self._longest(size) if worst_case is None else self._repeated(worst_case, size)
            batch = map_tensors(made, torch.clone)
        else:
            batch = worst_case(size)
            nodes = (batch, *(children(batch) or {}).values())
            listed = any(isinstance(node, (list, tuple)) and len(node) == size for node in nodes)
            if self.even and batch_size(batch) != size and not listed:
                raise WorkloadError(
                    f"worst_case({size}) returned {batch_size(batch)} samples: {describe([batch])}; expected a "
                    f"batch of {size}; build it for the size that is passed, or pass one sample instead of a "
                    "callable"
                )
        return fill_masks(map_tensors(batch, torch.clone)) if self._options.filled else batch

    def remainder(self, size: int, ranks: int = 1) -> int:
        """Returns the number of samples in the incomplete last batch of the loader of `rebuild`; 0 if unknown.

        Of several ranks, each has its own loader: of its part of the samples, if they are divided.
        """
        return 0

    def tokens(self, batch: Batch) -> int | None:
        """Returns the number of tokens of a batch without padding. None for data that is not sequences."""
        return useful_tokens(batch)

    def rebuild(
        self, size: int, *, counted: bool = False, changes: Mapping[str, Any] = UNCHANGED
    ) -> Iterable[Batch | Counted]:
        """Returns the user's data in batches of `size`, for training. For the user's batch size it is their own loader.

        Batches of similar length need the length of each sample: all samples are read once.

        Args:
            size: samples per batch.
            counted: whether batches come as `Counted` where their shapes do not give the number of samples.
            changes: arguments of a DataLoader to replace, unless its loading is fixed.

        Raises:
            WorkloadError: batches of this size cannot be made.
        """
        self._check(size)
        if self.fixed_loading:
            changes = UNCHANGED
        if not counted and size == self.user_batch_size and self.users_order and not changes:
            return self.loader
        return self._rebuilt(size, changes, counted)

    @cached_property
    def by_length(self) -> "BatchSource":
        """The same samples in batches of similar length. Raises `WorkloadError` with a `fixed_order`."""
        return self._by_length()

    @cached_property
    def filled(self) -> "BatchSource":
        """The same batches, but in the worst one the mask says that all samples are long (`fill_masks`)."""
        found = self._copy()
        found._options = replace(self._options, filled=True)
        return found

    def padding(self, size: int) -> float:
        """Returns the share of padding in typical batches of `size`, from 0 to 1. Raises as `by_length`."""
        self._check(size)
        raise WorkloadError(f"the padding of batches was requested, but {self.fixed_order}; expected single samples")

    @property
    def reading_s(self) -> float:
        """Estimated seconds for reading each sample once. Raises as `by_length`."""
        raise WorkloadError(f"the time per sample was requested, but {self.fixed_order}; expected single samples")

    @property
    def groups_lengths(self) -> bool:
        """Whether a rule decides which samples of varying length are batched together, so that batches differ much."""
        return self.varies and self.grouped

    @property
    def small_size(self) -> int:
        """The size of a small batch: 2 if it can be made and run, since that shows the batch dimension."""
        users = self._options.users_size or not self.resizable
        return self.user_batch_size if users else min(2, self.max_size or 2)

    def on_small(self, look: Callable[[int], T]) -> T:
        """Calls `look` with the size of a small batch. If that raises, calls it with the user's size, which is kept.

        A model may admit only the sizes that the user makes. Whatever `look` raises at the user's size is raised.
        """
        if self.small_size != self.user_batch_size:
            try:
                return look(self.small_size)
            except WorkloadError:  # what autofit says of a batch, it says of any
                raise
            except Exception:  # noqa: BLE001  # the user's code: their own size tells whether it is at fault
                pass
        found = look(self.user_batch_size)
        self._options = replace(self._options, users_size=True)
        return found

    @abstractmethod
    def structure(self) -> str:
        """Returns the batches' keys, dtypes and shapes as one stable line. See `batch_algebra.describe`."""

    @abstractmethod
    def _typical(self, size: int, count: int) -> list[Batch]: ...

    @abstractmethod
    def _fresh(self, size: int, chance: random.Random) -> Iterator[Batch]: ...

    @abstractmethod
    def _longest(self, size: int) -> Batch:
        """Returns a batch of the longest known samples."""

    @abstractmethod
    def _repeated(self, worst: Any, size: int) -> Batch:
        """Returns a batch of `size` samples made from the user's worst sample or batch."""

    @abstractmethod
    def _rebuilt(self, size: int, changes: Mapping[str, Any], counted: bool) -> Iterable[Batch | Counted]:
        """Returns the user's data in batches of `size`; with `counted`, each has its number of samples if possible."""

    def _by_length(self) -> "BatchSource":
        """Returns a new source of batches of similar length from the same samples."""
        raise WorkloadError(
            f"batches of similar length were requested, but {self.fixed_order}; expected a DataLoader over a data set "
            "with a length, with shuffle=True or False"
        )

    def _copy(self) -> Self:
        """Returns a copy without the sources that were made from this one."""
        found = copy.copy(self)
        for name in ("by_length", "filled"):
            vars(found).pop(name, None)
        return found

    def _note_repeats(self, size: int) -> None:
        if self.length is not None and size > self.length:
            self._note(f"batches above {self.length} samples repeat samples: the data holds no more")

    def _note(self, text: str) -> None:
        self._notes[text] = None

    def _check(self, size: int) -> None:
        if size < 1:
            raise WorkloadError(f"found a batch size of {size}; expected at least 1; request a positive size")
        if not self.resizable and size != self.user_batch_size:
            raise WorkloadError(
                f"a batch of {size} was requested, but this loader's batches can be neither cut nor joined; "
                f"expected {self.user_batch_size}; pass a DataLoader over samples with a collate_fn"
            )
        if self.max_size is not None and size > self.max_size:
            raise WorkloadError(
                f"a batch of {size} was requested, but batches of this loader can only be cut; expected at "
                f"most {self.max_size}; pass a DataLoader over samples with a collate_fn"
            )


_LEAST_WIDTH = 3
"""Minimum width at which two samples that lack one token each do not fit into one row."""


def fill_masks(batch: Batch) -> Batch:
    """Returns a batch whose attention masks [samples, width] say that its samples have all tokens, or all but one.

    The masks and ids are changed in place. One token is missing in all samples but the first, so that the model
    computes with a mask as it does for other batches. Padding in `input_ids` becomes the first token, since a model may
    find padding in it. The names may have a prefix, such as `chosen_attention_mask`.
    """
    found = {path: leaf for path, leaf, _ in leaves(batch, -1) if isinstance(leaf, torch.Tensor) and leaf.dim() == 2}
    for path, mask in found.items():
        if not path.endswith(MASK):
            continue
        ids = found.get(f"{path.removesuffix(MASK)}{IDS}")
        if ids is not None and ids.shape == mask.shape and bool(mask.any()):
            ids[mask == 0] = ids[mask != 0][0]
        mask.fill_(1)
        if mask.shape[1] >= _LEAST_WIDTH:
            mask[1:, -1] = 0
    return batch


def checked_loader(loader: object) -> Iterable[Any]:
    """Returns the loader if its type can be iterated over batches. Nothing is read from it.

    Raises:
        WorkloadError: it is a data set or a single batch, or cannot be iterated.
    """
    if isinstance(loader, DataLoader):
        return loader
    if isinstance(loader, Dataset):
        raise WorkloadError(
            f"found a data set ({type(loader).__name__}) as loader; expected batches; "
            "wrap it: DataLoader(dataset, batch_size=...)"
        )
    if isinstance(loader, (torch.Tensor, Mapping, str, bytes)) or not isinstance(loader, Iterable):
        raise WorkloadError(
            f"found a loader of type {type(loader).__name__}; expected a DataLoader, a list of batches "
            "or another re-iterable of batches; for data in memory use DataLoader(TensorDataset(x, y), "
            "batch_size=...)"
        )
    return loader


def no_batches(loader: object, found: str = "it is empty") -> WorkloadError:
    """Returns the error for a loader that yields no batch. `found` describes the loader."""
    return WorkloadError(
        f"found {a_type(loader)} that yields no batch ({found}); expected at least one; check the "
        "data set, the sampler and drop_last"
    )


def overridden_iteration(loader: DataLoader[Any]) -> str:
    """Returns that a subclass makes the batches of a loader in its own way; "" if torch does."""
    is_torchs = type(loader).__iter__ is DataLoader.__iter__
    return "" if is_torchs else f"{type(loader).__name__} overrides __iter__"
