"""LengthBatches: a batch sampler that makes batches of samples of similar length, in an order that stays random.

As in the `LengthGroupedSampler` of transformers, only the samples of one window are sorted by length, so that batches
have other samples in each epoch. A window holds at most `WINDOW_BATCHES` batches.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from autofit.workloads.sample_lengths import LengthOf

WINDOW_BATCHES, LEAST_WINDOWS = 50, 4
"""Maximum number of batches in a window, and minimum number of windows in a pass: the values of transformers 5.23
(`get_length_grouped_indices`). With a single window, every epoch would have the same batches."""


class LengthBatches:
    """Batches of the keys that a sampler draws, each of samples of similar length.

    It draws no random numbers. The batches of a window come in the order in which the sampler drew the first key of
    each, and the keys of a batch in the order in which they were drawn. A sampler that draws at random therefore makes
    new batches in a new order in each pass, which its generator determines. The keys that do not fill a batch are the
    last ones drawn, as with torch's `BatchSampler`.

    Attributes:
        sampler: the user's sampler, with a length.
        batch_size: number of keys per batch.
        drop_last: whether an incomplete last batch is dropped.
    """

    def __init__(self, sampler: Any, length_of: LengthOf, size: int, drop_last: bool) -> None:
        self.sampler, self.batch_size, self.drop_last = sampler, size, drop_last
        self._length_of = length_of

    def __iter__(self) -> Iterator[list[Any]]:
        drawn, size = list(self.sampler), self.batch_size
        full = len(drawn) // size
        windows = max(-(-full // WINDOW_BATCHES), min(LEAST_WINDOWS, full), 1)
        edges = [full * at // windows * size for at in range(windows + 1)]
        for first, last in pairwise(edges):
            yield from self._of_window(drawn[first:last])
        if len(drawn) > full * size and not self.drop_last:
            yield drawn[full * size :]

    def __len__(self) -> int:
        total = len(self.sampler)
        return total // self.batch_size if self.drop_last else -(-total // self.batch_size)

    def _of_window(self, keys: list[Any]) -> Iterator[list[Any]]:
        lengths = [self._length_of(key) for key in keys]
        by_length = sorted(range(len(keys)), key=lengths.__getitem__)  # equal lengths stay in the order drawn
        batches = [sorted(by_length[at : at + self.batch_size]) for at in range(0, len(keys), self.batch_size)]
        yield from ([keys[place] for place in batch] for batch in sorted(batches))
