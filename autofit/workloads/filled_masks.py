"""Filled masks: a batch in which no sample is short, so that nothing can be gained by leaving out its padding."""

import torch

from autofit.workloads.batch_algebra import leaves
from autofit.workloads.lengths import MASK
from autofit.workloads.tree import Batch

_LEAST_WIDTH = 3
"""Minimum width at which two samples that lack one token each do not fit into one row."""


def fill_masks(batch: Batch) -> Batch:
    """Returns a batch whose attention masks say that its samples have all tokens, or all but one.

    One token is missing in all samples but the first, if there is more than one, so that the model computes with a mask
    as it does for other batches.

    Args:
        batch: the batch; its masks are changed in place. Masks are [samples, width]; others stay as they are.
    """
    for path, mask, _ in leaves(batch, -1):
        if path.rpartition(".")[2] == MASK and isinstance(mask, torch.Tensor) and mask.dim() == 2:
            mask.fill_(1)
            if mask.shape[1] >= _LEAST_WIDTH:
                mask[1:, -1] = 0
    return batch
