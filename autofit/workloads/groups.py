"""Groups: the batches that a loader really makes at a size, where the order of its sampler decides which samples meet.

A sampler that puts texts of like length together has little padding; batches drawn at random from the same data may be
nearly half padding. So what is measured are batches of the rebuilt loader, a few that are together like all.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from autofit.workloads.lengths import Lengths, extents, product, spaced
from autofit.workloads.representative import alike
from autofit.workloads.streams import read, undisturbed

MOST_LISTS = 256
"""Lists among which a few are chosen."""
MEASURED = 3
"""Samples of a list that are looked at where its lengths were not scanned: in a list of a sampler that groups by length
they are alike, and one that does not group makes lists that are alike."""
READ_KEYS = 200_000
"""Keys that are read at most of one pass."""


class Groups:
    """Chooses batches among those that a loader makes.

    Args:
        lists: size -> the keys of each batch of the loader that is rebuilt with this size.
        keys: what names the samples.
        sample: key -> sample.
        lengths: what the scan of the samples saw.
    """

    def __init__(
        self,
        lists: Callable[[int], Iterable[list[Any]]],
        keys: Sequence[Any],
        sample: Callable[[Any], Any],
        lengths: Lengths,
    ) -> None:
        self._lists, self._sample = lists, sample
        self._fields = list(lengths.sizes)
        rows = zip(*lengths.sizes.values(), strict=True)
        self._known = {keys[at]: row for at, row in zip(lengths.positions, rows, strict=False)}

    def typical(self, size: int, count: int, chance: random.Random) -> list[list[Any]] | None:
        """Returns the keys of `count` batches of `size`, some twice where there are fewer; None where there is none."""
        found = [keys for keys in self._read(size, chance.random()) if len(keys) == size]
        if not found or not self._fields:
            return None
        found = [found[at] for at in spaced(len(found), MOST_LISTS)]
        if len(found) <= count:
            return [found[at % len(found)] for at in range(count)]
        return [found[at] for at in alike([self._costs(keys) for keys in found], count, chance)]

    def _read(self, size: int, seed: float) -> list[list[Any]]:
        """Returns the lists of one pass, the same in every process if the sampler draws by a global generator."""
        lists = self._lists(size)
        with undisturbed(lists):
            random.seed(seed)
            torch.manual_seed(int(seed * 2**32))
            return [list(keys) for keys in read(lists, max(READ_KEYS // size, 1), "batches of keys")[0]]

    def _costs(self, keys: Sequence[Any]) -> list[tuple[float, float]]:
        """Returns the useful and the padded elements of a sample of a batch, by field."""
        if not all(key in self._known for key in keys):
            keys = [keys[at] for at in spaced(len(keys), MEASURED)]
        columns = zip(*(self._row(key) for key in keys), strict=True)
        return [(sum(column) / len(column), max(column)) for column in columns]

    def _row(self, key: Any) -> tuple[int, ...]:
        if key not in self._known:
            found = extents(self._sample(key))
            self._known[key] = tuple(product(found.get(field, ())) for field in self._fields)
        return self._known[key]
