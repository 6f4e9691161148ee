"""Recipe: how a DataLoader makes batches from samples, and how to make it again with another batch size."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from inspect import signature
from itertools import chain
from statistics import fmean
from typing import Any, Self

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from autofit.workloads.batch_algebra import concat
from autofit.workloads.batches import overridden_iteration
from autofit.workloads.counted_batches import Collating, KeyLists
from autofit.workloads.lengths import LengthOf
from autofit.workloads.resized_samplers import (
    LengthBatches,
    Pass,
    Rechunked,
    Share,
    all_keys,
    draws_at_random,
    one_pass,
    resized,
    sampler_keys,
)
from autofit.workloads.streams import known_length, read
from autofit.workloads.tree import Batch

_STREAM_SAMPLES = 512  # number of samples read from an iterable data set
_BATCHING = ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")
_KEPT = tuple(name for name in signature(DataLoader).parameters if name not in _BATCHING)
"""Arguments of a DataLoader that say which samples a batch has, and the others, which are also its attributes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a DataLoader makes batches from samples, and how to make it again with another batch size.

    Attributes:
        loader: the user's loader.
        data: its data set, or the samples that were read of an iterable one.
        keys: keys of all samples that may be drawn.
        lists: returns the keys of each batch of the loader at a size.
        length: number of samples in one pass. None if it is unknown.
        user_batch_size: the user's batch size.
        drop_last: whether an incomplete last batch is dropped.
        fixed_order: why batches cannot be grouped by length; "" if they can.
        listed: whether the data set takes lists of keys and returns batches.
        grouped: whether a rule, such as a custom batch sampler, decides which samples are batched together.
        resizes: whether lists of another size follow the rule by which the user's lists are made.
        at_random: whether any samples may be batched together.
        notes: notes for the user.
        uneven: keys of the user's batches, if these have no usual size; else ().
    """

    loader: DataLoader[Any]
    data: Any
    keys: Sequence[Any]
    lists: Callable[[int], Iterable[list[Any]]]
    length: int | None
    user_batch_size: int
    drop_last: bool
    fixed_order: str
    listed: bool = False
    grouped: bool = False
    resizes: bool = True
    at_random: bool = False
    notes: tuple[str, ...] = ()
    uneven: Sequence[list[Any]] = ()

    @classmethod
    def of(cls, loader: DataLoader[Any], scan: int) -> Self:
        """Returns the recipe of a loader over samples, of which at most `scan` may be read.

        A loader over an iterable data set has a batch size.
        """
        if isinstance(loader.dataset, IterableDataset):
            found = cls._of_stream(loader, scan)
        else:
            listed = isinstance(loader.sampler, BatchSampler)
            batch_sampler: Any = loader.sampler if listed else loader.batch_sampler
            make = cls._of_torchs if type(batch_sampler) is BatchSampler else cls._of_custom
            found = replace(make(loader, batch_sampler, scan), listed=listed)
        if overridden := overridden_iteration(loader):
            note = f"{overridden}: other batch sizes use a plain DataLoader"
            return replace(found, notes=(note, *found.notes), fixed_order=overridden)
        return found

    @classmethod
    def _of_stream(cls, loader: DataLoader[Any], scan: int) -> Self:
        """Returns the recipe for an iterable data set. A limited number of its samples is held in memory."""
        size, drop_last, length = loader.batch_size, loader.drop_last, known_length(loader.dataset)
        assert size is not None, "without it the data set yields ready batches"
        samples, ended, notes = read(loader.dataset, min(scan, max(_STREAM_SAMPLES, size)), "samples")
        return cls(
            loader=loader,
            data=samples,
            keys=range(len(samples)),
            lists=lambda size: BatchSampler(range(len(samples)), size, drop_last),
            length=len(samples) if length is None and ended else length,
            user_batch_size=size,
            drop_last=drop_last,
            fixed_order="an iterable data set yields its samples in its own order",
            notes=notes,
        )

    @classmethod
    def _of_torchs(cls, loader: DataLoader[Any], batch_sampler: BatchSampler, scan: int) -> Self:
        """Returns the recipe for torch's own `BatchSampler`: the keys of its sampler in order, cut into lists."""
        sampler, drop_last = batch_sampler.sampler, bool(batch_sampler.drop_last)
        keys, length = sampler_keys(sampler, loader.dataset, scan)
        free = type(sampler) in (RandomSampler, SequentialSampler)
        return cls(
            loader=loader,
            data=loader.dataset,
            keys=keys,
            lists=lambda size: BatchSampler(sampler, size, drop_last),
            length=length,
            user_batch_size=int(batch_sampler.batch_size),
            drop_last=drop_last,
            fixed_order="" if free else f"{type(sampler).__name__} decides their order",
            at_random=draws_at_random(sampler),
        )

    @classmethod
    def _of_custom(cls, loader: DataLoader[Any], batch_sampler: Any, scan: int) -> Self:
        """Returns the recipe for a batch sampler of the user's."""
        drawn, ended, _ = read(batch_sampler, scan, "batches of keys")
        keys = list(chain.from_iterable(drawn))
        size, notes, uneven = _usual_size(drawn, type(batch_sampler).__name__) if keys else (1, (), ())
        drop_last = bool(getattr(batch_sampler, "drop_last", False))

        @cache
        def user_pass() -> Pass:
            return one_pass(batch_sampler, size)

        @cache
        def lists(wanted: int) -> Iterable[list[Any]]:
            return batch_sampler if wanted == size else resized(batch_sampler, wanted, size, drop_last, user_pass)

        return cls(
            loader=loader,
            data=loader.dataset,
            keys=all_keys(keys, ended, loader.dataset) if keys else [],
            lists=lists,
            length=len(keys) if ended or not keys else known_length(loader.dataset),
            user_batch_size=size,
            drop_last=drop_last,
            fixed_order=f"{type(batch_sampler).__name__} decides which samples are batched together",
            grouped=True,
            resizes=not keys or bool(uneven) or type(lists(size // 2 or 2)) is not Rechunked,
            notes=notes,
            uneven=uneven,
        )

    @property
    def custom_iter(self) -> bool:
        """Whether the user's loader overrides `DataLoader.__iter__`."""
        return bool(overridden_iteration(self.loader))

    @property
    def fixed_loading(self) -> str:
        """Why the loader keeps its worker processes; "" if it can be made with others."""
        if isinstance(self.loader.dataset, IterableDataset):
            return "each worker process would yield all of an iterable data set, unless the data set splits itself"
        if self.loader.worker_init_fn is not None and not self.custom_iter:
            return "its worker_init_fn prepares worker processes, which may depend on their number"
        return overridden_iteration(self.loader)

    def sample(self, key: Any) -> Any:
        """Returns a sample; a batch of one if the data set takes lists of keys."""
        return self.data[[key]] if self.listed else self.data[key]

    def fetch(self, keys: list[Any]) -> Any:
        """Returns the argument of `join`: the samples, or the keys if the data set takes lists of them."""
        if self.listed:
            return keys
        many = getattr(self.data, "__getitems__", None)  # torch's own fetcher also prefers it
        return many(keys) if callable(many) else [self.data[key] for key in keys]

    def join(self, fetched: Any) -> Batch:
        """Returns the batch of what `fetch` returned."""
        return self.loader.collate_fn(self.data[fetched] if self.listed else fetched)

    def make(self, keys: list[Any]) -> Batch:
        """Returns the batch of the samples with these keys."""
        return self.join(self.fetch(keys))

    def repeated(self, sample: Any, size: int) -> Batch:
        """Returns a batch of one sample, repeated."""
        return (concat if self.listed else self.loader.collate_fn)([sample] * size)

    def by_length(self, length_of: LengthOf) -> Self:
        """Returns the recipe of batches of similar length. Only without a `fixed_order`."""
        batch_sampler: Any = self.loader.sampler if self.listed else self.loader.batch_sampler

        def lists(size: int) -> LengthBatches:
            return LengthBatches(batch_sampler.sampler, length_of, size, self.drop_last)

        return replace(self, lists=lists, grouped=True, at_random=False)

    def rebuild(self, size: int, changes: Mapping[str, Any], by_rows: bool | None = None) -> DataLoader[Any]:
        """Returns a new DataLoader like the user's.

        Args:
            size: its batch size.
            changes: arguments to replace.
            by_rows: None, or how its samples are counted (`Collating`).
        """
        loader, lists = self.loader, self.lists(size)
        given = {name: getattr(loader, name) for name in _KEPT} | dict(changes)
        if by_rows is not None:
            given["collate_fn"] = Collating(loader.collate_fn, by_rows)
            given["dataset"] = KeyLists(loader.dataset) if self.listed else loader.dataset
        if self.listed:
            given |= {"batch_size": None, "sampler": lists}
        elif isinstance(loader.dataset, IterableDataset):
            given |= {"batch_size": size, "drop_last": self.drop_last}
        elif type(lists) is BatchSampler:
            given |= {"batch_size": size, "sampler": lists.sampler, "drop_last": self.drop_last}
        else:
            given["batch_sampler"] = lists
        return DataLoader(**given)


def shared(loader: Any, number: int, count: int) -> Any:
    """Returns a loader of the samples that belong to one of several ranks.

    A `DataLoader` that draws all samples, in order or at random, is made again with a sampler of its part. Any other
    loader is returned as it is: its sampler, or its data, is of this rank already.

    Args:
        loader: the user's loader.
        number: number of this rank, from 0.
        count: number of ranks.
    """
    if type(loader) is not DataLoader or type(loader.batch_sampler) is not BatchSampler:
        return loader
    lists, samples = loader.batch_sampler, loader.dataset
    sampler: Any = lists.sampler
    whole = type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == known_length(samples)
    if type(sampler) is not SequentialSampler and not whole:
        return loader
    part = Share(samples, count, number, shuffle=whole, drop_last=lists.drop_last)
    given = {name: getattr(loader, name) for name in _KEPT}
    return DataLoader(**given, batch_size=lists.batch_size, sampler=part, drop_last=lists.drop_last)


def _usual_size(drawn: Sequence[list[Any]], name: str) -> tuple[int, tuple[str, ...], Sequence[list[Any]]]:
    """Returns the most common size of lists, notes on others, and the lists, if most have another size, else ().

    The size is then their mean, rounded.
    """
    sizes = [len(keys) for keys in drawn]
    [(usual, times)] = Counter(sizes).most_common(1)
    # The last list of a pass is often short. A short list before it results from a rule of the sampler.
    if len(set(sizes[:-1])) <= 1:
        return usual, (), ()
    made = f"{name} makes batches of {min(sizes)} to {max(sizes)} samples"
    if 2 * times > len(sizes):
        note = (
            f"{made}: batches of {usual} are measured as the baseline, and a step with a smaller batch has fewer "
            "samples than the plan states"
        )
        return usual, (note,), ()
    mean = max(round(fmean(sizes)), 1)
    note = f"{made}: they stay as they are, and the plan states their mean, {mean}"
    return mean, (note,), [list(keys) for keys in drawn if keys]
