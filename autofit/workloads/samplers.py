"""Samplers: the keys that a DataLoader's sampler draws samples by."""

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
    """Returns whether any samples may meet in a batch, so that the order of a sampler is of no use."""
    if type(sampler) is DistributedSampler:
        return bool(sampler.shuffle)
    return type(sampler) in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


def sampler_keys(sampler: Any, dataset: Any, limit: int) -> tuple[Sequence[Any], int | None]:
    """Returns the keys that a sampler draws from, and how many it draws in one pass (None: not known)."""
    if type(sampler) in (SequentialSampler, RandomSampler, DistributedSampler):
        total = known_length(getattr(sampler, "data_source", dataset))
        if total is None:
            raise WorkloadError(
                f"found a data set ({type(dataset).__name__}) without a length; expected one with __len__ and "
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
    """Returns the keys, samples in one pass, usual batch size and notes of a batch sampler of the user's own."""
    lists, ended, _ = read(batch_sampler, limit, "batches of keys")
    drawn = list(itertools.chain.from_iterable(lists))
    sizes = [len(chunk) for chunk in lists]
    if not drawn:
        return [], 0, 1, ()
    usual = Counter(sizes).most_common(1)[0][0]
    notes: tuple[str, ...] = ()
    # The last list of a pass is often short; one that is short before it comes from a rule of the sampler.
    if len(set(sizes[:-1])) > 1:
        notes = (
            f"{type(batch_sampler).__name__} makes batches of {min(sizes)} to {max(sizes)} samples: its batches of "
            f"{usual} are measured as your setting, and a step with a smaller one has fewer samples than the plan says",
        )
    return _all_keys(drawn, ended, dataset), len(drawn) if ended else known_length(dataset), usual, notes


def _all_keys(drawn: list[Any], ended: bool, dataset: Any) -> Sequence[Any]:
    """Returns the keys to choose samples from, given those a sampler drew first."""
    total = known_length(dataset)
    if ended or total is None or not all(isinstance(key, int) for key in drawn):
        return drawn
    return range(total)
