"""Samplers: the keys of the samples that a DataLoader's sampler draws."""

import itertools
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

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


class DrawnLists(NamedTuple):
    """What a custom batch sampler draws.

    Attributes:
        keys: keys of all samples that may be drawn.
        length: number of samples in one pass. None if it is unknown.
        size: the most common number of keys in a list; with `uneven`, the mean, rounded.
        notes: notes for the user.
        uneven: the lists that were read, if most differ in size from the most common one; else ().
    """

    keys: Sequence[Any]
    length: int | None
    size: int
    notes: tuple[str, ...] = ()
    uneven: Sequence[list[Any]] = ()


def batch_sampler_keys(batch_sampler: Any, dataset: Any, limit: int) -> DrawnLists:
    """Returns what a custom batch sampler draws, from at most `limit` of its lists."""
    lists, ended, _ = read(batch_sampler, limit, "batches of keys")
    drawn = list(itertools.chain.from_iterable(lists))
    sizes = [len(chunk) for chunk in lists]
    if not drawn:
        return DrawnLists([], 0, 1)
    [(usual, times)] = Counter(sizes).most_common(1)
    found = DrawnLists(_all_keys(drawn, ended, dataset), len(drawn) if ended else known_length(dataset), usual)
    # The last list of a pass is often short. A short list before it results from a rule of the sampler.
    if len(set(sizes[:-1])) <= 1:
        return found
    made = f"{type(batch_sampler).__name__} makes batches of {min(sizes)} to {max(sizes)} samples"
    if 2 * times > len(sizes):
        note = (
            f"{made}: batches of {usual} are measured as the baseline, and a step with a smaller batch has fewer "
            "samples than the plan states"
        )
        return found._replace(notes=(note,))
    mean = max(round(fmean(sizes)), 1)
    note = f"{made}: they stay as they are, and the plan states their mean, {mean}"
    return found._replace(size=mean, notes=(note,), uneven=[list(chunk) for chunk in lists if chunk])


def _all_keys(drawn: list[Any], ended: bool, dataset: Any) -> Sequence[Any]:
    """Returns the keys to choose samples from, given the first keys that a sampler drew."""
    total = known_length(dataset)
    if ended or total is None or not all(isinstance(key, int) for key in drawn):
        return drawn
    return range(total)
