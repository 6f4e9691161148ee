"""Filled masks: a batch in which no sample is short, so that nothing can be gained by leaving out its padding."""

import torch

from autofit.workloads.batch_algebra import leaves
from autofit.workloads.lengths import IDS, MASK
from autofit.workloads.tree import Batch

_LEAST_WIDTH = 3
"""Minimum width at which two samples that lack one token each do not fit into one row."""


def fill_masks(batch: Batch) -> Batch:
    """Returns a batch whose attention masks say that its samples have all tokens, or all but one.

    One token is missing in all samples but the first, if there is more than one, so that the model computes with a mask
    as it does for other batches. What is padding in `input_ids` becomes the first token of the first sample, since a
    model may find padding in it.

    Args:
        batch: the batch; its masks and its ids are changed in place. Both are [samples, width] and may have a prefix,
            such as `chosen_attention_mask`; others stay as they are.
    """
    found = {path: leaf for path, leaf, _ in leaves(batch, -1) if isinstance(leaf, torch.Tensor) and leaf.dim() == 2}
    for path, mask in found.items():
        if not path.endswith(MASK):
            continue
        ids = found.get(f"{path.removesuffix(MASK)}{IDS}")
        if ids is not None and ids.shape == mask.shape and bool(mask.any()):
            ids[mask == 0] = ids[mask != 0][0]
        mask.fill_(1)
        if mask.shape[1] >= _LEAST_WIDTH:
            mask[1:, -1] = 0
    return batch
