"""Two plans of the same arithmetic have equal gradients up to the order of operations."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from autofit.core.plan import Plan
from autofit.probing.survey.same_arithmetic import same_arithmetic
from autofit.workloads.counted_batches import Counted
from tests.probing.survey.test_gates import build, mean, vectors

with torch.random.fork_rng():
    torch.manual_seed(0)  # with other weights, a rounded input may switch a unit of the ReLU
    LAYERS = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 4))
REFERENCE, OTHER = Plan(values={"precision": "fp32"}), Plan(values={"precision": "bf16"})


def test_equal_arithmetic_passes_and_reduced_precision_does_not() -> None:
    make, batch = build(LAYERS, mean), Counted(vectors(), 8)
    assert same_arithmetic(make, Plan(), REFERENCE, batch).passed
    found = same_arithmetic(make, OTHER, REFERENCE, batch)
    assert not found.passed
    assert found.reason.startswith("relative L2 of the gradient")
    assert same_arithmetic(make, OTHER, REFERENCE, batch, rounded=True).passed


def test_beside_a_coarse_technique_another_order_may_change_as_much_as_it_does() -> None:
    make, batch = build(LAYERS, mean), Counted(vectors(), 8)
    assert not same_arithmetic(make, REFERENCE, OTHER, batch).passed
    assert same_arithmetic(make, REFERENCE, OTHER, batch, finer=REFERENCE).passed
    assert not same_arithmetic(make, REFERENCE, OTHER, batch, finer=OTHER).passed  # a technique that changes nothing


def only_in_training(model: nn.Module, batch: Any) -> torch.Tensor:
    if not model.training:
        raise ValueError("no loss in evaluation mode")
    return F.cross_entropy(model(batch[0]), batch[1])


def test_a_step_without_a_loss_in_evaluation_mode_is_compared_in_training_mode() -> None:
    make, batch = build(LAYERS, only_in_training), Counted(vectors(), 8)
    assert same_arithmetic(make, Plan(), REFERENCE, batch).passed
    assert not same_arithmetic(make, OTHER, REFERENCE, batch).passed


def test_a_gradient_of_zero_cannot_differ() -> None:
    def flat(model: nn.Module, batch: Any) -> torch.Tensor:
        output: torch.Tensor = 0.0 * model(batch[0]).sum()
        return output

    found = same_arithmetic(build(LAYERS, flat), OTHER, REFERENCE, Counted(vectors(), 8))
    assert found.passed
    assert "zero" in found.reason
