"""Samplers: the keys of the samples that a DataLoader's sampler draws, and batch samplers of another size.

A resized sampler keeps the user's rule for grouping samples: it is a copy with another size in its attributes, or else
constructed again. Otherwise its batches are joined or cut in order, which separates samples that it grouped.
"""

import copy
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import torch
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from autofit.core.errors import WorkloadError
from autofit.workloads.lengths import LengthOf
from autofit.workloads.streams import known_length, read, undisturbed


class Share(DistributedSampler[Any]):
    """The part of a data set that belongs to one of several ranks. Shuffled, it is in another order in each pass."""

    def __iter__(self) -> Iterator[Any]:
        drawn: Iterator[Any] = super().__iter__()
        self.epoch += 1
        return drawn


def draws_at_random(sampler: Any) -> bool:
    """Returns whether any samples may be in the same batch, so that the order of the sampler does not matter."""
    if type(sampler) in (DistributedSampler, Share):
        return bool(sampler.shuffle)
    return type(sampler) in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def sampler_keys(sampler: Any, dataset: Any, limit: int) -> tuple[Sequence[Any], int | None]:
    """Returns the keys that a sampler draws from, and how many it draws in one pass (None if unknown)."""
    if type(sampler) in (SequentialSampler, RandomSampler, DistributedSampler, Share):
        total = known_length(getattr(sampler, "data_source", dataset))
        if total is None:
            raise WorkloadError(
                f"found a data set ({type(dataset).__name__}) without __len__; expected one with __len__ and "
                "__getitem__, or an IterableDataset; add __len__"
            )
        return range(total), len(sampler)
    if isinstance(sampler, SubsetRandomSampler):
        return list(sampler.indices), len(sampler)
    if isinstance(sampler, WeightedRandomSampler):
        return (torch.as_tensor(sampler.weights) > 0).nonzero().flatten().tolist(), len(sampler)
    drawn, ended, _ = read(sampler, limit, "keys")
    keys = all_keys(drawn, ended, dataset)
    return keys, len(drawn) if ended else known_length(sampler) or known_length(dataset)


def all_keys(drawn: list[Any], ended: bool, dataset: Any) -> Sequence[Any]:
    """Returns the keys to choose samples from, given the first keys that a sampler drew."""
    total = known_length(dataset)
    if ended or total is None or not all(isinstance(key, int) for key in drawn):
        return drawn
    return range(total)


CHECKED_KEYS = 200_000
"""Maximum number of keys read from one pass over a sampler."""
FULL_RATIO = 0.75
"""Minimum share of the keys that must be in batches of exactly the requested size. Below it, the sampler ignored the
size or its groups are too small, and a measurement of full batches would not be valid for its batches."""
SAME_RATIO = 0.5
"""Minimum share of the keys that must also be in the user's batches. Some samplers draw different keys in each pass."""
Pass = tuple[list[list[Any]], bool]
_NAMES = ("batch_size", "batchsize", "bsz")


class Rechunked:
    """The indices of a user's batch sampler, in order, in lists of another size."""

    def __init__(self, sampler: Any, size: int, user_size: int, drop_last: bool) -> None:
        self.sampler, self.batch_size, self.user_size, self.drop_last = sampler, size, user_size, drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        indices = itertools.chain.from_iterable(self.sampler)
        while chunk := list(itertools.islice(indices, self.batch_size)):
            if len(chunk) == self.batch_size or not self.drop_last:
                yield chunk

    def __len__(self) -> int:
        """Returns the number of lists. It is exact if each list of the user's sampler is full."""
        total = len(self.sampler) * self.user_size
        return total // self.batch_size if self.drop_last else -(-total // self.batch_size)


class Copied:
    """A copy of a user's batch sampler with another batch size in the attributes that hold it.

    Each pass uses a fresh copy, so that `set_epoch` on the user's object takes effect. What a pass changes (an epoch
    counter) is written back to that object.
    """

    def __init__(self, sampler: Any, names: Sequence[str], size: int) -> None:
        self.sampler, self.names, self.batch_size = sampler, tuple(names), size

    def __iter__(self) -> Iterator[list[Any]]:
        resized_copy = self._resized_copy()
        for keys in resized_copy:
            self._write_back(resized_copy)
            yield keys
        self._write_back(resized_copy)

    def __len__(self) -> int:
        return len(self._resized_copy())

    def _resized_copy(self) -> Any:
        resized_copy = copy.copy(self.sampler)
        vars(resized_copy).update(dict.fromkeys(self.names, self.batch_size))
        return resized_copy

    def _write_back(self, resized_copy: Any) -> None:
        vars(self.sampler).update({name: value for name, value in vars(resized_copy).items() if name not in self.names})


class Constructed:
    """A user's batch sampler, constructed again with another batch size.

    It follows numbers that are later set on the user's object, and its `set_epoch`. Other attributes are not copied,
    since they may be lists of batches of the user's size.
    """

    def __init__(self, sampler: Any, made: Any, size: int) -> None:
        self.sampler, self.made, self.batch_size = sampler, made, size
        self._seen = _numbers(sampler)

    def __iter__(self) -> Iterator[list[Any]]:
        now = _numbers(self.sampler)
        changed = {name: value for name, value in now.items() if value != self._seen.get(name)}
        self._seen = now
        if "epoch" in changed and callable(getattr(self.made, "set_epoch", None)):
            self.made.set_epoch(changed.pop("epoch"))
        vars(self.made).update(changed)
        return iter(self.made)

    def __len__(self) -> int:
        return len(self.made)


def resized(
    sampler: Any, size: int, user_size: int, drop_last: bool, user_pass: Callable[[], Pass] | None = None
) -> Iterable[list[Any]]:
    """Returns the lists of a user's batch sampler at another size, by the first method that yields lists of that size.

    Args:
        sampler: the user's batch sampler. It is iterated, and its state is restored.
        size: number of samples per list.
        user_size: the most common number of samples in the user's lists.
        drop_last: whether an incomplete last list is dropped when lists are joined or cut.
        user_pass: returns one pass over the user's lists, which may take long. None iterates `sampler`.
    """
    with undisturbed(sampler):
        user_lists, all_read = one_pass(sampler, user_size) if user_pass is None else user_pass()
        for method in (_copied, _constructed):
            with suppress(Exception):  # the user's code may not support being called this way
                if (found := method(sampler, size, user_size)) is None:
                    continue
                lists, all_found = one_pass(found, size)
                if _follows(lists, user_lists, size, compare=all_read and all_found):
                    return found
    return Rechunked(sampler, size, user_size, drop_last)


def _copied(sampler: Any, size: int, user_size: int) -> Copied | None:
    names = [name for name, value in vars(sampler).items() if _is_size(name) and value == user_size]
    return Copied(sampler, names, size) if names else None


def _constructed(sampler: Any, size: int, user_size: int) -> Constructed | None:
    """Returns the sampler constructed again. None if an argument is not found among its attributes."""
    parameters = list(inspect.signature(type(sampler)).parameters.values())
    if not any(_is_size(parameter.name) for parameter in parameters):
        return None
    given: dict[str, Any] = {}
    for parameter in parameters:
        held = [name for name in (parameter.name, f"_{parameter.name}") if name in vars(sampler)]
        if parameter.kind is parameter.POSITIONAL_ONLY or not (_is_size(parameter.name) or held):
            return None
        given[parameter.name] = size if _is_size(parameter.name) else vars(sampler)[held[0]]
    return Constructed(sampler, type(sampler)(**given), size)


def _numbers(sampler: Any) -> dict[str, Any]:
    held = vars(sampler).items()
    return {name: value for name, value in held if isinstance(value, (int, float)) and not _is_size(name)}


def _is_size(name: str) -> bool:
    return name.strip("_").lower() in _NAMES


def one_pass(sampler: Iterable[list[Any]], size: int) -> Pass:
    """Returns the lists of one pass, up to `CHECKED_KEYS` keys, and whether these are all."""
    most = max(CHECKED_KEYS // size, 1)
    found = [list(keys) for keys in itertools.islice(sampler, most + 1)]
    return found[:most], len(found) <= most


def _follows(lists: Sequence[Sequence[Any]], users: Sequence[Sequence[Any]], size: int, *, compare: bool) -> bool:
    """Returns whether most lists have the requested size and, with `compare`, share enough keys with the user's."""
    count = sum(map(len, lists))
    full = sum(len(each) for each in lists if len(each) == size)
    if not lists or max(map(len, lists)) > size or full < FULL_RATIO * count:
        return False
    keys, theirs = (set(itertools.chain.from_iterable(each)) for each in (lists, users))
    return not compare or len(keys & theirs) >= SAME_RATIO * max(len(keys), len(theirs))


WINDOW_BATCHES, LEAST_WINDOWS = 50, 4
"""Maximum number of batches in a window, and minimum number of windows in a pass: the values of transformers 5.23
(`get_length_grouped_indices`). With a single window, every epoch would have the same batches."""


class LengthBatches:
    """Batches of the keys that a sampler draws, each of samples of similar length, in an order that stays random.

    As in the `LengthGroupedSampler` of transformers, only the samples of one window are sorted by length. The batches
    of a window come in the order in which the sampler drew the first key of each. It draws no random numbers, so the
    sampler's generator determines the batches of each pass. The keys that do not fill a batch are the last ones drawn.

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
            keys = drawn[first:last]
            lengths = [self._length_of(key) for key in keys]
            by_length = sorted(range(len(keys)), key=lengths.__getitem__)  # equal lengths stay in the order drawn
            batches = [sorted(by_length[at : at + size]) for at in range(0, len(keys), size)]
            yield from ([keys[place] for place in batch] for batch in sorted(batches))
        if len(drawn) > full * size and not self.drop_last:
            yield drawn[full * size :]

    def __len__(self) -> int:
        total = len(self.sampler)
        return total // self.batch_size if self.drop_last else -(-total // self.batch_size)
