"""Packed rows: several samples in one row of a batch, where the padding of a shorter sample would be."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from autofit.workloads.batch_algebra import leaves
from autofit.workloads.lengths import IDS, MASK
from autofit.workloads.tree import Batch


def moved(hidden: torch.Tensor, there: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
    """Returns hidden states, [rows, tokens, width], in other rows, [*there.shape, width]; 0 where no token is.

    `there` has for each place of the result the place of its token in the flattened rows of `hidden`; negative if it
    has none. No place is in it twice. `back` has the same from the result to `hidden`, [rows, tokens].
    """
    found: torch.Tensor = _Move.apply(hidden.flatten(0, 1), there.flatten(), back.flatten())  # type: ignore[no-untyped-call]
    return found.reshape(*there.shape, -1)


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, there: torch.Tensor, back: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(there, back)
        found = values.index_select(0, there.clamp(min=0))
        return found.masked_fill_((there < 0).unsqueeze(1), 0)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        there, back = ctx.saved_tensors
        return _Move.apply(gradients[0], back, there), None, None  # type: ignore[no-untyped-call]


NOTHING = -1
"""Index of what no token is at."""


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Where each token of a padded batch is in packed rows, and back.

    Attributes:
        count: number of packed rows R. They are as wide as the rows of the batch, W.
        sources: for each place in the packed rows, its token in the flattened batch, [R, W]; `NOTHING` if it has none.
        positions: position of each token in its own sample, [R, W]. Places without a token count from 0, as one more
            sample.
        places: for each token of the batch, its place in the flattened packed rows, [samples, W]; `NOTHING` for
            padding.
    """

    count: int
    sources: torch.Tensor
    positions: torch.Tensor
    places: torch.Tensor

    def to(self, device: torch.device) -> "PackedRows":
        """Returns the same on a device."""
        return PackedRows(self.count, *(each.to(device) for each in (self.sources, self.positions, self.places)))


def packed_rows(mask: torch.Tensor) -> PackedRows | None:
    """Returns how the samples of a batch are packed by best fit into fewer rows; None if they need as many.

    None too if a sample has no tokens or has them in several pieces, or if the positions of one continue those of the
    sample before it, as may be where some are padded before their tokens and others after: models take them for one
    sample. The mask, [samples, W], is on the host, nonzero for tokens, and 0 for padding before or after them.
    """
    mask = mask != 0
    count, width = mask.shape
    lengths = mask.sum(1)
    first = mask.to(torch.uint8).argmax(1)
    tokens = torch.arange(width)
    in_one_piece = (tokens >= first[:, None]) & (tokens < (first + lengths)[:, None])
    if not bool(lengths.all()) or not torch.equal(mask, in_one_piece):
        return None
    rows, offsets = _best_fit(lengths.tolist(), width)
    total = max(rows, default=-1) + 1
    if total >= count:
        return None
    row_of, offset_of = torch.tensor(rows), torch.tensor(offsets)
    filled = torch.zeros(total, dtype=torch.long).index_add(0, row_of, lengths)
    sample, token = mask.nonzero(as_tuple=True)
    place = (row_of * width + offset_of - first)[sample] + token
    sources = torch.full((total * width,), NOTHING)
    sources[place] = sample * width + token
    positions = (tokens - filled[:, None]).clamp_(min=0).reshape(-1)
    positions[place] = token
    positions = positions.reshape(total, width)
    if int((positions.diff(dim=1) != 1).sum()) != count + int((filled < width).sum()) - total:
        return None
    places = torch.full((count * width,), NOTHING)
    places[sample * width + token] = place
    return PackedRows(total, sources.reshape(total, width), positions, places.reshape(count, width))


def texts_of(batch: Batch) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Returns the tokens and the mask of each text in a batch, both [samples, width].

    They are named `input_ids` and `attention_mask`, and may have a prefix, such as `chosen_input_ids`.
    """
    named = {path: leaf for path, leaf, _ in leaves(batch, -1) if isinstance(leaf, torch.Tensor) and leaf.dim() == 2}
    pairs = ((named.get(path.removesuffix(MASK) + IDS), mask) for path, mask in named.items() if path.endswith(MASK))
    return [(ids, mask) for ids, mask in pairs if ids is not None and ids.shape == mask.shape]


def rows_of(batch: Batch) -> tuple[int, int]:
    """Returns how many rows the texts of a batch need, and how many they have; (0, 0) if no mask names its padding."""
    needed = total = 0
    for _, mask in texts_of(batch):
        packed = packed_rows(mask.cpu())
        needed, total = needed + (len(mask) if packed is None else packed.count), total + len(mask)
    return needed, total


def _best_fit(lengths: Sequence[int], width: int) -> tuple[list[int], list[int]]:
    """Returns the row of each sample and its first place in that row. No length exceeds `width`."""
    rows, offsets = [0] * len(lengths), [0] * len(lengths)
    free: list[tuple[int, int]] = []  # free places of a row and its number, ascending
    count = 0
    for at in sorted(range(len(lengths)), key=lambda at: -lengths[at]):
        found = bisect_left(free, (lengths[at], -1))
        if found < len(free):
            places, row = free.pop(found)
        else:
            places, row, count = width, count, count + 1
        rows[at], offsets[at] = row, width - places
        insort(free, (places - lengths[at], row))
    return rows, offsets
