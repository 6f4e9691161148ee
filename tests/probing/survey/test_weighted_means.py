"""A loss that is a mean over weighted targets is recognised, and so are targets that differ in weight."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autofit.probing.survey.gradients import STATELESS
from autofit.probing.survey.weighted_means import WeightedMean, weighted_mean
from autofit.workloads.counted_batches import Counted
from tests.probing.survey.test_gates import build, norm, vectors

WEIGHTS = torch.tensor([1.0, 1.0, 2.0, 1.0])
MODULE = nn.CrossEntropyLoss(weight=WEIGHTS)


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (lambda model, batch: MODULE(model(batch[0]), batch[1]), (True, -100)),
        (lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], WEIGHTS), (True, -100)),
        (lambda model, batch: F.nll_loss(model(batch[0]).log_softmax(1), batch[1], ignore_index=0), (False, 0)),
        (lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), None),
        (lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], WEIGHTS, reduction="sum"), None),
    ],
)
def test_the_loss_is_recognised_wherever_it_is_called(loss: Any, found: tuple[bool, int] | None) -> None:
    mean = weighted_mean(build(norm("none"), loss), Counted(vectors(), 8), STATELESS)
    assert (None if mean is None else (mean.by_class, mean.ignored)) == found


def test_samples_differ_by_the_weight_of_their_targets() -> None:
    mean = WeightedMean(WEIGHTS, -100)
    assert mean.unevenness((torch.randn(3, 2), torch.tensor([0, 1, 3])), 3) == 0
    assert mean.unevenness((torch.randn(3, 2), torch.tensor([0, 2, 3])), 3) == 0.5
    assert mean.unevenness((torch.randn(3, 2), torch.tensor([0, -100, 3])), 3) == 1
    assert mean.unevenness((torch.tensor([0, 7, 8]),), 3) == 0  # classes that the loss does not have
