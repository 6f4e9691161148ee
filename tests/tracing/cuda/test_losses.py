from typing import Any

import pytest
import torch

from autofit.tracing.cuda.reduce_config import Chip
from autofit.tracing.cuda.results import laid_out
from autofit.tracing.cuda.temporaries import temporary_steps
from tests.tracing.measured import meta

aten = torch.ops.aten
X = (16384, 512)
ALL = 33554432
"""Bytes of one number for each element."""


def steps(func: Any, *args: Any) -> Any:
    return temporary_steps(Chip(), func, args, func(*args))


@pytest.mark.parametrize(
    ("func", "found"),
    [
        (aten.binary_cross_entropy.default, (4, 1728, 4, ~2, ~1, ~0)),
        (aten.soft_margin_loss.default, (4, 1728, 4, ~2, ~1, ~0)),
        (aten.huber_loss.default, (ALL, None, 1728, 4, ~2, ~1, ~0)),
        (aten.binary_cross_entropy_with_logits.default, (ALL, ALL, None, 1728, 4, ~3, ~2, ~1, ~0)),
    ],
)
def test_a_mean(func: Any, found: Any) -> None:
    assert steps(func, meta(*X), meta(*X)) == found


@pytest.mark.parametrize("func", [aten.binary_cross_entropy.default, aten.soft_margin_loss.default])
def test_a_mean_keeps_the_room_of_all_elements(func: Any) -> None:
    x = meta(*X)
    assert laid_out(func, (x, x), func(x, x)).untyped_storage().nbytes() == ALL


def test_weights_of_the_positive_class() -> None:
    """Row `bce-logits-pw`."""
    found = steps(aten.binary_cross_entropy_with_logits.default, meta(*X), meta(*X), None, meta(512))
    assert found == (ALL, 2048, ALL, ~1, ~2, ALL, None, 1728, 4, ~5, ~4, ~3, ~0)


def test_the_gradient_of_a_soft_margin_is_made_last() -> None:
    found = steps(aten.soft_margin_loss_backward.default, torch.empty((), device="meta"), meta(*X), meta(*X), 1)
    assert found == (ALL, ALL, ALL, ~1, ~0, None, ~2)
