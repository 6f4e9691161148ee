"""SampleBatches: batches that are collated from the samples of a data set."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch.utils.data import DataLoader

from autofit.core.errors import WorkloadError
from autofit.workloads.batch_algebra import batch_size, describe, leaves
from autofit.workloads.batch_maker import BatchMaker, BatchOptions, no_batches
from autofit.workloads.counted import Alike, Counted, Cuttable, has_rows
from autofit.workloads.groups import Groups
from autofit.workloads.lengths import Lengths, elements, scan
from autofit.workloads.representative import representative
from autofit.workloads.streams import undisturbed
from autofit.workloads.tree import Batch, map_tensors, tensors

_STRUCTURE_SIZES = (2, 5)  # two sizes tell the batch dimension from a dimension that happens to be as long
_SCANNED_WITH_WORST_CASE = 512  # samples measured where the user gives the worst case: what typical batches are like


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a DataLoader makes batches from samples, and how to make it again with another batch size."""

    keys: Sequence[Any]  # what names the samples
    sample: Callable[[Any], Any]  # key -> sample
    fetch: Callable[[list[Any]], Any]  # keys -> what `join` takes: samples, or the keys where the data set takes lists
    join: Callable[[Any], Batch]
    collate: Callable[[list[Any]], Batch]  # samples -> batch
    rebuild: Callable[[int], Iterable[Batch]]  # size -> a loader like the user's
    count: Callable[[int, bool], Iterable[Batch | Counted]]  # size, whether by rows -> the same, its samples counted
    lists: Callable[[int], Iterable[list[Any]]] | None  # size -> a rebuilt loader's keys; None: any may meet
    grouped: bool  # whether a batch sampler of the user's own says which samples meet
    resizes: bool  # whether those of another size keep the rule by which the user's loader groups samples
    user_batch_size: int
    length: int | None
    drop_last: bool
    own_way: bool  # whether the user's loader does more than a DataLoader does
    notes: tuple[str, ...]

    def make(self, keys: list[Any]) -> Batch:
        """Returns the batch of the samples that are named."""
        return self.join(self.fetch(keys))


class SampleBatches(BatchMaker):
    """Collates samples."""

    def __init__(self, loader: DataLoader[Any], recipe: Recipe, options: BatchOptions) -> None:
        super().__init__(options, recipe.notes)
        self.user_batch_size, self.length = recipe.user_batch_size, recipe.length
        if not recipe.keys or (recipe.drop_last and self.length is not None and self.length < self.user_batch_size):
            raise no_batches(
                loader,
                f"{self.length} samples, batch size {self.user_batch_size}, drop_last={recipe.drop_last}",
            )
        self._recipe = recipe
        self._worst_keys: dict[int, list[Any]] = {}
        self._chosen: dict[tuple[int, int], list[list[Any]] | None] = {}
        self._loader = loader
        self._lengths = self._scan()
        self.varies = self._shapes_differ()
        if not recipe.resizes:
            self._note(
                f"{type(loader.batch_sampler).__name__} shows no way to make batches of another size: other sizes join "
                f"or cut its batches in order{', and are measured with the padding that this gives' * self.varies}"
            )
        self._groups = None if recipe.lists is None else Groups(recipe.lists, recipe.keys, recipe.sample, self._lengths)

    @property
    def even(self) -> bool:  # type: ignore[override]  # known when it is first asked for: it takes a few batches
        """Whether each tensor of a batch has one row per sample: so it is in batches of several sizes."""
        return self._shapes[0]

    @property
    def has_rows(self) -> bool:  # type: ignore[override]  # as `even`
        """Whether a batch has a row per sample that was kept; not where samples lie along another axis."""
        return self._shapes[1]

    @cached_property
    def _shapes(self) -> tuple[bool, bool]:
        """What `even` and `has_rows` say, from the same batches: making samples may take long."""
        with undisturbed(self._loader):
            found = list(self._of_sizes())
        return all(_is_even(batch, size) for batch, size in found), has_rows(found)

    def _of_sizes(self) -> Iterator[tuple[Batch, int]]:
        """Yields batches of a few sizes, which tell the batch dimension."""
        for size in _STRUCTURE_SIZES:
            yield self._recipe.make(self._drawn(size, 1)[0]), size

    def rebuild(self, size: int) -> Iterable[Batch]:
        """Returns a loader like the user's; fails where `drop_last` would leave no batch."""
        self._check_dropped(size)
        return self._recipe.rebuild(size)

    def counted(self, size: int) -> Iterable[Batch | Counted]:
        """Returns the same, its samples counted as they are collated."""
        if self._recipe.own_way and size == self.user_batch_size:
            return self._loader if self.has_rows else Alike(self._loader, size)
        self._check_dropped(size)
        return self._recipe.count(size, self.has_rows)

    def _check_dropped(self, size: int) -> None:
        if self._recipe.drop_last and self.length is not None and size > self.length:
            raise WorkloadError(
                f"a batch of {size} was asked for, but the loader has {self.length} samples and "
                f"drop_last=True, so it would give no batch; expected at most {self.length}; lower the size "
                "or set drop_last=False"
            )

    def structure(self) -> str:
        """Returns what batches of two sizes have in common, and those of the longest and the shortest samples."""
        batches, sizes = map(list, zip(*self._of_sizes(), strict=True))
        if self._lengths.varies:
            for order in (*self._lengths.rankings(), self._lengths.shortest()):
                batches.append(self._at(order, 2))
                sizes.append(2)
        return describe(batches, sizes)

    def typical(self, size: int, count: int) -> list[Batch]:
        """Returns batches of samples drawn by the seed, none of them twice while there are enough.

        Where lengths vary, several are together like all batches of the size, as far as that was scanned; they are
        batches of the rebuilt loader where that has an order or groups samples, so that they have its padding and mix.
        """
        return [self._recipe.make(keys) for keys in self._keys(size, count)]

    def cuttable(self, size: int, count: int) -> list[Cuttable]:
        """Returns the same: cut along the first dimension where that is sound, else their samples collated anew."""
        if self.even:
            return [Cuttable.of(map_tensors(batch, torch.clone)) for batch in self.typical(size, count)]
        return [self._collated(keys) for keys in self._keys(size, count)]

    def choose(self, size: int, count: int) -> None:
        """Draws the samples of several batches, where lengths vary or a sampler of the user's own groups samples.

        One batch is like all by chance only.
        """
        if (self.varies or self._recipe.grouped) and (size, count) not in self._chosen:
            self._chosen[size, count] = self._drawn_alike(size, count)

    def _drawn_alike(self, size: int, count: int) -> list[list[Any]] | None:
        """Returns keys of batches that are together like all; None where that is unknown or not needed."""
        chance = random.Random(self._options.seed)
        if self._groups is not None:
            return self._groups.typical(size, count, chance)
        if count == 1:
            return None
        found = representative(self._lengths, size, count, chance)
        return None if found is None else [self._keys_at(batch, size) for batch in found]

    def _keys(self, size: int, count: int) -> list[list[Any]]:
        self._note_repeats(size)
        self.choose(size, count)
        return self._chosen.get((size, count)) or self._drawn(size, count)

    def _drawn(self, size: int, count: int) -> list[list[Any]]:
        total = len(self._recipe.keys)
        chosen = random.Random(self._options.seed).sample(range(total), min(size * count, total))
        starts = range(0, size * count, size)
        return [
            self._keys_at([chosen[at % len(chosen)] for at in range(first, first + size)], size) for first in starts
        ]

    def _collated(self, keys: list[Any]) -> Cuttable:
        """Returns a batch of samples that are fetched once: another look at the data may find them changed."""
        held = self._recipe.fetch(keys)
        sliced = isinstance(held, (list, tuple)) and len(held) == len(keys)

        def cut(sizes: Sequence[int]) -> list[Counted]:
            parts = [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
            if not sliced:
                return [Counted(self._recipe.make(keys[part]), len(keys[part])) for part in parts]
            return [Counted(self._recipe.join(list(held[part])), len(held[part])) for part in parts]

        return Cuttable(map_tensors(self._recipe.join(held), torch.clone), len(keys), cut)

    def longest(self, size: int) -> Batch:
        """Returns the largest of the batches made from the longest samples, by each way to rank them."""
        if not self.varies:
            return self.typical(size, 1)[0]
        self._note_repeats(size)
        if size in self._worst_keys:
            return self._recipe.make(self._worst_keys[size])
        best: Batch = None
        for order in self._lengths.rankings():
            batch = self._at(order, size)
            if best is None or elements(batch) > elements(best):
                best, self._worst_keys[size] = batch, self._keys_at(order, size)
        return best

    def repeated(self, worst: Any, size: int) -> Batch:
        """Returns the user's worst sample, repeated and collated."""
        return self._recipe.collate([worst] * size)

    def _at(self, positions: Sequence[int], size: int) -> Batch:
        return self._recipe.make(self._keys_at(positions, size))

    def _keys_at(self, positions: Sequence[int], size: int) -> list[Any]:
        return [self._recipe.keys[positions[row % len(positions)]] for row in range(size)]

    def _scan(self) -> Lengths:
        """Measures the samples; only some when the user gives the worst case."""
        keys, sample = self._recipe.keys, self._recipe.sample
        limit = self._options.scan if self._options.worst_case is None else _SCANNED_WITH_WORST_CASE
        lengths = scan(lambda position: sample(keys[position]), len(keys), limit)
        if self._options.worst_case is None and lengths.varies and len(lengths.positions) < len(keys):
            self._note(
                f"{len(lengths.positions)} of {len(keys)} samples were scanned for their length: if a "
                "longer one can exist, pass worst_case="
            )
        return lengths

    def _shapes_differ(self) -> bool:
        """Makes the first batches: fails on one without tensors, and sees whether lengths reach the batch."""
        size = min(2, len(self._recipe.keys))
        batch_size(self._at(range(size), size))
        if not self._lengths.varies:
            return False
        ends = [self._at(order, size) for order in (*self._lengths.rankings(), self._lengths.shortest())]
        return len({(elements(end), describe([end], [size])) for end in ends}) > 1


def _is_even(batch: Batch, size: int) -> bool:
    """Returns whether each tensor has one row per sample; not where a number says how many there are, as in graphs."""
    rows = all(tensor.dim() and tensor.shape[0] == size for tensor in tensors(batch))
    return rows and not any(type(leaf) is int and leaf == size for _, leaf, _ in leaves(batch, size))
