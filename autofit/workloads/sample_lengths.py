"""SampleLengths: the length of each sample of a data set, measured when it is first asked for."""

from array import array
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from autofit.workloads.lengths import Lengths, extents, product

LengthOf = Callable[[Any], int]
"""Returns the length of the sample with a key."""


class SampleLengths:
    """The lengths of samples by key. Those of a scan are known; others are measured and kept.

    Attributes:
        fields: names of the fields that vary in size.

    Args:
        keys: keys of the samples.
        sample: key -> sample.
        lengths: result of the scan of the samples.
    """

    def __init__(self, keys: Sequence[Any], sample: Callable[[Any], Any], lengths: Lengths) -> None:
        self.fields = tuple(lengths.sizes)
        self._keys, self._sample = keys, sample
        rows = zip(*lengths.sizes.values(), strict=True)
        self._known = {keys[at]: row for at, row in zip(lengths.positions, rows, strict=False)}

    def __contains__(self, key: Any) -> bool:
        return key in self._known

    def of_fields(self, key: Any) -> tuple[int, ...]:
        """Returns the number of elements of a sample in each field that varies."""
        if key not in self._known:
            found = extents(self._sample(key))
            self._known[key] = tuple(product(found.get(field, ())) for field in self.fields)
        return self._known[key]

    def total(self, key: Any) -> int:
        """Returns the number of elements of a sample in all fields that vary."""
        return sum(self.of_fields(key))

    def of_all(self) -> LengthOf:
        """Returns a function that orders samples as `total` does and reads none. All samples are read now, once.

        All fields are counted: one that does not vary changes no order, and a short scan may not have seen one vary.
        """
        totals = self._totals
        return lambda key: totals[key]

    @cached_property
    def _totals(self) -> "array[int] | dict[Any, int]":
        """Totals by key: an array if the keys are the numbers from 0, since a data set may have many millions."""
        totals = (sum(map(product, extents(self._sample(key)).values())) for key in self._keys)
        if self._keys == range(len(self._keys)):
            return array("q", totals)
        return dict(zip(self._keys, totals, strict=True))
