"""Sources of batches that are collated from the samples of a data set, and the share of padding in such batches."""

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, cycle, islice
from statistics import fmean
from time import perf_counter
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from autofit.core.errors import WorkloadError
from autofit.workloads.batch_algebra import batch_size, describe, leaves
from autofit.workloads.batches import BatchOptions, BatchSource, no_batches
from autofit.workloads.counted_batches import Collating, Counted, Cuttable, EquallyCounted, has_rows
from autofit.workloads.dataloaders import Recipe, shared
from autofit.workloads.lengths import Lengths, SampleLengths, elements, evenly_spaced, scan
from autofit.workloads.representative_batches import Groups, choose_representative, representative
from autofit.workloads.streams import undisturbed
from autofit.workloads.tree import Batch, map_tensors, tensors

_STRUCTURE_SIZES = (2, 5)  # two sizes distinguish the batch dimension from another of the same length
_JOINED = 4
"""Number of batches that join two of the user's. Where these are of two kinds at random, one in 16 shows nothing."""
_READ_BY_LENGTH = 16384  # keys of a pass from which typical batches of similar length are chosen
_TIMED = 64  # samples read to estimate how long reading all of them takes
SCAN_S = 10.0
"""Seconds for scanning the lengths of samples: reading 2,048 images of 150 ms each would take 5 minutes."""
_SCANNED_WITH_WORST_CASE = 512  # samples measured for typical batches if the user gives the worst case


ALIKE_RATIO = 0.95
"""Number of elements, relative to the largest batch, from which a batch may need the most memory. A sampler with a
budget fills most batches equally, and of these the one with the longest samples needs the most for its attention."""
_DESCRIBED = 8
"""Number of batches whose common structure identifies the loader."""


class _OfRecipe(BatchSource):
    loader: DataLoader[Any]

    def __init__(self, loader: DataLoader[Any], recipe: Recipe, options: BatchOptions) -> None:
        super().__init__(loader, options, recipe.notes)
        self._recipe, self.user_batch_size, self.length = recipe, recipe.user_batch_size, recipe.length
        self.fixed_loading, self.fixed_order, self.grouped = recipe.fixed_loading, recipe.fixed_order, recipe.grouped

    def _repeated(self, worst: Any, size: int) -> Batch:
        """Returns a batch of the user's worst sample, repeated and collated."""
        return self._recipe.repeated(worst, size)


class SampleBatches(_OfRecipe):
    """Makes batches by collating samples."""

    def __init__(self, loader: DataLoader[Any], recipe: Recipe, options: BatchOptions) -> None:
        super().__init__(loader, recipe, options)
        if not recipe.keys or (recipe.drop_last and self.length is not None and self.length < self.user_batch_size):
            raise no_batches(
                loader,
                f"{self.length} samples, batch size {self.user_batch_size}, drop_last={recipe.drop_last}",
            )
        self._worst_keys: dict[int, list[Any]] = {}
        self._chosen: dict[tuple[int, int], list[list[Any]] | None] = {}
        self._lengths = self._scan()
        self._check_sizes()
        self.varies = self._shapes_differ()
        if not recipe.resizes:
            self._note(
                f"{type(loader.batch_sampler).__name__} cannot make batches of another size: other sizes join or cut "
                f"its batches in order{', and are measured with the padding that results' * self.varies}"
            )
        self._known = SampleLengths(recipe.keys, recipe.sample, self._lengths)
        self._groups = None if recipe.at_random else Groups(recipe.lists, self._known, self._lengths)

    def _check_sizes(self) -> None:
        """Keeps the user's batch size if their code makes no other one, as for images of any size in batches of one."""
        lengths, users = self._lengths, self.user_batch_size
        self._sizes: Sequence[int] = _STRUCTURE_SIZES
        try:
            self._look()
            if lengths.varies:
                self._at([lengths.rankings()[0][0], lengths.shortest()[0]], 2)
        except Exception as error:  # noqa: BLE001  # the user's code: their own size tells whether it is at fault
            self._recipe.make(self._drawn(users, 1)[0])
            self._sizes, self.resizable = (users,), False
            self._note(f"the batch size stays {users}: making a batch of another size raises {type(error).__name__}")
            if "even" not in vars(self):
                self._look()

    def _look(self) -> None:
        """Makes batches of a few sizes, and keeps what they show of their rows."""
        with undisturbed(self.loader):
            found = self._of_sizes()
        self.has_rows = has_rows(found)
        # An integer equal to the size marks a batch of graphs.
        self.even = all(
            all(tensor.dim() and tensor.shape[0] == size for tensor in tensors(batch))
            and not any(type(leaf) is int and leaf == size for _, leaf, _ in leaves(batch, size))
            for batch, size in found
        )

    def _of_sizes(self) -> list[tuple[Batch, int]]:
        """Returns batches of a few sizes, which show the batch dimension."""
        return [(self._recipe.make(self._drawn(size, 1)[0]), size) for size in self._sizes]

    def _rebuilt(self, size: int, changes: Mapping[str, Any], counted: bool) -> Iterable[Batch | Counted]:
        """Returns a loader like the user's. For batches of similar length, the length of each sample is read."""
        recipe = self._recipe
        if counted and recipe.custom_iter and size == self.user_batch_size:
            return self.loader if self.has_rows else EquallyCounted(self.loader, size)
        if recipe.drop_last and self.length is not None and size > self.length:
            raise WorkloadError(
                f"a batch of {size} was requested, but the loader has {self.length} samples and "
                f"drop_last=True, so it would yield no batch; expected at most {self.length}; lower the size "
                "or set drop_last=False"
            )
        if not self.users_order:
            with undisturbed(self.loader):
                recipe = recipe.by_length(self._known.of_all)
        return recipe.rebuild(size, changes, self.has_rows if counted else None)

    def remainder(self, size: int, ranks: int = 1) -> int:
        """Returns what the last list of keys holds, if it is what is left of one sampler."""
        recipe, dataset = self._recipe, self.loader.dataset
        by_rule = recipe.custom_iter or (recipe.grouped and self.users_order)
        if recipe.drop_last or self.length is None or by_rule:
            return 0
        in_workers = isinstance(dataset, IterableDataset) and self.loader.num_workers > 1  # each has a last batch
        part: Any = shared(self.loader, 0, ranks) if ranks > 1 else self.loader
        return 0 if in_workers else (self.length if part is self.loader else len(part.sampler)) % size

    def _by_length(self) -> BatchSource:
        """Returns a source of batches of similar length. To choose typical batches it measures some more samples."""
        if self.fixed_order:
            return super()._by_length()
        found, recipe = self._copy(), self._recipe.by_length(self._known.total)
        found.users_order, found.grouped, found._recipe, found._chosen = False, True, recipe, {}
        found._groups = Groups(recipe.lists, self._known, self._lengths, _READ_BY_LENGTH)
        return found

    def padding(self, size: int) -> float:
        """Returns the share of padding, measured on typical batches."""
        self._check(size)
        count = max(min(SAMPLES, len(self._recipe.keys)) // size, 1)
        return padding_share(self._recipe.make, self._keys(size, count))

    @property
    def reading_s(self) -> float:
        """Returns the estimated seconds for reading all samples, from a few of them."""
        keys = self._recipe.keys
        places, began = evenly_spaced(len(keys), _TIMED), perf_counter()
        for at in places:
            self._recipe.sample(keys[at])
        return (perf_counter() - began) / len(places) * len(keys)

    def structure(self) -> str:
        """Returns the common structure of batches of two sizes and of the longest and shortest samples."""
        batches, sizes = map(list, zip(*self._of_sizes(), strict=True))
        if self._lengths.varies:
            for order in (*self._lengths.rankings(), self._lengths.shortest()):
                batches.append(self._at(order, self._sizes[0]))
                sizes.append(self._sizes[0])
        return describe(batches, sizes)

    def _typical(self, size: int, count: int) -> list[Batch]:
        """Returns batches of samples drawn with the seed, which repeat only if there are too few.

        If lengths vary, the batches together match the average batch of this size. If the loader has an order or groups
        samples, they are batches of the rebuilt loader.
        """
        return [self._recipe.make(keys) for keys in self._keys(size, count)]

    def _fresh(self, size: int, chance: random.Random) -> Iterator[Batch]:
        """Yields batches of random samples, or batches of the rebuilt loader if that decides which go together."""
        places = range(len(self._recipe.keys))
        lists = [] if self._groups is None else self._groups.full(size, chance)
        while lists:
            yield self._recipe.make(chance.choice(lists))
        while True:
            yield self._recipe.make(self._keys_at(chance.sample(places, min(size, len(places))), size))

    def cuttable(self, size: int, count: int) -> list[Cuttable]:
        """Returns the same batches, cut along the first dimension if `even`. Otherwise samples are collated anew."""
        self._check(size)
        return (
            super().cuttable(size, count) if self.even else [self._collated(keys) for keys in self._keys(size, count)]
        )

    def joined(self, size: int) -> list[Cuttable]:
        """Returns halves of batches that follow each other, at a few places of a pass."""
        users = self.user_batch_size
        if self._recipe.resizes or self._groups is None or size // 2 > users:
            return []
        lists, half = self._groups.full(users, random.Random(self._options.seed)), size // 2
        places = evenly_spaced(len(lists) - 1, _JOINED) if len(lists) > 1 else []
        return [self._collated([*lists[at][:half], *lists[at + 1][: size - half]]) for at in places]

    def choose(self, size: int, count: int) -> None:
        """Draws the samples of the batches in advance if lengths vary or a custom sampler groups samples."""
        if (self.varies or self._recipe.grouped) and (size, count) not in self._chosen:
            self._chosen[size, count] = self._drawn_representative(size, count)

    def _drawn_representative(self, size: int, count: int) -> list[list[Any]] | None:
        """Returns keys of batches that together match the average batch. None if unknown or not possible."""
        chance = random.Random(self._options.seed)
        if self._groups is not None:
            return self._groups.typical(size, count, chance)
        if count == 1:  # a single batch matches the average only by chance
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
        """Returns a batch whose samples are fetched once, since fetching them again may give different data."""
        held = self._recipe.fetch(keys)
        sliced = isinstance(held, (list, tuple)) and len(held) == len(keys)
        collate = Collating(self._recipe.join, self.has_rows)

        def cut(sizes: Sequence[int]) -> list[Counted]:
            parts = [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]
            if not sliced:
                return [Counted(self._recipe.make(keys[part]), len(keys[part])) for part in parts]
            return [collate(list(held[part])) for part in parts]

        return Cuttable(map_tensors(self._recipe.join(held), torch.clone), len(keys), cut)

    def _longest(self, size: int) -> Batch:
        """Returns the largest of the batches made from the longest samples, one batch for each ranking."""
        if not self.varies:
            return self._typical(size, 1)[0]
        self._note_repeats(size)
        if size in self._worst_keys:
            return self._recipe.make(self._worst_keys[size])
        best: Batch = None
        for order in self._lengths.rankings():
            batch = self._at(order, size)
            if best is None or elements(batch) > elements(best):
                best, self._worst_keys[size] = batch, self._keys_at(order, size)
        return best

    def _at(self, positions: Sequence[int], size: int) -> Batch:
        return self._recipe.make(self._keys_at(positions, size))

    def _keys_at(self, positions: Sequence[int], size: int) -> list[Any]:
        return [self._recipe.keys[positions[row % len(positions)]] for row in range(size)]

    def _scan(self) -> Lengths:
        """Measures the lengths of samples. Fewer are measured if the user gives the worst case."""
        keys, sample = self._recipe.keys, self._recipe.sample
        limit = self._options.scan if self._options.worst_case is None else _SCANNED_WITH_WORST_CASE
        began = perf_counter()
        lengths = scan(lambda position: sample(keys[position]), len(keys), limit, SCAN_S)
        scanned, late = len(lengths.positions), perf_counter() - began > SCAN_S
        if self._options.worst_case is None and scanned < len(keys) and (lengths.varies or late):
            took = f" in {SCAN_S:.0f} s" if late else ""
            self._note(
                f"{scanned} of {len(keys)} samples were scanned for length{took}: if a "
                "longer one can occur, pass worst_case="
            )
        return lengths

    def _shapes_differ(self) -> bool:
        """Makes the first batches, checks that they hold tensors, and returns whether their shapes vary."""
        size = min(self._sizes[0], len(self._recipe.keys))
        batch_size(self._at(range(size), size))
        if not self._lengths.varies:
            return False
        ends = [self._at(order, size) for order in (*self._lengths.rankings(), self._lengths.shortest())]
        return len({(elements(end), describe([end], [size])) for end in ends}) > 1


class UnevenBatches(_OfRecipe):
    """The batches of a sampler that makes them of different sizes, such as one with a budget of frames.

    Such a rule cannot be kept at another batch size, and a batch of the usual size made from the longest samples would
    be far larger than any that the sampler makes. The batches therefore stay as they are. The batch size of a plan is
    their mean. At most `scan` samples are read to compare the batches.
    """

    varies = True
    resizable = False
    even = False
    has_rows = False

    def __init__(self, loader: DataLoader[Any], recipe: Recipe, options: BatchOptions) -> None:
        super().__init__(loader, recipe, options)
        self._lists = recipe.uneven
        with undisturbed(loader):
            count = max(int(options.scan / fmean(map(len, self._lists))), 2)
            chosen = [self._lists[at] for at in evenly_spaced(len(self._lists), count)]
            # The keys of each batch, and the number of elements of its tensors.
            self._inspected = [(keys, elements(recipe.make(keys))) for keys in chosen]
        if len(self._inspected) < len(self._lists):
            self._note(
                f"{len(self._inspected)} of {len(self._lists)} batches were inspected: if a larger one can occur, pass "
                "worst_case="
            )

    def _typical(self, size: int, count: int) -> list[Batch]:
        """Returns batches that together have the mean number of samples, of elements, and of elements times length."""
        costs = [(float(len(keys)), float(held), held**2 / len(keys)) for keys, held in self._inspected]
        samples, filled, square = (fmean(column) for column in zip(*costs, strict=True))
        chance, places = random.Random(self._options.seed), list(range(len(costs)))
        if count < len(places):
            places = choose_representative([[cost] for cost in costs], [(samples, filled, square)], count, chance)
        return [self._recipe.make(self._inspected[at][0]) for at in islice(cycle(places), count)]

    def _fresh(self, size: int, chance: random.Random) -> Iterator[Batch]:
        """Yields batches of the pass at random."""
        while True:
            yield self._recipe.make(chance.choice(self._lists))

    def _longest(self, size: int) -> Batch:
        """Returns the batch with the longest samples of those with the most elements (`ALIKE_RATIO`)."""
        most = max(held for _, held in self._inspected)
        large = [each for each in self._inspected if each[1] >= ALIKE_RATIO * most]
        return self._recipe.make(max(large, key=lambda each: each[1] / len(each[0]))[0])

    def _rebuilt(self, size: int, changes: Mapping[str, Any], counted: bool) -> Iterable[Batch | Counted]:
        """Returns the user's batches. Each counts as `size` samples, so that a step has as many as the plan says."""
        loader = self._recipe.rebuild(size, changes) if changes else self.loader
        return EquallyCounted(loader, size) if counted else loader

    def structure(self) -> str:
        """Returns the common structure of the first inspected batches."""
        first = [keys for keys, _ in self._inspected[:_DESCRIBED]]
        return describe([self._recipe.make(keys) for keys in first], [len(keys) for keys in first])


SAMPLES = 512
"""Maximum number of samples in the batches that are compared, unless one batch has more."""


def padding_share(make: Callable[[list[Any]], Batch], lists: Iterable[Sequence[Any]]) -> float:
    """Returns the share of padding, from 0 to 1: the elements that batches have beyond those of their samples alone.

    It is measured by collating each sample alone, so it needs no mask and holds for any collate function. Elements that
    a sample alone has too, such as padding to a fixed length, are not counted.

    Args:
        make: keys -> batch.
        lists: the keys of each batch.
    """
    whole = alone = 0
    for keys in lists:
        whole += elements(make(list(keys)))
        alone += sum(elements(make([key])) for key in keys)
    return max(1 - alone / whole, 0.0) if whole else 0.0
