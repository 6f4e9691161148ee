"""A transformers model that packs the batches of its training, outside a `TrainStep`."""

import torch
from torch import nn

from autofit.core.errors import UsageError
from autofit.strategies.packable_models import change_of_others, lack, pack_for_good, packable_models
from autofit.strategies.packing import MOST_CHANGE

PACKING = "packing"
_LENGTHS = (8, 3, 4)
"""Lengths of the samples that are packed to see that the model keeps them apart."""


def pack(model: nn.Module) -> None:
    """Lets a model pack its batches in training, as long as it exists.

    Raises:
        UsageError: the model cannot run packed rows, or mixes the samples of a row.
    """
    reason = lack(model)
    found = list(packable_models(model))
    ids = torch.arange(1, 1 + sum(_LENGTHS[:1])).expand(len(_LENGTHS), -1)
    mask = torch.stack([torch.arange(max(_LENGTHS)) < length for length in _LENGTHS]).long()
    if reason is None and any((change_of_others(each, ids, mask) or 0) > MOST_CHANGE for each in found):
        reason = "it does not keep the samples of a row apart with this version of transformers: tune again with it"
    if reason is not None:
        raise UsageError(
            f"the plan has {PACKING}=True, and this model cannot be packed: {reason}. Pass the model that was tuned."
        )
    pack_for_good(found)
