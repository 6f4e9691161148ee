"""How many shapes batches can have, from a few of them."""

import math
from typing import Any

import pytest
import torch

from autofit.workloads.batch_store import shape_count


def texts(*lengths: int) -> list[Any]:
    return [{"ids": torch.zeros(4, length), "labels": torch.zeros(4, length)} for length in lengths]


def graphs(*sizes: tuple[int, int]) -> list[Any]:
    return [(torch.zeros(nodes, 3), torch.zeros(2, edges)) for nodes, edges in sizes]


@pytest.mark.parametrize(
    ("batches", "count"),
    [
        (texts(9, 9, 9), 1),
        (texts(9, 12, 20, 13), 12),  # 9 to 20; ids and labels grow together
        (texts(8, 64, 24, 40), 8),  # multiples of 8 up to 64
        (texts(8, 64), 2),
        (graphs((10, 40), (14, 56), (13, 52)), 5),  # 4 edges for each node
        (graphs((10, 41), (14, 40), (13, 50)), 5 * 11),
        ([[torch.zeros(3, 5)], [torch.zeros(3, 5), torch.zeros(3, 6)]], math.inf),
        ([[torch.zeros(3)], [torch.zeros(3, 5)]], math.inf),
    ],
)
def test_a_dimension_counts_the_sizes_between_its_ends_once(batches: list[Any], count: float) -> None:
    assert shape_count(batches) == count
