"""When two measurements of one plan cannot be of the same thing."""

from typing import Any

import pytest

from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.search.common_scale import contradiction, other_peak

MIB = 2**20
BUDGET = 1000 * MIB


def of(step_s: float = 0.1, peak_bytes: int = 500 * MIB, noise: float = 0.01, **more: Any) -> Outcome:
    times = tuple(step_s * (1 + noise * sign) for sign in (-1, 0, 1, -1, 1))
    memory = Memory(allocated_bytes=peak_bytes, judged_bytes=peak_bytes, judged_by="live tensors")
    measurement = Measurement(step_times_s=times, samples_per_step=8, memory=memory, **more)
    return Outcome(status=Status.MEASURED, measurement=measurement)


def failed(status: Status) -> Outcome:
    return Outcome(status=status, reason="says the test")


def found(then: Outcome, now: Outcome, **more: object) -> str:
    speed = contradiction(then, now, Objective(), BUDGET, **more)  # type: ignore[arg-type]
    return (not more and other_peak(then, now)) or speed


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        (of(), of(), ""),
        (of(), of(0.14), ""),  # a machine that others share
        (of(), of(0.2), "40 samples/s, was 80"),
        (of(0.2), of(), "80 samples/s, was 40"),
        (of(), of(0.2, noise=0.5), ""),  # its own steps differ as much
        (of(), of(peak_bytes=600 * MIB), ""),
        (of(), of(peak_bytes=700 * MIB), "a peak of 700 MiB of live tensors, was 500 MiB"),
        (of(peak_bytes=2448), of(peak_bytes=622_376), "a peak of 607.8 KiB of live tensors, was 2.391 KiB"),
        (of(peak_bytes=2448), of(peak_bytes=9000), ""),  # a table made once
        (of(), failed(Status.OUT_OF_MEMORY), "out of memory, was measured"),
        (failed(Status.OUT_OF_MEMORY), of(), "measured, was out of memory"),
        (of(peak_bytes=950 * MIB), failed(Status.OUT_OF_MEMORY), ""),  # close to the budget
        (of(), failed(Status.CRASHED), ""),
        (failed(Status.CRASHED), failed(Status.OUT_OF_MEMORY), ""),
        (failed(Status.NUMERIC), of(), ""),
    ],
)
def test_what_noise_cannot_explain(then: Outcome, now: Outcome, expected: str) -> None:
    assert found(then, now) == expected


def test_blocks_tell_speed_alone_by_their_median() -> None:
    now = of(0.3, peak_bytes=1)
    slow, same = now.measurement, of(0.1, peak_bytes=1).measurement
    assert found(of(), now, blocks=[slow, same, same]) == ""
    assert found(of(), now, blocks=[slow, same, slow]) == "26.67 samples/s, was 80"


def test_what_comes_before_steady_steps_does_not_count() -> None:
    planned = Objective(planned_samples=100)
    assert contradiction(of(startup_s=100.0), of(startup_s=0.0), planned, BUDGET) == ""


def test_kernels_for_new_shapes_do_not_count_because_a_block_has_none() -> None:
    assert contradiction(of(new_shape_s=0.2), of(), Objective(), BUDGET) == ""
    assert contradiction(of(), of(0.2, new_shape_s=0.1), Objective(), BUDGET) == "40 samples/s, was 80"
