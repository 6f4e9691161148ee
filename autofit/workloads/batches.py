"""BatchSource: batches of any size from the user's loader, which is never advanced.

There are two kinds of loader. A DataLoader makes batches from samples. Batches of any size are then made from its data
set and collate function, and its own iterator is never used. Other loaders yield ready batches (a list, a DataLoader
with batch_size=None, any re-iterable object). Their batches are cut and joined where that is correct.

Filled masks: a batch in which no sample is short, so that nothing can be gained by leaving out its padding.

Loader types: what can be iterated over batches, and what is often passed instead.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from autofit.core.errors import WorkloadError
from autofit.workloads.batch_algebra import batch_size, describe, leaves
from autofit.workloads.batch_maker import UNCHANGED, BatchMaker, BatchOptions
from autofit.workloads.counted_batches import Counted, Cuttable
from autofit.workloads.dataloaders import dataloader_maker, fixed_padding, padded_loader
from autofit.workloads.lengths import IDS, MASK, useful_tokens
from autofit.workloads.ready_batches import ReadyBatches
from autofit.workloads.streams import STREAM_BATCHES, read
from autofit.workloads.tree import Batch, children, map_tensors

T = TypeVar("T")


class BatchSource:
    """Makes batches of any size from the user's loader without ever advancing it.

    Attributes:
        user_batch_size: number of samples per batch of the user's loader.
        length: number of samples in one pass over the loader. None if it is unknown.
        varies: whether batches of one size differ in shape because sample lengths vary.
        resizable: whether batches of other sizes than the user's can be made.
        max_size: largest batch that can be made if batches can only be cut. None if any size can be made.
    """

    def __init__(self, loader: Iterable[Any], maker: BatchMaker, options: BatchOptions) -> None:
        self._loader, self._maker, self._options = loader, maker, options
        self._users: BatchSource | None = None  # the same samples in the user's batches, if these are other ones
        self._padded: dict[int, BatchSource] = {}
        self.user_batch_size, self.length, self.varies = maker.user_batch_size, maker.length, maker.varies
        self.resizable, self.max_size = maker.resizable, maker.max_size

    @classmethod
    def of(cls, loader: object, *, worst_case: object = None, seed: int = 0, scan: int = 2048) -> "BatchSource":
        """Returns the source for a loader.

        Args:
            loader: a DataLoader, a list or tuple of batches, or any object that can be iterated repeatedly over
                batches.
            worst_case: None (scan the data), a callable `size -> batch`, or one sample that is repeated and
                collated (for ready batches: one batch that is repeated or cut).
            seed: seed of the private generator that chooses samples.
            scan: maximum number of samples whose length is measured.

        Raises:
            WorkloadError: the loader is empty, a one-shot iterator or not a loader, or its batches hold no tensor.
        """
        loader = checked_loader(loader)
        options = BatchOptions(worst_case, seed, max(scan, 2))
        return cls(loader, _maker_of(loader, options), options)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user on how the batches were made."""
        return tuple(self._maker.notes)

    @property
    def even(self) -> bool:
        """Whether each tensor of a batch has one row per sample. Graphs, bags and lists do not."""
        return self._maker.even

    @property
    def has_rows(self) -> bool:
        """Whether the shapes of a batch give its number of samples."""
        return self._maker.has_rows

    @property
    def distinct(self) -> int | None:
        """Number of batches of the user's size if each pass has the same; None if samples are batched anew."""
        return self._maker.distinct

    def typical(self, size: int, count: int) -> list[Batch]:
        """Returns `count` batches of exactly `size` samples, the same in every call.

        The tensors are copies: changing them in place does not change the user's data.

        Raises:
            WorkloadError: `size` or `count` is below 1, or the size cannot be made (`resizable`, `max_size`).
        """
        self._check(size)
        if count < 1:
            raise WorkloadError(f"found a count of {count} batches; expected at least 1; request one or more")
        return [map_tensors(batch, torch.clone) for batch in self._maker.typical(size, count)]

    def fresh(self, size: int, draw: int) -> Iterator[Batch]:
        """Yields batches of exactly `size` samples, endlessly and at random: other ones for each `draw`.

        The tensors are copies, as those of `typical`.

        Raises:
            WorkloadError: as `typical`.
        """
        self._check(size)
        return (map_tensors(batch, torch.clone) for batch in self._maker.fresh(size, draw))

    def cuttable(self, size: int, count: int) -> list[Cuttable]:
        """Returns the batches of `typical` in a form that can also be cut: each part collates the same samples anew.

        Raises:
            WorkloadError: as `typical`.
        """
        self._check(size)
        return self._maker.cuttable(size, count)

    def choose(self, size: int, count: int) -> None:
        """Chooses the samples of `typical` in advance, so that timing `typical` measures only making batches."""
        self._maker.choose(size, count)

    def worst(self, size: int) -> Batch:
        """Returns the worst known batch: the longest samples, or what `worst_case` returns.

        Raises:
            WorkloadError: as `typical`, or `worst_case` returned a batch of another size.
        """
        self._check(size)
        batch = self._worst(size)
        return fill_masks(map_tensors(batch, torch.clone)) if self._options.filled else batch

    def _worst(self, size: int) -> Batch:
        worst_case = self._options.worst_case
        if worst_case is None:
            return map_tensors(self._maker.longest(size), torch.clone)
        if not callable(worst_case):
            return map_tensors(self._maker.repeated(worst_case, size), torch.clone)
        batch = worst_case(size)
        if self.even and batch_size(batch) != size and not _lists(batch, size):
            raise WorkloadError(
                f"worst_case({size}) returned {batch_size(batch)} samples: {describe([batch])}; expected a "
                f"batch of {size}; build it for the size that is passed, or pass one sample instead of a "
                "callable"
            )
        return batch

    def remainder(self, size: int) -> int:
        """Returns the number of samples in the incomplete last batch of the loader of `rebuild`.

        0 if there is none, or if it is not known: where a rule of the user's decides which samples are batched.
        """
        return self._maker.remainder(size)

    def tokens(self, batch: Batch) -> int | None:
        """Returns the number of tokens of a batch without padding. None for data that is not sequences."""
        return useful_tokens(batch)

    def rebuild(
        self, size: int, *, counted: bool = False, changes: Mapping[str, Any] = UNCHANGED
    ) -> Iterable[Batch | Counted]:
        """Returns the user's data in batches of `size`, for training. For the user's batch size it is their own loader.

        Batches of similar length need the length of each sample: all samples are read once.

        With `changes`, these arguments of a DataLoader are replaced, unless its loading is fixed.

        With `counted`, batches come as `Counted`, with the number of samples that were collated. The number of samples
        of a plain batch is given by its shapes.

        Raises:
            WorkloadError: batches of this size cannot be made.
        """
        self._check(size)
        if self.fixed_loading:
            changes = UNCHANGED
        if counted:
            return self._maker.counted(size, changes)
        theirs = size == self.user_batch_size and self._maker.users_order and not changes
        return self._loader if theirs else self._maker.rebuild(size, changes)

    @cached_property
    def by_length(self) -> "BatchSource":
        """The same samples in batches of similar length.

        Raises:
            WorkloadError: the samples stay in the user's batches (`fixed_order`).
        """
        found = BatchSource(self._loader, self._maker.by_length(), self._options)
        found._users = self
        return found

    @cached_property
    def filled(self) -> "BatchSource":
        """The same batches, but in the worst one the mask says that all samples are long (`filled_masks`)."""
        found = BatchSource(self._loader, self._maker, replace(self._options, filled=True))
        found._users = None if self._users is None else self._users.filled
        return found

    def padded_to(self, multiple: int) -> "BatchSource":
        """Returns a source of the same batches, padded to a multiple of `multiple` by the user's collate function.

        Samples are measured again, since their lengths in a batch may differ.

        Raises:
            WorkloadError: the padding of this loader cannot be changed (`fixed_padding`).
        """
        if self._users is not None:
            return self._users.padded_to(multiple).by_length
        if multiple not in self._padded:
            loader, options = padded_loader(self._loader, multiple), self._options
            self._padded[multiple] = BatchSource(loader, _maker_of(loader, options), options)
        return self._padded[multiple]

    @property
    def fixed_padding(self) -> str:
        """Why batches cannot be padded to a multiple; "" if they can."""
        if callable(self._options.worst_case):
            return "worst_case= makes its batches itself, so the worst batch would have another padding"
        return fixed_padding(self._loader)

    def padding(self, size: int) -> float:
        """Returns the share of padding in typical batches of `size`, from 0 to 1. See `padding.padding_share`.

        Raises:
            WorkloadError: as `typical`, or the samples of a batch are not known (`fixed_order`).
        """
        self._check(size)
        return self._maker.padding(size)

    @property
    def reading_s(self) -> float:
        """Estimated seconds for reading each sample once. Raises as `by_length`."""
        return self._maker.reading_s()

    @property
    def groups_lengths(self) -> bool:
        """Whether a rule decides which samples of varying length are batched together, so that batches differ much."""
        return self.varies and self._maker.grouped

    @property
    def fixed_order(self) -> str:
        """Why the samples stay in the user's batches; "" if batches can be grouped by length."""
        return self._maker.fixed_order

    @property
    def fixed_loading(self) -> str:
        """Why the loader keeps the user's worker processes; "" if it can be made with others."""
        return self._maker.fixed_loading

    @property
    def loader(self) -> Iterable[Any]:
        """The user's loader. Its settings may be read; it must not be iterated."""
        return self._loader

    @property
    def small_size(self) -> int:
        """The size of a small batch: 2 if it can be made and run, since that shows the batch dimension."""
        users = self._options.users_size or not self.resizable
        return self.user_batch_size if users else min(2, self.max_size or 2)

    def on_small(self, look: Callable[[int], T]) -> T:
        """Calls `look` with the size of a small batch. If that raises, calls it with the user's size, which is kept.

        A model may admit only the sizes that the user makes.

        Raises:
            Exception: whatever `look` raises at the user's size.
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

    def structure(self) -> str:
        """Returns the batches' keys, dtypes and shapes as one stable line. See `batch_algebra.describe`."""
        return self._maker.structure()

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


def _maker_of(loader: Iterable[Any], options: BatchOptions) -> BatchMaker:
    if isinstance(loader, DataLoader):
        return dataloader_maker(loader, options)
    if isinstance(loader, (list, tuple)):
        return ReadyBatches(loader, range(len(loader)), loader.__getitem__, options)
    held, ended, notes = read(loader, STREAM_BATCHES, "batches")
    return ReadyBatches(loader, range(len(held)), held.__getitem__, options, complete=ended, notes=notes)


def _lists(batch: Batch, size: int) -> bool:
    """Returns whether a batch is or holds a list of `size` entries."""
    nodes = (batch, *(children(batch) or {}).values())
    return any(isinstance(node, (list, tuple)) and len(node) == size for node in nodes)


_LEAST_WIDTH = 3
"""Minimum width at which two samples that lack one token each do not fit into one row."""


def fill_masks(batch: Batch) -> Batch:
    """Returns a batch whose attention masks say that its samples have all tokens, or all but one.

    One token is missing in all samples but the first, if there is more than one, so that the model computes with a mask
    as it does for other batches. What is padding in `input_ids` becomes the first token of the first sample, since a
    model may find padding in it.

    Args:
        batch: the batch; its masks and its ids are changed in place. Both are [samples, width] and may have a prefix,
            such as `chosen_attention_mask`; others stay as they are.
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
