"""Groups: batches as the rebuilt loader would make them, if its sampler decides which samples are batched together.

A sampler that groups texts of similar length needs little padding, while random batches of the same data may be nearly
half padding. Measurements therefore use a few batches of the rebuilt loader that together match its average batch.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from statistics import fmean
from typing import Any

import torch
from torch.utils.data import BatchSampler, SequentialSampler

from autofit.workloads.lengths import Lengths, evenly_spaced
from autofit.workloads.representative_batches import choose_representative
from autofit.workloads.sample_lengths import SampleLengths
from autofit.workloads.streams import undisturbed

MOST_LISTS = 4096
"""Maximum number of lists considered if the lengths of all their samples were scanned."""
LISTS, MEASURED = 128, 2
"""Number of lists read, and number of samples measured in each, if not all lengths were scanned. A few are enough: a
sampler that groups by length has similar samples in a list, and one that does not makes similar lists."""
READ_KEYS = 200_000
"""Maximum number of keys read from one pass."""


class Groups:
    """Chooses batches among those that a loader makes.

    Args:
        lists: size -> the keys of each batch of the loader rebuilt at this size.
        known: lengths of the samples.
        lengths: result of the scan of the samples.
        read_keys: maximum number of keys read from one pass.
    """

    def __init__(
        self,
        lists: Callable[[int], Iterable[list[Any]]],
        known: SampleLengths,
        lengths: Lengths,
        read_keys: int = READ_KEYS,
    ) -> None:
        self._lists, self._known, self._read_keys = lists, known, read_keys
        self._useful = [fmean(values) for values in lengths.sizes.values()]

    def typical(self, size: int, count: int, chance: random.Random) -> list[list[Any]] | None:
        """Returns the keys of `count` batches of `size`, repeated if there are fewer. None if there is no such batch.

        Together they match the average batch of the loader, smaller batches included. If samples have no lengths, any
        batches do.
        """
        if not self._known.fields:
            full = self.full(size, chance)
            return [chance.choice(full) for _ in range(count)] if full else None
        lists = self._read(size, chance.random())
        known = all(key in self._known for keys in lists for key in keys)
        lists = [lists[at] for at in evenly_spaced(len(lists), MOST_LISTS if known else LISTS)]
        full = [keys for keys in lists if len(keys) == size]
        if not full:
            return None
        if len(full) <= count:
            return [full[at % len(full)] for at in range(count)]
        wanted = self._wanted(lists, complete=known)
        return [full[at] for at in choose_representative([self._costs(keys) for keys in full], wanted, count, chance)]

    def full(self, size: int, chance: random.Random) -> list[list[Any]]:
        """Returns the keys of the batches of one pass that have `size` samples."""
        return [keys for keys in self._read(size, chance.random()) if len(keys) == size]

    def _wanted(self, lists: Sequence[Sequence[Any]], *, complete: bool) -> list[tuple[float, float, float]]:
        """Returns the mean elements per sample. Without a complete scan, useful elements are those of the scan."""
        fields = list(zip(*map(self._costs, lists), strict=True))
        weights = list(map(len, lists))
        means = [[fmean(side, weights) for side in zip(*field, strict=True)] for field in fields]
        scale = (
            [1.0] * len(means)
            if complete
            else [seen / max(it[0], 1) for it, seen in zip(means, self._useful, strict=True)]
        )
        return [
            (useful * ratio, padded * ratio, square * ratio**2)
            for (useful, padded, square), ratio in zip(means, scale, strict=True)
        ]

    def _read(self, size: int, seed: float) -> list[list[Any]]:
        """Returns the lists of one pass. They are the same in every process if the sampler uses a global generator."""
        lists = self._lists(size)
        if type(lists) is BatchSampler and isinstance(lists.sampler, (SequentialSampler, range)):
            return [
                list(range(at * size, at * size + size)) for at in evenly_spaced(len(lists.sampler) // size, MOST_LISTS)
            ]
        with undisturbed(lists):
            random.seed(seed)
            torch.manual_seed(int(seed * 2**32))
            return [list(keys) for keys in islice(lists, max(self._read_keys // size, 1))]

    def _costs(self, keys: Sequence[Any]) -> list[tuple[float, float, float]]:
        """Returns the useful and the padded elements per sample of a batch and the square of the latter, by field."""
        if not all(key in self._known for key in keys):
            keys = [keys[at] for at in evenly_spaced(len(keys), MEASURED)]
        columns = zip(*(self._known.of_fields(key) for key in keys), strict=True)
        return [(sum(column) / len(column), max(column), max(column) ** 2) for column in columns]
