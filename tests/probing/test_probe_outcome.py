"""What becomes of a probe: the verdicts on memory and on the loss."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.outcome import Status
from autofit.core.trial import Purpose
from autofit.devices.base import Counters, Reading
from autofit.probing.local_bench import LocalBench
from autofit.workloads.workload import Workload
from tests.probing import targets
from tests.probing.steps import CPU, PLENTY, Scaled, evaluate


def test_over_the_budget_is_an_outcome_with_the_measurement() -> None:
    outcome = evaluate(targets.make_mlp(), options=PLENTY.model_copy(update={"memory_budget": "2KiB"}))
    assert outcome.status is Status.OVER_BUDGET
    assert outcome.measurement is not None
    assert outcome.measurement.memory.judged_bytes > 2048
    assert "above the budget 2 KiB" in outcome.reason
    fits = outcome.measurement.memory.judged_bytes
    at_the_limit = PLENTY.model_copy(update={"memory_budget": f"{fits}B"})
    assert evaluate(targets.make_mlp(), options=at_the_limit).measured
    below = PLENTY.model_copy(update={"memory_budget": f"{fits - 1}B"})
    assert evaluate(targets.make_mlp(), options=below).status is Status.OVER_BUDGET


def test_the_speed_of_a_plan_over_the_budget_is_that_of_the_samples_it_ran() -> None:
    workload = targets.make_mlp(global_batch_size=32)
    tight = PLENTY.model_copy(update={"memory_budget": "2KiB"})
    outcome = evaluate(workload, options=tight, micro_batch_size=4, accumulation_steps=8)
    assert outcome.measurement is not None
    assert outcome.measurement.samples_per_step == 2 * 4  # two micro batches show all that can be live


@pytest.mark.fault("F44")
def test_the_step_at_which_the_loss_was_first_not_finite_is_told() -> None:
    calls = []

    def step(model: nn.Module, batch: Any) -> torch.Tensor:
        calls.append(batch)
        loss: torch.Tensor = model(batch[0]).mean() * (float("nan") if len(calls) > 3 else 1.0)
        return loss

    with LocalBench(Workload(targets.mlp(), targets.vectors(), step_fn=step), CPU(), PLENTY) as bench:
        calls.clear()
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
    assert outcome.status is Status.NUMERIC
    assert outcome.reason == "the loss is nan, from step 4 on"


@pytest.mark.fault("F44", "F45")
def test_a_model_that_always_overflows_is_a_numeric_failure() -> None:
    workload = Workload(Scaled(limit=0.0), targets.vectors(), optimizer=torch.optim.SGD)
    for purpose in Purpose:
        outcome = evaluate(workload, purpose, precision="fp16")
        assert outcome.status is Status.NUMERIC
        assert "gradients overflow in fp16" in outcome.reason


class Hiding(CPU):  # type: ignore[misc]  # a class that is looked up
    """A device whose allocator counts what the model hid."""

    @contextmanager
    def meter(self, static: Callable[[], int]) -> Iterator[Reading]:
        with super().meter(static) as reading:
            yield reading
        reading.memory = reading.memory.model_copy(update={"swallowed_ooms": 2})


@pytest.mark.fault("F08")
def test_out_of_memory_events_that_the_model_hides_mean_that_it_does_not_fit() -> None:
    outcome = evaluate(targets.make_mlp(), device=Hiding())
    assert outcome.status is Status.OVER_BUDGET
    assert "2 out-of-memory events hidden by the model" in outcome.reason
    assert outcome.measurement is not None


class Thrashing(CPU):  # type: ignore[misc]  # a class that is looked up
    """A device whose allocator retries in every step, but only while steps are timed."""

    def __init__(self) -> None:
        super().__init__()
        self.metering, self.retries = False, 0

    @contextmanager
    def meter(self, static: Callable[[], int]) -> Iterator[Any]:
        self.metering = True
        with super().meter(static) as reading:
            yield reading
        self.metering = False

    def synchronize(self) -> None:
        self.retries += not self.metering

    def counters(self) -> Counters:
        return Counters(retries=self.retries)


@pytest.mark.parametrize("purpose", [Purpose.BLOCK, Purpose.PROOF])
def test_retries_while_steps_are_timed_mean_that_it_does_not_fit(purpose: Purpose) -> None:
    outcome = evaluate(targets.make_mlp(), purpose, device=Thrashing())
    assert outcome.status is Status.OVER_BUDGET
    assert "allocator retries" in outcome.reason
    assert outcome.measurement is not None
    assert outcome.measurement.memory.allocator_retries > 0, "what is read of it later is judged by this"
