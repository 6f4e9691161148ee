"""Resized: the user's own batch sampler with another batch size, so that the rule by which it groups samples is kept.

A sampler that puts texts of like length together does so at any size. Where it keeps its size in an attribute, a copy
with another one is iterated; where its constructor takes the size, it is constructed again; else its batches are joined
or cut in its order, which parts samples that it put together.
"""

import copy
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from autofit.workloads.streams import undisturbed

CHECKED_KEYS = 200_000
"""At most this many keys of one pass over a sampler are read."""
FULL_RATIO = 0.75
"""At least this share of the keys must come in batches of exactly the wanted size. With less, the sampler ignored the
size or its groups are too small for it, and a measurement of full batches would not hold for its batches."""
SAME_RATIO = 0.5
"""At least this share of the keys must be the user's own; some samplers draw other keys in each pass."""
Pass = tuple[list[list[Any]], bool]
_NAMES = ("batch_size", "batchsize", "bsz")


class Rechunked:
    """The indices of a user's batch sampler, in its order, in lists of another size."""

    def __init__(self, sampler: Any, size: int, user_size: int, drop_last: bool) -> None:
        self.sampler, self.batch_size, self.user_size, self.drop_last = sampler, size, user_size, drop_last

    def __iter__(self) -> Iterator[list[Any]]:
        indices = itertools.chain.from_iterable(self.sampler)
        while chunk := list(itertools.islice(indices, self.batch_size)):
            if len(chunk) == self.batch_size or not self.drop_last:
                yield chunk

    def __len__(self) -> int:
        """Returns the number of lists; exact if each list of the user's sampler is full."""
        total = len(self.sampler) * self.user_size
        return total // self.batch_size if self.drop_last else -(-total // self.batch_size)


class Copied:
    """A user's batch sampler with another batch size in the attributes that hold it.

    Each pass is made by a fresh copy, so that `set_epoch` on the user's own object counts; what a pass changes (a
    counter of epochs) is written back to it.
    """

    def __init__(self, sampler: Any, names: Sequence[str], size: int) -> None:
        self.sampler, self.names, self.batch_size = sampler, tuple(names), size

    def __iter__(self) -> Iterator[list[Any]]:
        twin = self._twin()
        for keys in twin:
            self._write_back(twin)
            yield keys
        self._write_back(twin)

    def __len__(self) -> int:
        return len(self._twin())

    def _twin(self) -> Any:
        twin = copy.copy(self.sampler)
        vars(twin).update(dict.fromkeys(self.names, self.batch_size))
        return twin

    def _write_back(self, twin: Any) -> None:
        vars(self.sampler).update({name: value for name, value in vars(twin).items() if name not in self.names})


class Constructed:
    """A user's batch sampler, constructed again with another batch size.

    It follows the numbers that are set on the user's own object later, and its `set_epoch`. What else changes there may
    be made of batches of the other size.
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
    sampler: Any, size: int, user_size: int, drop_last: bool, own: Callable[[], Pass] | None = None
) -> Iterable[list[Any]]:
    """Returns the lists of a user's batch sampler at another size, by the first way that gives lists of that size.

    Args:
        sampler: the user's; iterated anew, and put back.
        size: samples of a list.
        user_size: samples of most of the user's lists.
        drop_last: whether an incomplete last list is left out where lists are joined or cut.
        own: gives one pass over the user's lists, which may take long; None: it is made here.
    """
    ways: tuple[Callable[[Any, int, int], Any], ...] = (_copied, _constructed)
    with undisturbed(sampler):
        own_lists, all_own = one_pass(sampler, user_size) if own is None else own()
        for way in ways:
            with suppress(Exception):  # the user's code, called as its author may not have meant
                if (found := way(sampler, size, user_size)) is None:
                    continue
                lists, all_found = one_pass(found, size)
                if _follows(lists, own_lists, size, compare=all_own and all_found):
                    return found  # type: ignore[no-any-return]
    return Rechunked(sampler, size, user_size, drop_last)


def _copied(sampler: Any, size: int, user_size: int) -> Copied | None:
    names = [name for name, value in vars(sampler).items() if _is_size(name) and value == user_size]
    return Copied(sampler, names, size) if names else None


def _constructed(sampler: Any, size: int, user_size: int) -> Constructed | None:
    """Returns the sampler constructed again; None where the constructor has what cannot be found on the object."""
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
    """Returns the lists of one pass, as far as they are looked at, and whether these are all."""
    most = max(CHECKED_KEYS // size, 1)
    found = [list(keys) for keys in itertools.islice(sampler, most + 1)]
    return found[:most], len(found) <= most


def _follows(lists: Sequence[Sequence[Any]], own: Sequence[Sequence[Any]], size: int, *, compare: bool) -> bool:
    """Returns whether lists have the wanted size, mostly, and hold about the keys of the user's own (`compare`)."""
    count = sum(map(len, lists))
    full = sum(len(each) for each in lists if len(each) == size)
    if not lists or max(map(len, lists)) > size or full < FULL_RATIO * count:
        return False
    keys, theirs = (set(itertools.chain.from_iterable(each)) for each in (lists, own))
    return not compare or len(keys & theirs) >= SAME_RATIO * max(len(keys), len(theirs))
