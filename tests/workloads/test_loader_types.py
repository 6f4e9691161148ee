"""What is not a loader is refused with what to pass instead, before anything is read."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from autofit.core.errors import WorkloadError
from autofit.workloads.batches import checked_loader
from tests.workloads.loaders import Batches, Texts, pad, pairs


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        (pairs(), "wrap it: DataLoader"),
        (torch.zeros(4), "expected a DataLoader, a list of batches"),
        ({"input_ids": torch.zeros(4)}, "expected a DataLoader, a list of batches"),
        ("train", "expected a DataLoader, a list of batches"),
        (7, "found a loader of type int"),
    ],
)
def test_other_things_are_refused(given: Any, remedy: str) -> None:
    with pytest.raises(WorkloadError, match=remedy):
        checked_loader(given)


def test_loaders_are_returned_unread() -> None:
    texts = Texts([3, 4])
    for loader in (DataLoader(texts, collate_fn=pad), [torch.zeros(2)], Batches(DataLoader(texts, collate_fn=pad))):
        assert checked_loader(loader) is loader
    assert texts.asked == 0
