"""A small model with parameters that are quantized and others that are not, how it is trained, and what must hold."""

import copy
import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies.base import Facts
from autofit.strategies.optimizer_states import KNOB, OptimizerStates
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, TrainStep

RULE = LossRule("step_fn", lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), False, "")
Make = Callable[[Any], torch.optim.Optimizer]

ADAMS: dict[str, Make] = {
    "adamw": lambda params: torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-2, weight_decay=1e-3),
    "fused": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
    "tensor lr": lambda params: torch.optim.Adam(params, lr=torch.tensor(1e-2)),
}


def adamw(params: Any) -> torch.optim.Optimizer:
    return ADAMS["adamw"](params)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(32, 64, generator=generator), torch.randint(0, 64, (32,), generator=generator)


def draft(make: Make = adamw) -> Draft:
    """Returns a draft of a model whose two weights have 16,384 elements each, and their biases 256 and 64."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 64))
    weights, biases = ([p for p in model.parameters() if (p.dim() > 1) is wide] for wide in (True, False))
    groups = [{"params": weights}, {"params": biases, "lr": 5e-3}]
    return Draft(model, RULE, make(groups), torch.device("cpu"))


def low_bit(value: str, made: Draft) -> AbstractContextManager[None]:
    """Has the library of a value make the updates of a draft's optimizer."""
    return OptimizerStates().apply(Plan(values={KNOB: value}), made)


def plain(made: Draft) -> TrainStep:
    """Returns the step of a draft to which a strategy is applied elsewhere."""
    return prepare(Plan(), made, [])


def facts(made: Draft, *capabilities: str, **changes: Any) -> Facts:
    """Returns what a strategy is told of a draft on a CPU with these capabilities."""
    known = Facts(
        model=made.model,
        batch=batch(),
        optimizer=made.optimizer,
        device_type="cpu",
        capabilities=frozenset(capabilities),
        numerics="any",
        training=True,
        micro_batch_size=32,
    )
    return replace(known, **changes)


def check_training_follows(value: str, make: Make) -> None:
    """Checks that a library trains as the plain optimizer does, and leaves a state as that optimizer has it."""
    made, other = draft(make), draft(make)
    optimizer: Any = made.optimizer
    expected = losses(plain(other), 20)
    with low_bit(value, made):
        found = losses(plain(made), 20)
    assert expected[-1] < 0.1 * expected[0]
    assert found == pytest.approx(expected, rel=0.05, abs=5e-3)
    theirs: Any = other.optimizer
    for mine, their in zip(optimizer.state.values(), theirs.state.values(), strict=True):
        assert list(mine) == list(their)
        for key, wanted in their.items():
            assert (mine[key].shape, mine[key].dtype, type(mine[key])) == (wanted.shape, wanted.dtype, type(wanted))
            assert (mine[key] - wanted).norm() <= 0.2 * wanted.norm(), key
    assert losses(plain(made), 1)[0] == pytest.approx(losses(plain(other), 1)[0], rel=0.05, abs=5e-3)


def check_saved_state_continues(value: str, *, prepared_first: bool) -> None:
    """Checks that a state that is saved in a prepared step and loaded by a new optimizer continues bit for bit."""
    made = draft()
    optimizer: Any = made.optimizer
    with low_bit(value, made):
        losses(plain(made), 3)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        weights = copy.deepcopy(made.model.state_dict())
        expected = losses(plain(made), 3)
    file.seek(0)
    again = draft()
    again.model.load_state_dict(weights)
    second: Any = again.optimizer
    if not prepared_first:
        second.load_state_dict(torch.load(file, weights_only=True))
    with low_bit(value, again):
        if prepared_first:
            second.load_state_dict(torch.load(file, weights_only=True))
        assert losses(plain(again), 3) == expected


def losses(step: TrainStep, count: int) -> list[float]:
    """Trains `count` steps and returns their losses."""
    return [float(step(batch())) for _ in range(count)]
