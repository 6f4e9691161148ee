"""Padded loader: the user's DataLoader with batches that are padded to a multiple.

Only the user's collate function knows with what a tensor is padded. A collate function of `transformers` can be asked
for another padding by its attribute `pad_to_multiple_of`; it is set on a copy.
"""

import copy
from typing import Any

from torch.utils.data import DataLoader

from autofit.core.errors import WorkloadError
from autofit.workloads.dataloaders import overridden_iteration
from autofit.workloads.tree import safe_getattr

ATTRIBUTE = "pad_to_multiple_of"
_NONE = object()


def fixed_padding(loader: Any) -> str:
    """Returns why the batches of a loader cannot be padded to a multiple; "" if they can."""
    if not isinstance(loader, DataLoader):
        return "the loader yields ready batches"
    if overridden := overridden_iteration(loader):
        return overridden
    collate = loader.collate_fn
    found = getattr(collate, ATTRIBUTE, _NONE)
    if found is _NONE or copy.copy(collate) is collate:  # a function cannot be copied
        name = safe_getattr(collate, "__qualname__") or type(collate).__name__
        return f"the collate function {name} has no {ATTRIBUTE}, so the value to pad with is not known"
    return "" if found in (None, 0, 1) else f"the collate function already pads to a multiple of {found}"


def padded_loader(loader: Any, multiple: int) -> DataLoader[Any]:
    """Returns a copy of a loader whose batches are padded to a multiple of `multiple`. The loader is not changed.

    The copy shares the data set and the samplers.

    Raises:
        WorkloadError: see `fixed_padding`.
    """
    if reason := fixed_padding(loader):
        raise WorkloadError(
            f"batches padded to a multiple of {multiple} were requested, but {reason}; expected a DataLoader whose "
            f"collate function has the attribute {ATTRIBUTE}"
        )
    found: DataLoader[Any] = copy.copy(loader)
    collate = copy.copy(loader.collate_fn)
    setattr(collate, ATTRIBUTE, multiple)
    found.collate_fn = collate
    found._iterator = None  # persistent workers belong to the user's loader
    return found
