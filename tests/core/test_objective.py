"""What is maximised: samples or tokens per second, of steady steps or of a whole training."""

from typing import Any, Literal

import pytest

from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective

MEMORY = Memory(allocated_bytes=10, judged_bytes=12, judged_by="test")


def measured(*times: float, **fields: Any) -> Measurement:
    return Measurement(step_times_s=times, samples_per_step=8, memory=MEMORY, **fields)


def test_the_objective_falls_back_to_samples() -> None:
    tokens = Objective(unit="tokens")
    assert tokens.score(measured(0.5, tokens_per_step=100)) == 200
    assert tokens.score(measured(0.5)) == 16
    assert Objective().score(measured(0.5, tokens_per_step=100)) == 16


@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_the_start_is_charged_to_the_planned_training(unit: Literal["samples", "tokens"]) -> None:
    # 400 samples are 50 steps of 0.5 s: with 25 s before them they take twice as long.
    measurement = measured(0.5, tokens_per_step=100, startup_s=25.0)
    steady = Objective(unit=unit).score(measurement)
    assert Objective(unit=unit, planned_samples=400).score(measurement) == pytest.approx(steady / 2)
    assert Objective(unit=unit, planned_samples=4 * 10**9).score(measurement) == pytest.approx(steady)


def test_the_charge_is_for_samples_so_that_a_larger_batch_is_not_given_more_data() -> None:
    # Both take 1 s to start and 10 s for 80 samples, one in 20 steps, the other in 2.
    small = Measurement(step_times_s=(0.5,), samples_per_step=4, memory=MEMORY, startup_s=1.0)
    large = Measurement(step_times_s=(5.0,), samples_per_step=40, memory=MEMORY, startup_s=1.0)
    objective = Objective(planned_samples=80)
    assert objective.score(small) == pytest.approx(80 / 11)
    assert objective.score(large) == pytest.approx(80 / 11)


def test_without_a_plan_or_a_known_start_nothing_is_charged() -> None:
    assert Objective().score(measured(0.3, startup_s=99.0)) == measured(0.3).samples_per_s
    assert Objective(planned_samples=10).score(measured(0.3)) == measured(0.3).samples_per_s
