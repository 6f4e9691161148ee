"""UnevenBatches: the batches of a sampler that makes them of different sizes, such as one with a budget of frames.

Such a rule cannot be kept at another batch size, and a batch of the usual size made from the longest samples would be
far larger than any that the sampler makes. The batches therefore stay as they are. The batch size of a plan is their
mean.
"""

import itertools
import random
from collections.abc import Iterable, Iterator, Mapping
from statistics import fmean
from typing import Any

from torch.utils.data import DataLoader

from autofit.workloads.batch_algebra import describe
from autofit.workloads.batches import BatchOptions, BatchSource
from autofit.workloads.counted_batches import Counted, EquallyCounted
from autofit.workloads.lengths import elements, evenly_spaced
from autofit.workloads.recipes import Recipe
from autofit.workloads.representative_batches import choose_representative
from autofit.workloads.streams import undisturbed
from autofit.workloads.tree import Batch

ALIKE_RATIO = 0.95
"""Number of elements, relative to the largest batch, from which a batch may need the most memory. A sampler with a
budget fills most batches equally, and of these the one with the longest samples needs the most for its attention."""
_DESCRIBED = 8
"""Number of batches whose common structure identifies the loader."""


class UnevenBatches(BatchSource):
    """Makes the batches of the user's batch sampler, from the lists of one pass.

    Args:
        loader: the user's loader.
        recipe: has the keys of each batch of a pass in `uneven`, and makes batches from them.
        options: options of the source. At most `scan` samples are read to compare the batches.
    """

    varies = True
    resizable = False
    even = False
    has_rows = False
    grouped = True

    def __init__(self, loader: DataLoader[Any], recipe: Recipe, options: BatchOptions) -> None:
        super().__init__(loader, options, recipe.notes)
        # Of some batches of the pass, the keys of the samples and the number of elements of the tensors.
        self._inspected: list[tuple[list[Any], int]]
        self._recipe, self._lists = recipe, recipe.uneven
        self.user_batch_size, self.length = recipe.user_batch_size, recipe.length
        self.fixed_loading, self.fixed_order = recipe.fixed_loading, recipe.fixed_order
        with undisturbed(loader):
            count = max(int(options.scan / fmean(map(len, self._lists))), 2)
            chosen = [self._lists[at] for at in evenly_spaced(len(self._lists), count)]
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
        return [self._recipe.make(self._inspected[at][0]) for at in itertools.islice(itertools.cycle(places), count)]

    def _fresh(self, size: int, chance: random.Random) -> Iterator[Batch]:
        """Yields batches of the pass at random."""
        while True:
            yield self._recipe.make(chance.choice(self._lists))

    def _longest(self, size: int) -> Batch:
        """Returns the batch with the longest samples of those with the most elements (`ALIKE_RATIO`)."""
        most = max(held for _, held in self._inspected)
        large = [each for each in self._inspected if each[1] >= ALIKE_RATIO * most]
        return self._recipe.make(max(large, key=lambda each: each[1] / len(each[0]))[0])

    def _repeated(self, worst: Any, size: int) -> Batch:
        """Returns a batch of the user's worst sample, repeated and collated."""
        return self._recipe.repeated(worst, size)

    def _rebuilt(self, size: int, changes: Mapping[str, Any], counted: bool) -> Iterable[Batch | Counted]:
        """Returns the user's batches. Each counts as `size` samples, so that a step has as many as the plan says."""
        loader = self._recipe.rebuild(size, changes) if changes else self.loader
        return EquallyCounted(loader, size) if counted else loader

    def structure(self) -> str:
        """Returns the common structure of the first inspected batches."""
        first = [keys for keys, _ in self._inspected[:_DESCRIBED]]
        return describe([self._recipe.make(keys) for keys in first], [len(keys) for keys in first])
