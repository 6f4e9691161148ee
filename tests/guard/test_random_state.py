"""The global random generators are found, kept and put back."""

import random

import numpy as np
import pytest
import torch

from autofit.guard.random_state import global_rngs, running_accelerator


def drawn() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]  # as users draw


def test_each_generator_goes_on_where_it_was_kept() -> None:
    rngs = global_rngs()
    for rng in rngs:
        rng.save()
    first = drawn()
    assert {name for rng in rngs for name in rng.differences()} == {"rng.python", "rng.numpy", "rng.torch"}
    for rng in rngs:
        rng.restore()
    assert drawn() == first


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is an accelerator")
def test_without_an_accelerator_none_is_running() -> None:
    assert running_accelerator() is None
