"""Sources: selects what makes batches for each kind of loader.

A DataLoader makes batches from samples. Batches of any size are therefore made from its data set and collate function,
and its own iterator is never used. With `batch_size=None` it yields ready batches.
"""

from collections.abc import Iterable
from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from autofit.core.loading import Loading
from autofit.workloads.batches import BatchOptions, BatchSource, checked_loader
from autofit.workloads.dataloaders import Recipe
from autofit.workloads.ready_batches import ReadyBatches
from autofit.workloads.resized_samplers import sampler_keys
from autofit.workloads.sample_batches import SampleBatches, UnevenBatches
from autofit.workloads.streams import STREAM_BATCHES, read


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
    dataset: Any = loader.dataset
    streams = isinstance(dataset, IterableDataset)
    if streams and loader.batch_size is None:
        held, ended, notes = read(dataset, STREAM_BATCHES, "batches")
        ready = [loader.collate_fn(item) for item in held]
        return ReadyBatches(loader, range(len(ready)), ready.__getitem__, options, complete=ended, notes=notes)
    if streams or isinstance(loader.sampler, BatchSampler) or loader.batch_sampler is not None:
        recipe = Recipe.of(loader, options.scan)
        return (UnevenBatches if recipe.uneven else SampleBatches)(loader, recipe, options)
    keys, _ = sampler_keys(loader.sampler, dataset, options.scan)
    return ReadyBatches(loader, keys, lambda key: loader.collate_fn(dataset[key]), options)


def loader_changes(loading: Loading | None) -> dict[str, Any]:
    """Returns the arguments of a DataLoader to replace; none if the loader keeps the user's settings."""
    if loading is None or loading.kept:
        return {}
    refused = {} if loading.workers else {"timeout": 0, "multiprocessing_context": None}  # without workers
    return {**loading.arguments, **refused}
