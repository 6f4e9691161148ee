"""With default knobs a step is bit for bit the loop that a user would write; applied again, a plan trains the same."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.base import Strategy
from autofit.workloads.batch_algebra import split
from autofit.workloads.step import StepBatch
from tests.conformance.test_strategies import (
    SAMPLES,
    WORKLOADS,
    Case,
    defaults,
    each_member,
    each_workload,
    everything_but_values,
    offered,
    same_bits,
    values_of,
)

pytestmark = pytest.mark.usefixtures("no_kernels")

STEPS = 3
MAX_NORM = 0.05
"""Below the gradients' norm on every workload, so that clipping changes them."""


class DroppingMlp(nn.Sequential):
    """A model that draws random numbers in each step."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 11))


def dropping() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    model = DroppingMlp()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01), torch.randn(SAMPLES, 6)


def parts_of(batch: Any, accumulation_steps: int) -> list[Any]:
    return split(batch, [SAMPLES // accumulation_steps] * accumulation_steps)


def by_hand(case: Case, accumulation_steps: int, max_norm: float | None, scheduler: Any) -> list[torch.Tensor]:
    """Trains as the tutorials of PyTorch do and returns the loss of each step."""
    losses = []
    for _ in range(STEPS):
        total = torch.zeros(())
        for inputs, targets in parts_of(case.batch, accumulation_steps):
            loss = F.cross_entropy(case.model(inputs), targets) / accumulation_steps
            torch.autograd.backward(loss)
            total += loss.detach()
        if max_norm is not None:
            nn.utils.clip_grad_norm_(case.model.parameters(), max_norm)
        case.optimizer.step()
        case.optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
        losses.append(total)
    return losses


def by_autofit(case: Case, accumulation_steps: int, max_norm: float | None, scheduler: Any) -> list[torch.Tensor]:
    """Trains by the step of the default plan and returns the loss of each step."""
    case.draft.max_grad_norm, case.draft.scheduler = max_norm, scheduler
    with prepare(defaults(case.facts()), case.draft, members()) as step:
        return [step(StepBatch.of(parts_of(case.batch, accumulation_steps))) for _ in range(STEPS)]


def halving(case: Case) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(case.optimizer, step_size=1, gamma=0.5)


@pytest.mark.parametrize("make", [*WORKLOADS.values(), dropping], ids=[*WORKLOADS, "dropout"])
@pytest.mark.parametrize("schedule", [None, halving], ids=["", "scheduler"])
@pytest.mark.parametrize("max_norm", [None, MAX_NORM], ids=["", "clipping"])
@pytest.mark.parametrize("accumulation_steps", [1, 2, 4])
def test_the_step_of_the_default_plan_is_bit_for_bit_a_loop_written_by_hand(
    make: Any, accumulation_steps: int, max_norm: float | None, schedule: Callable[[Case], Any] | None
) -> None:
    sides = []
    for train in (by_hand, by_autofit):
        case = Case(make)
        torch.manual_seed(1)
        losses = train(case, accumulation_steps, max_norm, schedule and schedule(case))
        rates = [group["lr"] for group in case.optimizer.param_groups]
        sides.append((losses, _state(case), rates, torch.get_rng_state()))
    (one, states, rates, drawn), (other, other_states, other_rates, other_drawn) = sides
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert same_bits(states, other_states)
    assert rates == other_rates
    assert torch.equal(drawn, other_drawn)


def _state(case: Case) -> dict[str, torch.Tensor]:
    """Returns weights, buffers and the optimizer's state, by names that two cases share."""
    named = dict(chain(case.model.named_parameters(), case.model.named_buffers()))
    return named | {
        f"{name} {key}": value
        for name, parameter in case.model.named_parameters()
        for key, value in case.optimizer.state.get(parameter, {}).items()
        if isinstance(value, torch.Tensor)
    }


@each_member
@each_workload
def test_a_plan_that_was_undone_and_is_applied_again_trains_as_the_first_time(member: Strategy, workload: str) -> None:
    for plan in offered(member, Case(WORKLOADS[workload]).facts()):
        once, twice = Case(WORKLOADS[workload]), Case(WORKLOADS[workload])
        before, values = everything_but_values(twice), values_of(twice)
        with prepare(plan, twice.draft, members()):
            pass
        assert everything_but_values(twice) == before, plan
        assert same_bits(values_of(twice), values), plan
        first, second = (_trained(case, plan) for case in (once, twice))
        assert same_bits(first, second), plan
        assert everything_but_values(twice) == before, plan


def _trained(case: Case, plan: Plan) -> dict[str, torch.Tensor]:
    """Trains one step and returns the loss with everything that it leaves trained."""
    torch.manual_seed(1)
    with prepare(plan, case.draft, members()) as step:
        loss = step(case.step_batch(plan))
    return {"loss": loss, **_state(case)}
