"""bitsandbytes' update: the moments that it keeps, the training that results, and where it cannot be used."""

import importlib.util
from typing import Any
from unittest.mock import patch

import pytest
import torch

from autofit.strategies.bitsandbytes_adam import BitsandbytesAdam
from autofit.strategies.low_bit_adam import updated_by
from tests.strategies.low_bit_models import (
    ADAMS,
    check_saved_state_continues,
    check_training_follows,
    draft,
    losses,
    plain,
)

LOW = BitsandbytesAdam()
FOLLOWED = [name for name in ADAMS if name != "adam"]
"""Optimizers that bitsandbytes can replace: it has no weight decay in the gradient."""
installed = pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")


def test_a_missing_library_has_a_reason() -> None:
    with patch("importlib.util.find_spec", lambda name: None):
        assert "pip install '.[bitsandbytes]'" in str(LOW.lack("cpu", None))
    broken = patch("autofit.strategies.bitsandbytes_adam._library", side_effect=OSError("no such file"))
    with patch("importlib.util.find_spec", lambda name: object()), broken:
        assert "no such file" in str(LOW.lack("cpu", None))


@installed
def test_a_device_without_a_kernel_has_a_reason() -> None:
    assert LOW.lack("cpu", None) is None
    assert "no 8-bit update for this mps device" in str(LOW.lack("mps", None))


def test_weight_decay_in_the_gradient_is_refused() -> None:
    for name, make in ADAMS.items():
        optimizer: Any = draft(make).optimizer
        assert (LOW.refusal(optimizer) is None) is (name in FOLLOWED)


def test_small_parameters_stay_float32() -> None:
    assert [LOW.quantizes(torch.zeros(size)) for size in (4096, 4095, 4097)] == [True, False, True]


@installed
@pytest.mark.parametrize("name", FOLLOWED)
def test_training_follows_the_curve_of_the_plain_optimizer(name: str) -> None:
    check_training_follows(LOW, ADAMS[name])


@installed
@pytest.mark.parametrize("prepared_first", [True, False])
def test_a_saved_state_continues_the_training_bit_for_bit(prepared_first: bool) -> None:
    check_saved_state_continues(LOW, prepared_first=prepared_first)


@installed
def test_existing_moments_are_quantized_and_the_training_goes_on() -> None:
    made, other = draft(), draft()
    losses(plain(made), 5)
    losses(plain(other), 5)
    optimizer: Any = made.optimizer
    with updated_by(LOW, optimizer, made):
        found = losses(plain(made), 5)
    assert found == pytest.approx(losses(plain(other), 5), rel=0.05, abs=5e-3)
    assert {float(state["step"]) for state in optimizer.state.values()} == {10.0}
