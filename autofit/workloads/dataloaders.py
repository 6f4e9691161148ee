"""DataLoaders: what makes batches from each kind of DataLoader, and how to make the DataLoader again.

A DataLoader makes batches from samples, so any batch is made from its data set and its collate function, and its own
iterator is never touched; without batching it gives ready batches.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from autofit.workloads.batch_algebra import concat
from autofit.workloads.batch_maker import BatchMaker, BatchOptions
from autofit.workloads.counted import Collating, CollatingCounted, KeyLists
from autofit.workloads.ready_batches import ReadyBatches
from autofit.workloads.resized import Pass, Rechunked, one_pass, resized
from autofit.workloads.sample_batches import Recipe, SampleBatches
from autofit.workloads.samplers import batch_sampler_keys, draws_at_random, sampler_keys
from autofit.workloads.streams import STREAM_BATCHES, known_length, read

_STREAM_SAMPLES = 512  # samples read from a data set that can only be iterated
_KEPT = (
    "collate_fn",
    "num_workers",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "generator",
    "prefetch_factor",
    "persistent_workers",
    "pin_memory_device",
    "in_order",
)


def dataloader_maker(loader: DataLoader[Any], options: BatchOptions) -> BatchMaker:
    """Returns what makes batches from a DataLoader, of one of its five kinds."""
    if isinstance(loader.dataset, IterableDataset):
        return _of_stream(loader, options)
    if loader.batch_sampler is not None:
        return SampleBatches(loader, _map_recipe(loader, loader.batch_sampler, options.scan, listed=False), options)
    if isinstance(loader.sampler, BatchSampler):  # the data set itself takes a list of keys
        return SampleBatches(loader, _map_recipe(loader, loader.sampler, options.scan, listed=True), options)
    dataset: Any = loader.dataset
    keys, _ = sampler_keys(loader.sampler, dataset, options.scan)
    return ReadyBatches(loader, keys, lambda key: loader.collate_fn(dataset[key]), options)


class _KeyDraw(NamedTuple):
    """The lists of keys that a DataLoader draws samples by.

    Attributes:
        keys: of all samples that may be drawn.
        length: samples in one pass; None where that is not known.
        user_size: the batch size that the user has set.
        drop_last: whether a last list that is short is left out.
        lists: returns the lists of another size.
        grouped: whether a batch sampler of the user's own says which samples meet.
        resizes: whether lists of another size keep the rule by which the user's are made.
        at_random: whether any samples may meet in a list.
        notes: what a person should know.
    """

    keys: Sequence[Any]
    length: int | None
    user_size: int
    drop_last: bool
    lists: Callable[[int], Iterable[list[Any]]]
    grouped: bool
    resizes: bool
    at_random: bool
    notes: tuple[str, ...]


def _plain_draw(batch_sampler: BatchSampler, dataset: Any, scan: int) -> _KeyDraw:
    """Returns how torch's own batch sampler draws: the keys of its sampler in order, cut to lists."""
    sampler, drop_last = batch_sampler.sampler, bool(batch_sampler.drop_last)
    keys, length = sampler_keys(sampler, dataset, scan)

    @cache
    def lists(size: int) -> Iterable[list[Any]]:
        return BatchSampler(sampler, size, drop_last)

    size, at_random = int(batch_sampler.batch_size), draws_at_random(sampler)
    return _KeyDraw(keys, length, size, drop_last, lists, False, True, at_random, notes=())


def _own_draw(batch_sampler: Any, dataset: Any, scan: int) -> _KeyDraw:
    """Returns how a batch sampler of the user's own draws."""
    keys, length, user_size, notes = batch_sampler_keys(batch_sampler, dataset, scan)
    drop_last = bool(getattr(batch_sampler, "drop_last", False))

    @cache
    def own() -> Pass:
        return one_pass(batch_sampler, user_size)

    @cache
    def lists(size: int) -> Iterable[list[Any]]:
        return batch_sampler if size == user_size else resized(batch_sampler, size, user_size, drop_last, own)

    resizes = not keys or type(lists(user_size // 2 or 2)) is not Rechunked
    return _KeyDraw(keys, length, user_size, drop_last, lists, True, resizes, False, notes)


class _Fetching(NamedTuple):
    """How samples become a batch: the functions of the same names in `Recipe`.

    Attributes:
        counting: by_rows -> what of the user's DataLoader is replaced so that samples are counted.
    """

    sample: Callable[[Any], Any]
    fetch: Callable[[list[Any]], Any]
    join: Callable[[Any], Any]
    collate: Callable[[list[Any]], Any]
    counting: Callable[[bool], dict[str, Any]]


def _by_sample(loader: DataLoader[Any]) -> _Fetching:
    """Returns the reading of a data set that takes one key."""
    dataset: Any = loader.dataset
    many = getattr(dataset, "__getitems__", None)  # torch's own fetcher prefers it too

    def fetch(chosen: list[Any]) -> Any:
        return many(chosen) if callable(many) else [dataset[key] for key in chosen]

    collate = loader.collate_fn
    return _Fetching(lambda key: dataset[key], fetch, collate, collate, lambda by_rows: _counting(loader, by_rows))


def _by_list(loader: DataLoader[Any]) -> _Fetching:
    """Returns the reading of a data set that takes a list of keys and gives a batch."""
    dataset: Any = loader.dataset
    collate: Any = loader.collate_fn
    return _Fetching(
        sample=lambda key: dataset[[key]],
        fetch=lambda chosen: chosen,
        join=lambda chosen: collate(dataset[chosen]),
        collate=concat,
        counting=lambda by_rows: {"dataset": KeyLists(dataset), "collate_fn": CollatingCounted(collate)},
    )


def _map_recipe(loader: DataLoader[Any], batch_sampler: Any, scan: int, *, listed: bool) -> Recipe:
    """Returns the recipe of a map-style data set; `listed` when it takes lists of keys and gives batches."""
    plain = type(batch_sampler) is BatchSampler
    draw = (_plain_draw if plain else _own_draw)(batch_sampler, loader.dataset, scan)
    reading = (_by_list if listed else _by_sample)(loader)

    def again(size: int, changes: Mapping[str, Any]) -> DataLoader[Any]:
        return _again(loader, draw.lists(size), listed=listed, changes=changes)

    return Recipe(
        keys=draw.keys,
        sample=reading.sample,
        fetch=reading.fetch,
        join=reading.join,
        collate=reading.collate,
        rebuild=lambda size: again(size, {}),
        count=lambda size, by_rows: again(size, reading.counting(by_rows)),
        lists=None if draw.at_random else draw.lists,
        grouped=draw.grouped,
        resizes=draw.resizes,
        user_batch_size=draw.user_size,
        length=draw.length,
        drop_last=draw.drop_last,
        own_way=_own_way(loader),
        notes=_subclass_note(loader) + draw.notes,
    )


def _of_stream(loader: DataLoader[Any], options: BatchOptions) -> BatchMaker:
    """Returns the maker for a data set that can only be iterated: a bounded number of samples is held."""
    dataset, user_size, collate = loader.dataset, loader.batch_size, loader.collate_fn
    if user_size is None:
        held, ended, notes = read(dataset, STREAM_BATCHES, "batches")
        ready = [collate(item) for item in held]
        return ReadyBatches(loader, range(len(ready)), ready.__getitem__, options, complete=ended, notes=notes)
    samples, ended, notes = read(dataset, min(options.scan, max(_STREAM_SAMPLES, user_size)), "samples")
    length = known_length(dataset)

    def rebuild(size: int, changes: Mapping[str, Any]) -> DataLoader[Any]:
        return _with(loader, changes, batch_size=size, drop_last=loader.drop_last)

    recipe = Recipe(
        keys=range(len(samples)),
        sample=samples.__getitem__,
        fetch=lambda chosen: [samples[at] for at in chosen],
        join=collate,
        collate=collate,
        rebuild=lambda size: rebuild(size, {}),
        count=lambda size, by_rows: rebuild(size, _counting(loader, by_rows)),
        lists=lambda size: BatchSampler(range(len(samples)), size, loader.drop_last),
        grouped=False,
        resizes=True,
        user_batch_size=user_size,
        length=len(samples) if length is None and ended else length,
        drop_last=loader.drop_last,
        own_way=_own_way(loader),
        notes=notes + _subclass_note(loader),
    )
    return SampleBatches(loader, recipe, options)


def _again(loader: DataLoader[Any], lists: Any, *, listed: bool, changes: Mapping[str, Any]) -> DataLoader[Any]:
    """Returns a new DataLoader over the same data that draws `lists` of keys, with everything else that the user set.

    Args:
        loader: the user's.
        lists: a batch sampler.
        listed: whether the data set takes lists of keys.
        changes: what is not as the user set it.
    """
    if listed:
        return _with(loader, changes, batch_size=None, sampler=lists)
    if type(lists) is BatchSampler:
        return _with(loader, changes, batch_size=lists.batch_size, sampler=lists.sampler, drop_last=lists.drop_last)
    return _with(loader, changes, batch_sampler=lists)


def _counting(loader: DataLoader[Any], by_rows: bool) -> dict[str, Any]:
    return {"collate_fn": Collating(loader.collate_fn, by_rows)}


def _with(loader: DataLoader[Any], changes: Mapping[str, Any], **more: Any) -> DataLoader[Any]:
    """Returns a new DataLoader with everything the user set, but for the changes."""
    kept = {name: getattr(loader, name) for name in ("dataset", *_KEPT)}
    return DataLoader(**{**kept, **changes, **more})


def _own_way(loader: DataLoader[Any]) -> bool:
    return type(loader).__iter__ is not DataLoader.__iter__


def _subclass_note(loader: DataLoader[Any]) -> tuple[str, ...]:
    if not _own_way(loader):
        return ()
    return (f"{type(loader).__name__} iterates in its own way: other batch sizes come from a plain DataLoader",)
