"""Which calls draw random numbers."""

from typing import Any

import pytest
import torch

from autofit.workloads.random_operators import draws

ATEN = torch.ops.aten
HEADS = torch.ones(1, 2, 4, 8)
ATTENTION = ATEN._scaled_dot_product_flash_attention_for_cpu.default


@pytest.mark.parametrize(
    ("func", "args", "kwargs", "expected"),
    [
        (ATEN.bernoulli.p, (HEADS, 0.5), {}, True),
        (ATEN.native_dropout.default, (HEADS, 0.1, True), {}, True),
        (ATEN.rand_like.default, (HEADS,), {}, True),
        (ATEN.gelu.default, (HEADS,), {}, False),
        (ATTENTION, (HEADS, HEADS, HEADS, 0.1), {}, True),
        (ATTENTION, (HEADS, HEADS, HEADS), {"dropout_p": 0.1}, True),
        (ATTENTION, (HEADS, HEADS, HEADS, 0.0), {}, False),
        (ATTENTION, (HEADS, HEADS, HEADS), {}, False),
    ],
)
def test_an_operator_draws_unless_its_dropout_is_zero(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], expected: bool
) -> None:
    assert draws(func, args, kwargs) is expected
