"""Attention on a stand-in: masks take what the efficient kernel makes of them on a device."""

import pytest
import torch

from autofit.tracing.cuda.standin import _bias


def made(mask: torch.Tensor, queries: int, keys: int, align: bool = True) -> torch.Tensor:
    query, key = (torch.empty(2, 3, rows, 16, device="meta") for rows in (queries, keys))
    return _bias(mask, query, key, align)


@pytest.mark.parametrize(
    ("mask", "padded"),
    [
        (torch.empty(1, 1, 49, 49, device="meta"), 56),  # shifted windows: 16464 bytes in half precision were recorded
        (torch.empty(49, 56, device="meta"), None),
        (torch.empty(49, 128, device="meta")[:, :64], None),
        (torch.empty(56, 64, device="meta").transpose(0, 1), 64),  # a full row gets a whole pad, as in torch
        (torch.empty(1, 1, 49, 1, device="meta").expand(1, 1, 49, 64), 72),
    ],
)
def test_a_mask_is_padded_where_its_rows_cannot_be_read(mask: torch.Tensor, padded: int | None) -> None:
    found = made(mask, *mask.shape[-2:])
    assert found.shape == (2, 3, *mask.shape[-2:])
    assert found.stride()[:2] == (0, 0)
    if padded is None:
        assert found.stride()[-2:] == mask.stride()[-2:]
    else:
        assert found.stride()[-2:] == (padded, 1)
    queries, keys = mask.shape[-2:]
    assert made(mask, queries, keys, align=False).stride()[-2:] == mask.stride()[-2:]


def test_a_mask_of_choices_becomes_numbers() -> None:
    mask = torch.ones(8, 8, dtype=torch.bool, device="meta")
    assert made(mask, 8, 8).dtype is torch.float32
