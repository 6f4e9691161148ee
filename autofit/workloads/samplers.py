"""Samplers: the keys of the samples that a DataLoader's sampler draws."""

import itertools
from collections import Counter
from collections.abc import Sequence
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
from autofit.workloads.streams import known_length, read


def draws_at_random(sampler: Any) -> bool:
    """Returns whether any samples may be in the same batch, so that the order of the sampler does not matter."""
    if type(sampler) is DistributedSampler:
        return bool(sampler.shuffle)
    return type(sampler) in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def sampler_keys(sampler: Any, dataset: Any, limit: int) -> tuple[Sequence[Any], int | None]:
    """Returns the keys that a sampler draws from, and how many it draws in one pass (None if unknown)."""
    if type(sampler) in (SequentialSampler, RandomSampler, DistributedSampler):
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
    keys = _all_keys(drawn, ended, dataset)
    return keys, len(drawn) if ended else known_length(sampler) or known_length(dataset)


def batch_sampler_keys(
    batch_sampler: Any, dataset: Any, limit: int
) -> tuple[Sequence[Any], int | None, int, tuple[str, ...]]:
    """Returns the keys, number of samples per pass, most common batch size and notes of a custom batch sampler."""
    lists, ended, _ = read(batch_sampler, limit, "batches of keys")
    drawn = list(itertools.chain.from_iterable(lists))
    sizes = [len(chunk) for chunk in lists]
    if not drawn:
        return [], 0, 1, ()
    usual = Counter(sizes).most_common(1)[0][0]
    notes: tuple[str, ...] = ()
    # The last list of a pass is often short. A short list before it results from a rule of the sampler.
    if len(set(sizes[:-1])) > 1:
        notes = (
            f"{type(batch_sampler).__name__} makes batches of {min(sizes)} to {max(sizes)} samples: batches of {usual} "
            "are measured as the baseline, and a step with a smaller batch has fewer samples than the plan states",
        )
    return _all_keys(drawn, ended, dataset), len(drawn) if ended else known_length(dataset), usual, notes


def _all_keys(drawn: list[Any], ended: bool, dataset: Any) -> Sequence[Any]:
    """Returns the keys to choose samples from, given the first keys that a sampler drew."""
    total = known_length(dataset)
    if ended or total is None or not all(isinstance(key, int) for key in drawn):
        return drawn
    return range(total)
