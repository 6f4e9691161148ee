"""The batches of optimizer steps: how micro batches are grouped, and what is said of a batch from elsewhere."""

import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from autofit.workloads.batch_store import StepLoader


def loader(samples: int, size: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(samples)), batch_size=size)


def test_the_step_loader_groups_micro_batches_and_ends_with_an_incomplete_group() -> None:
    steps = list(StepLoader(loader(22, 4), 2))
    assert [[part[0].tolist() for part in step.parts] for step in steps] == [
        [[0, 1, 2, 3], [4, 5, 6, 7]],
        [[8, 9, 10, 11], [12, 13, 14, 15]],
        [[16, 17, 18, 19], [20, 21]],
    ]
    assert [sum(step.weights) for step in steps] == [1, 1, 1]
    assert steps[-1].weights == [4 / 6, 2 / 6]


@pytest.mark.parametrize(("samples", "size", "steps", "expected"), [(16, 4, 1, 4), (16, 4, 2, 2), (20, 4, 2, 3)])
def test_the_step_loader_has_the_length_of_its_steps(samples: int, size: int, steps: int, expected: int) -> None:
    grouped = StepLoader(loader(samples, size), steps)
    assert len(grouped) == expected == len(list(grouped))
    assert len(list(grouped)) == expected  # and again


def test_a_loader_that_drops_its_last_batch_drops_an_incomplete_group() -> None:
    whole = DataLoader(TensorDataset(torch.arange(22)), batch_size=4, drop_last=True)
    grouped = StepLoader(whole, 2, drop_last=True)
    assert [sum(len(part[0]) for part in step.parts) for step in grouped] == [8, 8]
    assert len(grouped) == 2


def test_without_accumulation_the_users_own_batches_come_through() -> None:
    own = [object(), object()]
    assert list(StepLoader(own, 1)) == own


def test_a_plain_batch_where_the_plan_accumulates_is_warned_of_once() -> None:
    grouped = StepLoader((), 4, micro_batch_size=2)
    with pytest.warns(
        UserWarning, match=r"after it; expected 4 micro batches of 2 samples .* batches of step\.loader\.$"
    ):
        step = grouped.whole(torch.zeros(8))
    assert len(step.parts) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grouped.whole(torch.zeros(8))


@pytest.mark.fault("F36")
def test_a_batch_that_is_larger_than_proven_is_warned_of() -> None:
    grouped = StepLoader((), 1, micro_batch_size=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grouped.whole(torch.zeros(2, 8))
        grouped.whole(torch.zeros(1, 8))  # the last of a pass
        grouped.whole({"no": "tensor"})
        StepLoader((), 1).whole(torch.zeros(100))
        nodes = torch.zeros(658, 8)  # of two graphs
        own = StepLoader([nodes], 1, micro_batch_size=2)
        for batch in own:
            own.whole(batch)
    with pytest.warns(UserWarning, match="got a batch of 3 samples, which may not fit in memory; expected at most 2"):
        grouped.whole(torch.zeros(3, 8))
