"""A transformers model that packs the batches of its training, outside a `TrainStep`."""

import torch
from torch import nn

from autofit.core.errors import UsageError
from autofit.strategies.packable_models import lack, mixing, pack_for_good, packable_models

PACKING = "packing"
_LENGTHS = (8, 3, 4)
"""Lengths of the samples that are packed to see that the model keeps them apart."""


def pack(model: nn.Module) -> None:
    """Lets a model pack its batches in training, as long as it exists.

    Raises:
        UsageError: the model cannot run packed rows, or mixes the samples of a row.
    """
    reason, found = lack(model), list(packable_models(model))
    mask = torch.stack([torch.arange(max(_LENGTHS)) < length for length in _LENGTHS]).long()
    ids = torch.arange(1, max(_LENGTHS) + 1).expand_as(mask)
    if reason is None and (why := next(filter(None, (mixing(each, ids, mask) for each in found)), "")):
        reason = (
            "it does not keep the samples of a row apart with this version of transformers: tune again with it. "
            f"Found: {why}"
        )
    if reason is not None:
        raise UsageError(
            f"the plan has {PACKING}=True, and this model cannot be packed: {reason}. Pass the model that was tuned."
        )
    pack_for_good(found)
