"""ReadyBatches: batches of another size from a loader that yields ready batches."""

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from autofit.core.errors import WorkloadError
from autofit.workloads.batch_algebra import batch_size, concat, describe, leaves, non_batch_tensors, regroup, split
from autofit.workloads.batches import BatchOptions, BatchSource, no_batches
from autofit.workloads.counted_batches import Counted, EquallyCounted
from autofit.workloads.lengths import elements, evenly_spaced
from autofit.workloads.streams import STREAM_BATCHES
from autofit.workloads.tree import Batch, same


class ReadyBatches(BatchSource):
    """Cuts and joins ready batches where that is correct."""

    def __init__(
        self,
        loader: Iterable[Any],
        keys: Sequence[Any],
        fetch: Callable[[Any], Batch],
        options: BatchOptions,
        *,
        complete: bool = True,
        notes: Iterable[str] = (),
    ) -> None:
        super().__init__(loader, options, notes)
        if not keys:
            raise no_batches(loader)
        self._keys, self._fetch = keys, fetch
        self._rows: dict[int, int] = {}  # position -> number of samples in that batch
        self._density: dict[int, float] = {}  # position -> elements per sample
        listed = isinstance(loader, (list, tuple))
        self.distinct = len(keys) if listed else None
        self._inspect(options.scan if listed else STREAM_BATCHES)
        self.user_batch_size = Counter(self._rows.values()).most_common(1)[0][0]
        known = complete and len(self._rows) == len(keys)
        self.length = sum(self._rows.values()) if known else None
        if not self.resizable:
            self._note(
                f"the batch size stays {self.user_batch_size}: the batches hold tensors without one row per sample; "
                "in an accumulated step all micro batches have the same weight"
            )
        elif not self._join:
            self.max_size = max(self._rows.values())
            self._note(
                "batches are padded to different lengths: they are cut but never joined, so "
                f"the largest batch size is {self.max_size}; pass a DataLoader with a collate_fn for "
                "larger batches"
            )
        if len(self._rows) < len(keys):
            self._note(f"{len(self._rows)} of {len(keys)} batches were inspected")

    def _rebuilt(self, size: int, changes: Mapping[str, Any], counted: bool) -> Iterable[Batch | Counted]:
        """Returns the user's batches cut, and joined where possible.

        Where their shapes do not give the number of samples, all count as `size` samples.
        """
        if counted and not self.has_rows:
            return EquallyCounted(self.loader, size)
        if size == self.user_batch_size:
            return self.loader
        count = None
        if self.length is not None:
            count = sum(-(-part // size) for part in ([self.length] if self._join else self._rows.values()))
        return _Regrouped(self.loader, size, self._join, count)

    def remainder(self, size: int, ranks: int = 1) -> int:
        """Returns the smallest batch that cutting leaves; of the user's size, the smallest of the user's own."""
        rows = list(self._rows.values())
        if not self.resizable or self.length is None:
            return 0
        if size == self.user_batch_size:
            return min(rows) % size
        return self.length % size if self._join else min((each % size for each in rows if each % size), default=0)

    def structure(self) -> str:
        """Returns the common structure of the first eight inspected batches."""
        first = itertools.islice(self._rows.items(), 8)
        batches, sizes = zip(*((self._fetch(self._keys[at]), rows) for at, rows in first), strict=True)
        return describe(batches, sizes)

    def _typical(self, size: int, count: int) -> list[Batch]:
        """Returns pieces of the user's batches, in a random order fixed by the seed."""
        self._note_repeats(size)
        return list(itertools.islice(self._pieces(size, random.Random(self._options.seed)), count))

    def _fresh(self, size: int, chance: random.Random) -> Iterator[Batch]:
        """Yields pieces of the user's batches, in a random order."""
        return self._pieces(size, chance)

    def _pieces(self, size: int, chance: random.Random) -> Iterator[Batch]:
        if self._join:
            return regroup(self._shuffled(range(len(self._keys)), chance), size)
        exact = [at for at, rows in self._rows.items() if rows == size]
        larger = [at for at, rows in self._rows.items() if rows > size]
        stream = self._shuffled(exact if not self.resizable else exact + larger, chance)
        return (self._cut(batch, size) for batch in stream)

    def _longest(self, size: int) -> Batch:
        """Returns the batches with the most elements per sample, joined, or the largest of them repeated."""
        fit = [at for at, rows in self._rows.items() if self.resizable or rows == size]
        fit.sort(key=lambda at: -self._density[at])
        if self._join:
            return next(regroup((self._fetch(self._keys[at]) for at in itertools.cycle(fit)), size))
        return self._repeated(self._fetch(self._keys[fit[0]]), size)

    def _repeated(self, worst: Any, size: int) -> Batch:
        """Returns the batch `worst` repeated or cut."""
        return self._cut(concat([worst] * -(-size // batch_size(worst))), size) if self.resizable else worst

    def _cut(self, batch: Batch, size: int) -> Batch:
        rows = batch_size(batch) if self.resizable else size
        return batch if rows == size else split(batch, [size, rows - size])[0]

    def _shuffled(self, positions: Sequence[int], chance: random.Random) -> Iterator[Batch]:
        """Yields batches in a random order, endlessly."""
        while True:
            for at in chance.sample(positions, len(positions)):
                yield self._fetch(self._keys[at])

    def _inspect(self, limit: int) -> None:
        """Inspects up to `limit` batches and decides whether they can be cut and joined."""
        texts, outlines, kinds = set(), set(), set()
        first: dict[str, torch.Tensor] = {}
        unchanged = True
        for at in evenly_spaced(len(self._keys), limit):
            batch = self._fetch(self._keys[at])
            rows, extra = batch_size(batch), non_batch_tensors(batch)
            if rows < 1:
                raise WorkloadError(f"batch {at} of the loader has no samples; expected at least 1; remove it")
            first = first or extra
            unchanged &= extra.keys() == first.keys() and all(same(extra[path], first[path]) for path in extra)
            self._rows[at], self._density[at] = rows, elements(batch) / rows
            texts.add(describe([batch], [rows]))
            # The path, dtype and shape without the batch dimension of each tensor. Joined batches must agree in them.
            outline = frozenset(
                (re.sub(r"\[\w+\]", "[]", path), leaf.dtype, leaf.shape[1:])
                for path, leaf, listed in leaves(batch, rows)
                if isinstance(leaf, torch.Tensor) and not listed
            )
            outlines.add(outline)
            kinds.add(frozenset((path, dtype, len(shape)) for path, dtype, shape in outline))
        if len(kinds) > 1:
            raise WorkloadError(
                f"found entries of different structure in the loader: {' / '.join(sorted(texts)[:3])}; "
                "expected batches of the same structure; for a single batch (x, y) pass [(x, y)], for data "
                "DataLoader(TensorDataset(x, y))"
            )
        # A tensor without one row per sample (class weights) is taken as shared only if it is the same in all batches.
        self.resizable = unchanged and (not first or len(self._rows) > 1)
        self.even, self.has_rows = unchanged and not first, self.resizable
        self._join = self.resizable and len(outlines) == 1
        self.varies = len(texts) > 1 or "*" in texts.pop()


class _Regrouped:
    """The user's batches at another size. It can be iterated as often as the loader can."""

    def __init__(self, batches: Iterable[Any], size: int, join: bool, count: int | None) -> None:
        self.batches, self.size, self.join, self.count = batches, size, join, count

    def __iter__(self) -> Iterator[Batch]:
        return regroup(self.batches, self.size, join=self.join)

    def __len__(self) -> int:
        if self.count is None:
            raise TypeError("the number of batches is unknown: the number of samples of the loader is unknown")
        return self.count
