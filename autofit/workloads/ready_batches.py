"""ReadyBatches: batches of another size from a loader that yields ready batches."""

import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from autofit.core.errors import WorkloadError
from autofit.workloads.batch_algebra import batch_size, concat, describe, leaves, regroup, split, strays
from autofit.workloads.batch_maker import BatchMaker, BatchOptions, no_batches
from autofit.workloads.counted import Alike, Counted, Cuttable
from autofit.workloads.lengths import elements, spaced
from autofit.workloads.streams import STREAM_BATCHES
from autofit.workloads.tree import Batch, map_tensors, same


class ReadyBatches(BatchMaker):
    """Cuts and joins batches that are ready, where that is sound."""

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
        super().__init__(options, notes)
        if not keys:
            raise no_batches(loader)
        self._loader, self._keys, self._fetch = loader, keys, fetch
        self._rows: dict[int, int] = {}  # position -> samples in that batch
        self._density: dict[int, float] = {}  # position -> elements per sample
        self._look(options.scan if isinstance(loader, (list, tuple)) else STREAM_BATCHES)
        self.user_batch_size = Counter(self._rows.values()).most_common(1)[0][0]
        known = complete and len(self._rows) == len(keys)
        self.length = sum(self._rows.values()) if known else None
        self._judge()

    def rebuild(self, size: int) -> Iterable[Batch]:
        """Returns the user's batches cut, and joined where they can be."""
        if self.length is None:
            return _Regrouped(self._loader, size, self._join, None)
        parts = [self.length] if self._join else self._rows.values()
        return _Regrouped(self._loader, size, self._join, sum(-(-part // size) for part in parts))

    def counted(self, size: int) -> Iterable[Batch | Counted]:
        """Returns the batches, whose shapes tell their samples; where they do not, each counts as any other."""
        if not self.has_rows:
            return Alike(self._loader, size)
        return self._loader if size == self.user_batch_size else self.rebuild(size)

    def structure(self) -> str:
        """Returns what the first eight batches that were looked at have in common."""
        first = itertools.islice(self._rows.items(), 8)
        batches, sizes = zip(*((self._fetch(self._keys[at]), rows) for at, rows in first), strict=True)
        return describe(batches, sizes)

    def typical(self, size: int, count: int) -> list[Batch]:
        """Returns pieces of the user's batches, in an order drawn by the seed."""
        self._note_repeats(size)
        if self._join:
            everything = range(len(self._keys))
            return list(itertools.islice(regroup(self._shuffled(everything), size), count))
        exact = [at for at, rows in self._rows.items() if rows == size]
        larger = [at for at, rows in self._rows.items() if rows > size]
        stream = self._shuffled(exact if not self.resizable else exact + larger)
        return [self._cut(batch, size) for batch in itertools.islice(stream, count)]

    def cuttable(self, size: int, count: int) -> list[Cuttable]:
        """Returns the same, which are cut along their first dimension."""
        return [Cuttable.of(map_tensors(batch, torch.clone)) for batch in self.typical(size, count)]

    def longest(self, size: int) -> Batch:
        """Returns the batches with the most elements per sample: joined, or the first of them repeated."""
        fit = [at for at, rows in self._rows.items() if self.resizable or rows == size]
        fit.sort(key=lambda at: -self._density[at])
        if self._join:
            return next(regroup((self._fetch(self._keys[at]) for at in itertools.cycle(fit)), size))
        return self.repeated(self._fetch(self._keys[fit[0]]), size)

    def repeated(self, worst: Any, size: int) -> Batch:
        """Returns the batch `worst` repeated or cut."""
        if not self.resizable:
            return worst
        return self._cut(concat([worst] * -(-size // batch_size(worst))), size)

    def _cut(self, batch: Batch, size: int) -> Batch:
        if not self.resizable:
            return batch
        rows = batch_size(batch)
        return batch if rows == size else split(batch, [size, rows - size])[0]

    def _shuffled(self, positions: Sequence[int]) -> Iterator[Batch]:
        """Yields batches in a private random order, again and again."""
        draw = random.Random(self._options.seed)
        while True:
            for at in draw.sample(positions, len(positions)):
                yield self._fetch(self._keys[at])

    def _look(self, limit: int) -> None:
        """Measures up to `limit` batches and finds what can be done with them."""
        texts, outlines, kinds = set(), set(), set()
        first: dict[str, torch.Tensor] = {}
        alike = True
        for at in spaced(len(self._keys), limit):
            batch = self._fetch(self._keys[at])
            rows, odd = batch_size(batch), strays(batch)
            if rows < 1:
                raise WorkloadError(f"batch {at} of the loader has no samples; expected at least 1; leave it out")
            first = first or odd
            alike &= odd.keys() == first.keys() and all(same(odd[path], first[path]) for path in odd)
            self._rows[at], self._density[at] = rows, elements(batch) / rows
            texts.add(describe([batch], [rows]))
            outlines.add(_outline(batch, rows))
            kinds.add(frozenset((path, dtype, len(shape)) for path, dtype, shape in _outline(batch, rows)))
        if len(kinds) > 1:
            raise WorkloadError(
                f"found entries that are not alike in the loader: {' / '.join(sorted(texts)[:3])}; "
                "expected batches of one structure; for one batch (x, y) pass [(x, y)], for data "
                "DataLoader(TensorDataset(x, y))"
            )
        # A tensor that is not a batch of samples (class weights) is known to be shared only if it never changes.
        self.resizable = alike and (not first or len(self._rows) > 1)
        self.even, self.has_rows = alike and not first, self.resizable
        self._join = self.resizable and len(outlines) == 1
        self.varies = len(texts) > 1 or "*" in texts.pop()

    def _judge(self) -> None:
        """Says what cannot be done with these batches."""
        if not self.resizable:
            self._note(
                f"batches stay at {self.user_batch_size} samples: they hold tensors that are not one row per sample; "
                "in an accumulated step each counts the same"
            )
        elif not self._join:
            self.max_size = max(self._rows.values())
            self._note(
                "batches are padded to different lengths: they are cut but never joined, so "
                f"{self.max_size} samples is the largest batch; give a DataLoader with a collate_fn for "
                "larger ones"
            )
        if len(self._rows) < len(self._keys):
            self._note(f"{len(self._rows)} of {len(self._keys)} batches were looked at")


class _Regrouped:
    """The user's batches in another size; iterates afresh each time, as often as the loader does."""

    def __init__(self, batches: Iterable[Any], size: int, join: bool, count: int | None) -> None:
        self.batches, self.size, self.join, self.count = batches, size, join, count

    def __iter__(self) -> Iterator[Batch]:
        return regroup(self.batches, self.size, join=self.join)

    def __len__(self) -> int:
        if self.count is None:
            raise TypeError("the number of batches is not known: the loader has no length in samples")
        return self.count


def _outline(batch: Batch, rows: int) -> frozenset[tuple[str, str, tuple[int, ...]]]:
    """Returns the path, dtype and shape beyond the batch of each tensor that has to agree in joined batches."""
    return frozenset(
        (re.sub(r"\[\w+\]", "[]", path), str(leaf.dtype), tuple(leaf.shape)[1:] if leaf.dim() else ())
        for path, leaf, listed in leaves(batch, rows)
        if isinstance(leaf, torch.Tensor) and not listed
    )
