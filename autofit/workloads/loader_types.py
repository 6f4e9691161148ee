"""Loader types: what can be iterated over batches, and what is often passed instead."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from autofit.core.errors import WorkloadError


def checked_loader(loader: object) -> Iterable[Any]:
    """Returns the loader if its type can be iterated over batches. Nothing is read from it.

    Raises:
        WorkloadError: it is a data set or a single batch, or cannot be iterated.
    """
    if isinstance(loader, DataLoader):
        return loader
    if isinstance(loader, Dataset):
        raise WorkloadError(
            f"found a data set ({type(loader).__name__}) as loader; expected batches; "
            "wrap it: DataLoader(dataset, batch_size=...)"
        )
    if isinstance(loader, (torch.Tensor, Mapping, str, bytes)) or not isinstance(loader, Iterable):
        raise WorkloadError(
            f"found a loader of type {type(loader).__name__}; expected a DataLoader, a list of batches "
            "or another re-iterable of batches; for data in memory use DataLoader(TensorDataset(x, y), "
            "batch_size=...)"
        )
    return loader
