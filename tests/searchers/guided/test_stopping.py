"""When no plan is worth another probe, and which plan is still tried before a search ends."""

from collections.abc import Callable, Collection, Sequence

import numpy as np
import pytest

from autofit.core.knob import Knob
from autofit.core.plan import Plan
from autofit.searchers.guided.stopping import (
    MANY_MEASURED,
    MAX_MIN_GAIN,
    MAX_SLOWDOWN,
    MIN_GAIN,
    SMALL_RATIO,
    least_gain,
    unsettled,
)
from tests.feasibility.points import points_of

PRECISION = Knob(name="precision", values=("fp32", "bf16"), default="fp32")
SIZES = (4, 40, 64)
PLANS = [
    Plan(values={"micro_batch_size": size, "precision": value}) for value in ("fp32", "bf16") for size in SIZES
]  # fp32 at 0 to 2, bf16 at 3 to 5


def chosen(
    tried: Sequence[int],
    speed: Sequence[float] = (1.0, 1.5, 2.0, 0.5, 1.5, 1.6),
    excluded: Collection[int] = (),
    is_likely: Callable[[int], bool] = lambda place: True,
) -> int | None:
    """Returns the place that is tried before a search ends which has tried these."""
    return unsettled(
        points=points_of((PRECISION,), PLANS, 4),
        sizes=np.array([plan.micro_batch_size for plan in PLANS]),
        means=np.log(speed),
        tried=tried,
        ran=tried,
        excluded=np.array([place in (*excluded, *tried) for place in range(len(PLANS))]),
        is_likely=is_likely,
    )


def test_a_value_that_was_tried_at_small_sizes_only_is_tried_at_the_size_of_the_best() -> None:
    assert SIZES[2] >= SMALL_RATIO * SIZES[0]
    assert chosen([0, 2, 3]) == 5


def test_a_value_that_was_tried_near_the_size_of_the_best_is_settled() -> None:
    assert SIZES[2] < SMALL_RATIO * SIZES[1]
    assert chosen([0, 2, 3, 4]) is None


def test_a_value_that_was_never_tried_is_left_to_the_expected_gain() -> None:
    assert chosen([0, 2]) is None


@pytest.mark.parametrize(("slowdown", "place"), [(MAX_SLOWDOWN * 0.99, 5), (MAX_SLOWDOWN * 1.01, None)])
def test_a_plan_that_is_estimated_to_be_far_slower_is_not_tried(slowdown: float, place: int | None) -> None:
    assert chosen([0, 2, 3], (1.0, 1.5, 2.0, 0.5, 0.1, 2.0 / slowdown)) == place


def test_the_nearest_size_that_may_run_and_is_likely_to_fit_is_tried() -> None:
    assert chosen([0, 2, 3], excluded=[5]) == 4
    assert chosen([0, 2, 3], is_likely=lambda place: place != 5) == 4
    assert chosen([0, 2, 3], excluded=[4, 5]) is None


def test_of_two_values_the_one_that_is_estimated_faster_is_tried() -> None:
    three = Knob(name="precision", values=("fp32", "bf16", "fp16"), default="fp32")
    plans = [Plan(values={"micro_batch_size": size, "precision": value}) for value in three.values for size in (4, 64)]
    found = unsettled(
        points=points_of((three,), plans, 4),
        sizes=np.array([plan.micro_batch_size for plan in plans]),
        means=np.array([0.0, 1.0, 0.0, 0.8, 0.0, 0.9]),
        tried=[0, 1, 2, 4],
        ran=[0, 1, 2, 4],
        excluded=np.array([True, True, True, False, True, False]),
        is_likely=lambda place: True,
    )
    assert found == 5


@pytest.mark.parametrize(
    ("measured", "estimated", "least"),
    [
        (0, True, MIN_GAIN),
        (MANY_MEASURED, True, MIN_GAIN),
        (MANY_MEASURED + 5, True, (1 + 5 / MANY_MEASURED) ** 2 * MIN_GAIN),
        (100 * MANY_MEASURED, True, MAX_MIN_GAIN),
        (2 * MANY_MEASURED, False, MIN_GAIN),
    ],
)
def test_a_probe_must_gain_more_after_many_measured_plans(measured: int, estimated: bool, least: float) -> None:
    assert least_gain(measured, estimated) == pytest.approx(least)
