"""DataLoaders: what makes batches from each kind of DataLoader, and how to make the DataLoader again.

A DataLoader makes batches from samples, so any batch is made from its data set and its collate function, and its own
iterator is never touched; without batching it gives ready batches.
"""

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from autofit.workloads.batch_maker import BatchMaker, Options
from autofit.workloads.ready_batches import ReadyBatches
from autofit.workloads.sample_batches import Recipe, SampleBatches
from autofit.workloads.samplers import Rechunked, batch_sampler_keys, sampler_keys
from autofit.workloads.streams import STREAM_BATCHES, known_length, read
from autofit.workloads.tree import Batch, concat

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


def dataloader_maker(loader: DataLoader[Any], options: Options) -> BatchMaker:
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


def _map_recipe(loader: DataLoader[Any], batch_sampler: Any, scan: int, *, listed: bool) -> Recipe:
    """Returns the recipe of a map-style data set; `listed` when it takes lists of keys and gives batches."""
    dataset: Any = loader.dataset
    collate: Any = loader.collate_fn
    many = getattr(dataset, "__getitems__", None)  # torch's own fetcher prefers it too
    plain = type(batch_sampler) is BatchSampler
    notes = _subclass_note(loader)
    if plain:
        keys, length = sampler_keys(batch_sampler.sampler, dataset, scan)
        user_size = int(batch_sampler.batch_size)
    else:
        keys, length, user_size, more = batch_sampler_keys(batch_sampler, dataset, scan)
        notes += more
    drop_last = bool(getattr(batch_sampler, "drop_last", False))

    def make(chosen: list[Any]) -> Batch:
        if listed:
            return collate(dataset[chosen])
        return collate(many(chosen) if callable(many) else [dataset[key] for key in chosen])

    def rebuild(size: int) -> DataLoader[Any]:
        if plain and not listed:
            return _again(loader, batch_size=size, sampler=batch_sampler.sampler, drop_last=drop_last)
        chunks = Rechunked(batch_sampler, size, user_size, drop_last)
        return _again(loader, **({"batch_size": None, "sampler": chunks} if listed else {"batch_sampler": chunks}))

    def sample(key: Any) -> Any:
        return dataset[[key]] if listed else dataset[key]

    join = concat if listed else collate
    return Recipe(keys, sample, make, join, rebuild, user_size, length, drop_last, notes)


def _of_stream(loader: DataLoader[Any], options: Options) -> BatchMaker:
    """Returns the maker for a data set that can only be iterated: a bounded number of samples is held."""
    dataset, user_size, collate = loader.dataset, loader.batch_size, loader.collate_fn
    if user_size is None:
        held, ended, notes = read(dataset, STREAM_BATCHES, "batches")
        ready = [collate(item) for item in held]
        return ReadyBatches(loader, range(len(ready)), ready.__getitem__, options, complete=ended, notes=notes)
    samples, ended, notes = read(dataset, min(options.scan, max(_STREAM_SAMPLES, user_size)), "samples")
    length = known_length(dataset)
    recipe = Recipe(
        keys=range(len(samples)),
        sample=samples.__getitem__,
        make=lambda chosen: collate([samples[at] for at in chosen]),
        collate=collate,
        rebuild=lambda size: _again(loader, batch_size=size, drop_last=loader.drop_last),
        user_batch_size=user_size,
        length=len(samples) if length is None and ended else length,
        drop_last=loader.drop_last,
        notes=notes + _subclass_note(loader),
    )
    return SampleBatches(loader, recipe, options)


def _again(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """Returns a new DataLoader with everything the user set, but for `changes`."""
    return DataLoader(loader.dataset, **{name: getattr(loader, name) for name in _KEPT}, **changes)


def _subclass_note(loader: DataLoader[Any]) -> tuple[str, ...]:
    if type(loader).__iter__ is DataLoader.__iter__:
        return ()
    return (f"{type(loader).__name__} iterates in its own way: other batch sizes come from a plain DataLoader",)
