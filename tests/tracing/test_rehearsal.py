"""Rehearsals: the user's step runs on a copy, inside the given context, and leaves no trace."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from autofit.core.errors import SpaceError, Untraceable
from autofit.tracing.tracing import rehearse
from autofit.workloads.counted_batches import Counted
from autofit.workloads.loss import LossRule, resolve_loss
from autofit.workloads.workload import Workload

BATCH = (torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64))


def test_forward_and_backward_run_on_fake_tensors_inside_the_context() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Dropout(0.5))
    seen: list[type] = []
    rule = resolve_loss(model, BATCH)

    @contextmanager
    def watch(copied: nn.Module) -> Iterator[None]:
        assert copied is not model
        yield
        seen.extend(type(parameter.grad) for parameter in copied.parameters())

    random = torch.get_rng_state()
    rehearse(Workload(model, [BATCH]), rule, Counted(BATCH, 2), watch)
    assert seen == [FakeTensor, FakeTensor]
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), random)


@contextmanager
def unwatched(model: nn.Module) -> Iterator[None]:
    yield


def test_error_of_the_step_says_where_it_was_and_that_there_was_no_data(caplog: pytest.LogCaptureFixture) -> None:
    def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        logging.getLogger("torch._subclasses.fake_tensor").error("failed while attempting to run meta")
        raise ValueError("out of coffee")

    model = nn.Linear(3, 5)
    with pytest.raises(Untraceable, match="on tensors without data it raises ValueError: out of coffee"):
        rehearse(Workload(model, [BATCH]), LossRule("step_fn", loss, False, ""), Counted(BATCH, 2), unwatched)
    assert caplog.records == []
    logging.getLogger("torch._subclasses.fake_tensor").error("later")
    assert len(caplog.records) == 1


def test_a_technique_that_cannot_be_watched_ends_the_rehearsal() -> None:
    @contextmanager
    def watch(model: nn.Module) -> Iterator[None]:
        raise SpaceError("no such head")
        yield

    model = nn.Linear(3, 5)
    with pytest.raises(Untraceable, match="on tensors without data it raises SpaceError: no such head"):
        rehearse(Workload(model, [BATCH]), resolve_loss(model, BATCH), Counted(BATCH, 2), watch)


def test_recurrent_layer_is_refused() -> None:
    model = nn.Sequential(nn.LSTM(3, 5))
    rule = LossRule("step_fn", lambda model, batch: torch.zeros(()), False, "")
    with pytest.raises(Untraceable, match="LSTM"):
        rehearse(Workload(model, [BATCH]), rule, Counted(BATCH, 2), unwatched)
