"""SampleBatches: batches that are collated from the samples of a data set."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader

from autofit.core.errors import WorkloadError
from autofit.workloads.batch_maker import BatchMaker, Options, no_batches
from autofit.workloads.lengths import Lengths, elements, scan
from autofit.workloads.representative import representative
from autofit.workloads.tree import Batch, batch_size, describe

_STRUCTURE_SIZES = (2, 5)  # two sizes tell the batch dimension from a dimension that happens to be as long
_SCANNED_WITH_WORST_CASE = 512  # samples measured where the user gives the worst case: what typical batches are like


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a DataLoader makes batches from samples, and how to make it again with another batch size."""

    keys: Sequence[Any]  # what names the samples
    sample: Callable[[Any], Any]  # key -> sample
    make: Callable[[list[Any]], Batch]  # keys -> batch
    collate: Callable[[list[Any]], Batch]  # samples -> batch
    rebuild: Callable[[int], Iterable[Batch]]
    user_batch_size: int
    length: int | None
    drop_last: bool
    notes: tuple[str, ...]


class SampleBatches(BatchMaker):
    """Collates samples."""

    def __init__(self, loader: DataLoader[Any], recipe: Recipe, options: Options) -> None:
        super().__init__(options, recipe.notes)
        self.user_batch_size, self.length = recipe.user_batch_size, recipe.length
        if not recipe.keys or (recipe.drop_last and self.length is not None and self.length < self.user_batch_size):
            raise no_batches(
                loader,
                f"{self.length} samples, batch size {self.user_batch_size}, drop_last={recipe.drop_last}",
            )
        self._recipe = recipe
        self._worst_keys: dict[int, list[Any]] = {}
        self._chosen: dict[tuple[int, int], list[list[int]] | None] = {}
        self._lengths = self._scan()
        self.varies = self._shapes_differ()

    def rebuild(self, size: int) -> Iterable[Batch]:
        """Returns a loader like the user's; fails where `drop_last` would leave no batch."""
        if self._recipe.drop_last and self.length is not None and size > self.length:
            raise WorkloadError(
                f"a batch of {size} was asked for, but the loader has {self.length} samples and "
                f"drop_last=True, so it would give no batch; expected at most {self.length}; lower the size "
                "or set drop_last=False"
            )
        return self._recipe.rebuild(size)

    def structure(self) -> str:
        """Returns what batches of two sizes have in common, and those of the longest and the shortest samples."""
        batches = [self.typical(size, 1)[0] for size in _STRUCTURE_SIZES]
        sizes = list(_STRUCTURE_SIZES)
        if self._lengths.varies:
            for order in (*self._lengths.rankings(), self._lengths.shortest()):
                batches.append(self._at(order, 2))
                sizes.append(2)
        return describe(batches, sizes)

    def typical(self, size: int, count: int) -> list[Batch]:
        """Returns batches of samples drawn by the seed, none of them twice while there are enough.

        Where lengths vary, several are together like all batches of the size, as far as that was scanned.
        """
        self._note_repeats(size)
        self.choose(size, count)
        if (batches := self._chosen.get((size, count))) is not None:
            return [self._at(batch, size) for batch in batches]
        total = len(self._recipe.keys)
        chosen = random.Random(self._options.seed).sample(range(total), min(size * count, total))
        starts = range(0, size * count, size)
        return [self._at([chosen[at % len(chosen)] for at in range(start, start + size)], size) for start in starts]

    def choose(self, size: int, count: int) -> None:
        """Draws the samples of several batches, where lengths vary; one batch is like all by chance only."""
        if self.varies and count > 1 and (size, count) not in self._chosen:
            chance = random.Random(self._options.seed)
            self._chosen[size, count] = representative(self._lengths, size, count, chance)

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
