"""torchao's update: the moments that it keeps, the training that results, and where it cannot be used."""

import copy
import importlib.util
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR, StepLR

from autofit.strategies.low_bit_adam import updated_by
from autofit.strategies.torchao_adam import TorchaoAdam
from tests.strategies.low_bit_models import (
    ADAMS,
    check_saved_state_continues,
    check_training_follows,
    draft,
    losses,
    plain,
)

LOW = TorchaoAdam()
installed = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="torchao is not installed")


@pytest.fixture(autouse=True)
def no_tool_is_missing() -> Iterator[None]:
    """Undoes that tests/conftest.py hides the C++ compiler."""
    with patch("autofit.strategies.torchao_adam.missing_tool", lambda: None):
        yield


@pytest.fixture
def uncompiled() -> Iterator[None]:
    """Runs what is compiled as it is: kernels of each shape take seconds."""
    with torch.compiler.set_stance("force_eager"):
        yield


def test_a_missing_library_device_or_compiler_has_a_reason() -> None:
    with patch("importlib.util.find_spec", lambda name: None):
        assert "torchao is not installed" in str(LOW.lack("cpu", frozenset()))
        assert ".[torchao]" in str(LOW.lack("cpu", None))
    with patch("importlib.util.find_spec", lambda name: object()):
        assert "generates no code" in str(LOW.lack("mps", frozenset()))
        with patch("autofit.strategies.torchao_adam.missing_tool", lambda: "found no C++ compiler"):
            assert LOW.lack("cpu", None) == "found no C++ compiler"
        with (
            patch("autofit.strategies.torchao_adam.missing_tool", lambda: None),
            patch("autofit.strategies.torchao_adam._library", side_effect=ImportError("no such symbol")),
        ):
            assert "no such symbol" in str(LOW.lack("cpu", None))


def test_a_scheduler_that_changes_beta1_is_refused() -> None:
    optimizer: Any = draft().optimizer
    StepLR(optimizer, 1)
    assert LOW.refusal(optimizer) is None
    OneCycleLR(optimizer, max_lr=0.1, total_steps=3)
    assert "beta1" in str(LOW.refusal(optimizer))


def test_small_parameters_and_those_without_whole_blocks_stay_float32() -> None:
    assert [LOW.quantizes(torch.zeros(size)) for size in (4096, 4095, 4097, 3840)] == [True, False, False, False]
    assert not TorchaoAdam(low_bit=False).quantizes(torch.zeros(4096))


@installed
@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("name", ADAMS)
def test_training_follows_the_curve_of_the_plain_optimizer(name: str) -> None:
    check_training_follows(LOW, ADAMS[name])


@installed
@pytest.mark.usefixtures("uncompiled")
def test_float32_moments_give_the_plain_training_up_to_rounding() -> None:
    made, other = draft(), draft()
    optimizer: Any = made.optimizer
    with updated_by(TorchaoAdam(low_bit=False), optimizer, made):
        found = losses(plain(made), 5)
    assert found == pytest.approx(losses(plain(other), 5), rel=1e-4)


@installed
@pytest.mark.usefixtures("uncompiled")
def test_moments_take_one_byte_and_a_scale_for_each_block() -> None:
    made = draft()
    optimizer: Any = made.optimizer
    with updated_by(LOW, optimizer, made):
        losses(plain(made), 1)
        moments = optimizer.state[made.model[0].weight]["exp_avg"]  # type: ignore[index]
        names, _ = moments.__tensor_flatten__()
        sizes = {name: getattr(moments, name).nbytes for name in names}
    assert sizes == {"codes": 16384, "scale": 4 * 64, "qmap": 4 * 256}


@installed
@pytest.mark.usefixtures("uncompiled")
def test_a_saved_state_continues_the_training_bit_for_bit() -> None:
    check_saved_state_continues(LOW, prepared_first=False)


@installed
@pytest.mark.usefixtures("uncompiled")
def test_existing_moments_are_quantized_and_the_training_goes_on() -> None:
    made, other = draft(), draft()
    losses(plain(made), 5)
    losses(plain(other), 5)
    optimizer: Any = made.optimizer
    with updated_by(LOW, optimizer, made):
        found = losses(plain(made), 5)
    assert found == pytest.approx(losses(plain(other), 5), rel=0.05, abs=5e-3)
    assert {float(state["step"]) for state in optimizer.state.values()} == {10.0}


@installed
@pytest.mark.usefixtures("uncompiled")
def test_a_scheduler_changes_the_learning_rate_of_the_update() -> None:
    made = draft()
    optimizer: Any = made.optimizer
    made.scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: float(step == 0))
    with updated_by(LOW, optimizer, made):
        step = plain(made)
        losses(step, 1)
        weights = copy.deepcopy(made.model.state_dict())
        losses(step, 1)  # at a learning rate of 0
    for name, value in made.model.state_dict().items():
        assert torch.equal(value, weights[name])


@installed
@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
def test_the_compiled_update_trains_like_the_uncompiled_one() -> None:
    made, other = draft(), draft()
    optimizer: Any = made.optimizer
    others: Any = other.optimizer
    with updated_by(LOW, optimizer, made):
        found = losses(plain(made), 5)
    with torch.compiler.set_stance("force_eager"), updated_by(LOW, others, other):
        assert found == pytest.approx(losses(plain(other), 5), rel=1e-3)
