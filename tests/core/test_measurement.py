import random
from statistics import pstdev
from typing import Any

import pytest
from pydantic import ValidationError

from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective

MEMORY = Memory(allocated_bytes=10, judged_bytes=12, judged_by="test")


def measured(*times: float, **fields: Any) -> Measurement:
    return Measurement(step_times_s=times, samples_per_step=8, memory=MEMORY, **fields)


def test_throughput_is_at_the_median_step() -> None:
    measurement = measured(0.5, 0.4, 9.0)
    assert measurement.step_time_s == 0.5
    assert measurement.samples_per_s == 16.0


def test_where_batches_differ_all_of_them_count() -> None:
    # Two cycles of four batches; one step stalled. The median of all steps would be 0.2.
    measurement = measured(0.1, 0.2, 0.2, 0.7, 0.1, 0.2, 9.0, 0.7, cycle=4)
    assert measurement.step_time_s == pytest.approx((0.1 + 0.2 + (0.2 + 9.0) / 2 + 0.7) / 4)
    assert measured(0.1, 0.2, 0.2, 0.7, cycle=4).step_time_s == pytest.approx(0.3)
    three = measured(*[0.1, 0.2, 0.2, 0.7] * 2, 0.1, 0.2, 9.0, 0.7, cycle=4)
    assert three.step_time_s == pytest.approx(0.3)
    assert measured(0.1, 0.7, cycle=4).step_time_s == pytest.approx(0.4)  # of those that ran


def test_kernels_for_new_shapes_are_part_of_a_step() -> None:
    measurement = measured(0.5, 0.4, 9.0, new_shape_s=0.3, tokens_per_step=40)
    assert measurement.step_time_s == pytest.approx(0.8)
    assert measurement.samples_per_s == pytest.approx(10)
    assert measurement.tokens_per_s == pytest.approx(50)


def test_tokens_are_counted_only_where_known() -> None:
    assert measured(0.5).tokens_per_s is None
    assert measured(0.5, tokens_per_step=100).tokens_per_s == 200


def test_a_start_is_at_least_nothing_and_so_is_a_plan() -> None:
    with pytest.raises(ValidationError):
        measured(0.1, startup_s=-0.1)
    with pytest.raises(ValidationError):
        Objective(planned_samples=0)


def test_the_spread_is_the_standard_error_of_the_median() -> None:
    draw = random.Random(0)
    runs = [measured(*(draw.gauss(1.0, 0.05) for _ in range(41))) for _ in range(400)]
    seen = pstdev(run.step_time_s for run in runs)
    said = sum(run.spread_ratio for run in runs) / len(runs)
    assert said == pytest.approx(seen, rel=0.15)


def test_that_batches_differ_is_no_spread() -> None:
    assert measured(0.1, 0.7, 0.3, 0.1, 0.7, 0.3, cycle=3).spread_ratio == pytest.approx(0)
    assert measured(0.1, 0.7, 0.3, cycle=3).spread_ratio == 0  # none came twice: nothing is known
    draw = random.Random(0)
    longs = [0.5, 1.0, 1.5, 1.0]
    runs = [measured(*(long * draw.gauss(1.0, 0.05) for long in longs * 2), cycle=4) for _ in range(800)]
    seen = pstdev(run.step_time_s for run in runs)
    said = sum(run.spread_ratio for run in runs) / len(runs)
    assert seen <= said <= 1.4 * seen  # the median of two is their mean, which is surer than other medians
    three = [measured(*(long * draw.gauss(1.0, 0.05) for long in longs * 3), cycle=4) for _ in range(800)]
    said = sum(run.spread_ratio for run in three) / len(three)
    assert pstdev(run.step_time_s for run in three) <= said <= 1.5 * pstdev(run.step_time_s for run in three)


def test_one_stall_does_not_widen_the_spread() -> None:
    steady = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99]
    assert measured(*steady, 50.0).spread_ratio < 2 * measured(*steady).spread_ratio


def test_one_step_has_no_spread() -> None:
    assert measured(1.0).spread_ratio == 0


@pytest.mark.parametrize("change", [{"step_times_s": ()}, {"samples_per_step": 0}, {"memory": None}, {"what": 1}])
def test_what_is_no_measurement_is_refused(change: dict[str, object]) -> None:
    fields = {"step_times_s": (1.0,), "samples_per_step": 8, "memory": MEMORY}
    with pytest.raises(ValidationError):
        Measurement.model_validate(fields | change)


def test_a_measurement_survives_json() -> None:
    measurement = measured(0.1, 0.2, tokens_per_step=3.5)
    assert Measurement.model_validate_json(measurement.model_dump_json()) == measurement


def test_each_step_is_timed_by_itself_by_default() -> None:
    earlier = {"step_times_s": [0.1, 0.2], "samples_per_step": 8, "memory": MEMORY.model_dump(), "cycle": 1}
    measurement = Measurement.model_validate(earlier)
    assert (measurement.steps_per_window, measurement.timed_steps) == (1, 2)


def test_of_windows_each_is_one_value_and_all_their_steps_are_counted() -> None:
    measurement = measured(0.010, 0.011, 0.012, steps_per_window=10)
    assert measurement.timed_steps == 30
    assert measurement.step_time_s == 0.011
    assert measurement.samples_per_s == pytest.approx(8 / 0.011)


def test_the_spread_of_windows_is_as_narrow_as_their_means_are() -> None:
    """It covers how far the medians of many measurements lie apart, no less and not much more."""
    chance = random.Random(5)

    def windows(count: int, steps: int) -> Measurement:
        times = [sum(chance.gauss(1.0, 0.1) for _ in range(steps)) / steps for _ in range(count)]
        return measured(*times, steps_per_window=steps)

    runs = [windows(9, 25) for _ in range(400)]
    apart = pstdev(run.step_time_s for run in runs)
    told = sum(run.spread_ratio for run in runs) / len(runs)
    assert told == pytest.approx(apart, rel=0.15)
