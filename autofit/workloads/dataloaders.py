"""DataLoaders: selects what makes batches for each kind of loader, and rebuilds the DataLoader at other sizes.

A DataLoader makes batches from samples. Batches of any size are therefore made from its data set and collate function,
and its own iterator is never used. With `batch_size=None` it yields ready batches.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from autofit.core.loading import Loading
from autofit.workloads.batch_algebra import concat
from autofit.workloads.batches import BatchOptions, BatchSource, checked_loader, overridden_iteration
from autofit.workloads.counted_batches import Collating, CollatingCounted, KeyLists
from autofit.workloads.lengths import LengthOf
from autofit.workloads.ready_batches import ReadyBatches
from autofit.workloads.resized_samplers import (
    LengthBatches,
    Pass,
    Rechunked,
    batch_sampler_keys,
    draws_at_random,
    one_pass,
    resized,
    sampler_keys,
)
from autofit.workloads.sample_batches import Recipe, SampleBatches
from autofit.workloads.streams import STREAM_BATCHES, known_length, read
from autofit.workloads.uneven_batches import UnevenBatches

_STREAM_SAMPLES = 512  # number of samples read from an iterable data set
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


def source_of(loader: object, *, worst_case: object = None, seed: int = 0, scan: int = 2048) -> BatchSource:
    """Returns the source for a loader.

    Args:
        loader: a DataLoader, a list or tuple of batches, or any object that can be iterated repeatedly over
            batches.
        worst_case: None (scan the data), a callable `size -> batch`, or one sample that is repeated and
            collated (for ready batches: one batch that is repeated or cut).
        seed: seed of the private generator that chooses samples.
        scan: maximum number of samples whose length is measured.

    Raises:
        WorkloadError: the loader is empty, a one-shot iterator or not a loader, or its batches hold no tensor.
    """
    return _opened(checked_loader(loader), BatchOptions(worst_case, seed, max(scan, 2)))


def _opened(loader: Iterable[Any], options: BatchOptions) -> BatchSource:
    if isinstance(loader, DataLoader):
        return _of_dataloader(loader, options)
    if isinstance(loader, (list, tuple)):
        return ReadyBatches(loader, range(len(loader)), loader.__getitem__, options)
    held, ended, notes = read(loader, STREAM_BATCHES, "batches")
    return ReadyBatches(loader, range(len(held)), held.__getitem__, options, complete=ended, notes=notes)


def _of_dataloader(loader: DataLoader[Any], options: BatchOptions) -> BatchSource:
    """Returns the source for a DataLoader, which is of one of six kinds."""
    if isinstance(loader.dataset, IterableDataset):
        return _of_stream(loader, options)
    listed = isinstance(loader.sampler, BatchSampler)  # the data set takes a list of keys
    if listed or loader.batch_sampler is not None:
        recipe = _map_recipe(loader, loader.sampler if listed else loader.batch_sampler, options.scan, listed=listed)
        return UnevenBatches(loader, recipe, options) if recipe.uneven else SampleBatches(loader, recipe, options)
    dataset: Any = loader.dataset
    keys, _ = sampler_keys(loader.sampler, dataset, options.scan)
    return ReadyBatches(loader, keys, lambda key: loader.collate_fn(dataset[key]), options)


class _KeyDraw(NamedTuple):
    """How a DataLoader draws the keys of the samples of its batches, as one list of keys per batch.

    Attributes:
        keys: keys of all samples that may be drawn.
        length: number of samples in one pass. None if it is unknown.
        user_size: the user's batch size.
        drop_last: whether an incomplete last list is dropped.
        lists: returns the lists at another size.
        grouped: whether a batch sampler of the user's decides which samples are batched together.
        resizes: whether lists of another size follow the rule by which the user's lists are made.
        at_random: whether any samples may be batched together.
        notes: notes for the user.
        fixed_order: why batches cannot be grouped by length; "" if they can.
        by_length: returns the lists of samples of similar length at a size. None with `fixed_order`.
        uneven: the user's lists, if they have no usual size; else ().
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
    fixed_order: str
    by_length: Callable[[LengthOf, int], Iterable[list[Any]]] | None = None
    uneven: Sequence[list[Any]] = ()


def _plain_draw(batch_sampler: BatchSampler, dataset: Any, scan: int) -> _KeyDraw:
    """Describes torch's own `BatchSampler`: the keys of its sampler in order, cut into lists."""
    sampler, drop_last = batch_sampler.sampler, bool(batch_sampler.drop_last)
    keys, length = sampler_keys(sampler, dataset, scan)

    @cache
    def lists(size: int) -> Iterable[list[Any]]:
        return BatchSampler(sampler, size, drop_last)

    def by_length(length_of: LengthOf, size: int) -> Iterable[list[Any]]:
        return LengthBatches(sampler, length_of, size, drop_last)

    size, at_random = int(batch_sampler.batch_size), draws_at_random(sampler)
    kept = (
        "" if type(sampler) in (RandomSampler, SequentialSampler) else f"{type(sampler).__name__} decides their order"
    )
    return _KeyDraw(keys, length, size, drop_last, lists, False, True, at_random, (), kept, None if kept else by_length)


def _user_draw(batch_sampler: Any, dataset: Any, scan: int) -> _KeyDraw:
    """Describes a custom batch sampler."""
    drawn = batch_sampler_keys(batch_sampler, dataset, scan)
    user_size = drawn.size
    drop_last = bool(getattr(batch_sampler, "drop_last", False))

    @cache
    def user_pass() -> Pass:
        return one_pass(batch_sampler, user_size)

    @cache
    def lists(size: int) -> Iterable[list[Any]]:
        return batch_sampler if size == user_size else resized(batch_sampler, size, user_size, drop_last, user_pass)

    resizes = not drawn.keys or bool(drawn.uneven) or type(lists(user_size // 2 or 2)) is not Rechunked
    kept = f"{type(batch_sampler).__name__} decides which samples are batched together"
    return _KeyDraw(
        drawn.keys,
        drawn.length,
        user_size,
        drop_last,
        lists,
        True,
        resizes,
        False,
        drawn.notes,
        kept,
        None,
        drawn.uneven,
    )


class _Fetching(NamedTuple):
    """How samples become a batch: the functions of the same names in `Recipe`.

    Attributes:
        counting: by_rows -> DataLoader arguments to replace so that samples are counted.
    """

    sample: Callable[[Any], Any]
    fetch: Callable[[list[Any]], Any]
    join: Callable[[Any], Any]
    collate: Callable[[list[Any]], Any]
    counting: Callable[[bool], dict[str, Any]]


def _by_sample(loader: DataLoader[Any]) -> _Fetching:
    """Describes fetching from a data set that takes one key."""
    dataset: Any = loader.dataset
    many = getattr(dataset, "__getitems__", None)  # torch's own fetcher also prefers it

    def fetch(chosen: list[Any]) -> Any:
        return many(chosen) if callable(many) else [dataset[key] for key in chosen]

    collate = loader.collate_fn
    return _Fetching(lambda key: dataset[key], fetch, collate, collate, lambda by_rows: _counting(loader, by_rows))


def _by_list(loader: DataLoader[Any]) -> _Fetching:
    """Describes fetching from a data set that takes a list of keys and returns a batch."""
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
    """Returns the recipe for a map-style data set. `listed`: it takes lists of keys and returns batches."""
    plain = type(batch_sampler) is BatchSampler
    draw = (_plain_draw if plain else _user_draw)(batch_sampler, loader.dataset, scan)
    if overridden := overridden_iteration(loader):
        draw = draw._replace(fixed_order=overridden, by_length=None)
    return _recipe(loader, draw, listed=listed)


def _recipe(loader: DataLoader[Any], draw: _KeyDraw, *, listed: bool) -> Recipe:
    """Returns the recipe for a map-style data set whose keys are drawn in this way."""
    fetching = (_by_list if listed else _by_sample)(loader)

    def by_length(length_of: LengthOf) -> Recipe:
        assert draw.by_length is not None, "fixed_order says that batches are not grouped"
        lists = partial(draw.by_length, length_of)
        return _recipe(loader, draw._replace(lists=lists, grouped=True, at_random=False), listed=listed)

    def rebuilt(size: int, changes: Mapping[str, Any]) -> DataLoader[Any]:
        return _rebuilt(loader, draw.lists(size), listed=listed, changes=changes)

    return Recipe(
        keys=draw.keys,
        sample=fetching.sample,
        fetch=fetching.fetch,
        join=fetching.join,
        collate=fetching.collate,
        rebuild=rebuilt,
        count=lambda size, by_rows, changes: rebuilt(size, {**changes, **fetching.counting(by_rows)}),
        lists=None if draw.at_random else draw.lists,
        grouped=draw.grouped,
        resizes=draw.resizes,
        user_batch_size=draw.user_size,
        length=draw.length,
        drop_last=draw.drop_last,
        custom_iter=bool(overridden_iteration(loader)),
        fixed_loading=_fixed_loading(loader),
        notes=_subclass_note(loader) + draw.notes,
        fixed_order=draw.fixed_order,
        by_length=by_length,
        uneven=draw.uneven,
    )


def _of_stream(loader: DataLoader[Any], options: BatchOptions) -> BatchSource:
    """Returns the source for an iterable data set. A limited number of its samples is held in memory."""
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
        rebuild=rebuild,
        count=lambda size, by_rows, changes: rebuild(size, {**changes, **_counting(loader, by_rows)}),
        lists=lambda size: BatchSampler(range(len(samples)), size, loader.drop_last),
        grouped=False,
        resizes=True,
        user_batch_size=user_size,
        length=len(samples) if length is None and ended else length,
        drop_last=loader.drop_last,
        custom_iter=bool(overridden_iteration(loader)),
        fixed_loading=_fixed_loading(loader),
        notes=notes + _subclass_note(loader),
        fixed_order="an iterable data set yields its samples in its own order",
    )
    return SampleBatches(loader, recipe, options)


def _rebuilt(loader: DataLoader[Any], lists: Any, *, listed: bool, changes: Mapping[str, Any]) -> DataLoader[Any]:
    """Returns a new DataLoader over the same data that draws `lists` of keys. Other arguments are as the user set them.

    Args:
        loader: the user's loader.
        lists: a batch sampler.
        listed: whether the data set takes lists of keys.
        changes: arguments to replace.
    """
    if listed:
        return _with(loader, changes, batch_size=None, sampler=lists)
    if type(lists) is BatchSampler:
        return _with(loader, changes, batch_size=lists.batch_size, sampler=lists.sampler, drop_last=lists.drop_last)
    return _with(loader, changes, batch_sampler=lists)


def _counting(loader: DataLoader[Any], by_rows: bool) -> dict[str, Any]:
    return {"collate_fn": Collating(loader.collate_fn, by_rows)}


def _with(loader: DataLoader[Any], changes: Mapping[str, Any], **more: Any) -> DataLoader[Any]:
    """Returns a new DataLoader with the user's arguments and the given changes."""
    kept = {name: getattr(loader, name) for name in ("dataset", *_KEPT)}
    return DataLoader(**{**kept, **changes, **more})


def _fixed_loading(loader: DataLoader[Any]) -> str:
    """Returns why a loader keeps its worker processes; "" if it can be made with others."""
    if isinstance(loader.dataset, IterableDataset):
        return "each worker process would yield all of an iterable data set, unless the data set splits itself"
    if overridden := overridden_iteration(loader):
        return overridden
    if loader.worker_init_fn is not None:
        return "its worker_init_fn prepares worker processes, which may depend on their number"
    return ""


def _subclass_note(loader: DataLoader[Any]) -> tuple[str, ...]:
    overridden = overridden_iteration(loader)
    return (f"{overridden}: other batch sizes use a plain DataLoader",) if overridden else ()


def loader_changes(loading: Loading | None) -> dict[str, Any]:
    """Returns the arguments of a DataLoader to replace; none if the loader keeps the user's settings."""
    if loading is None or loading.kept:
        return {}
    refused = {} if loading.workers else {"timeout": 0, "multiprocessing_context": None}  # without workers
    return {**loading.arguments, **refused}
