"""The normal distribution, expected gain, and outliers."""

import random
from statistics import NormalDist, fmean

import pytest

from autofit.core.statistics import CLIP_LOG, below, clipped, expected_gain


@pytest.mark.parametrize("z", [-3.0, -1.0, 0.0, 0.5, 2.0])
def test_the_probability_is_that_of_the_normal_distribution(z: float) -> None:
    assert below(z) == pytest.approx(NormalDist().cdf(z), rel=1e-12)


def test_the_lower_tail_is_exact() -> None:
    assert below(-30) == pytest.approx(4.906713927148187e-198, rel=1e-12)  # Mills' ratio, to 16 digits


@pytest.mark.parametrize(("mean", "deviation"), [(0.05, 0.02), (0.0, 0.1), (-0.05, 0.05)])
def test_the_expected_gain_is_the_mean_of_what_is_above_nothing(mean: float, deviation: float) -> None:
    draw = random.Random(0)
    drawn = fmean(max(draw.gauss(mean, deviation), 0.0) for _ in range(200_000))
    assert expected_gain(mean, deviation) == pytest.approx(drawn, rel=0.01)


def test_what_is_surely_known_gains_its_value_or_nothing() -> None:
    assert expected_gain(0.1, 0.0) == pytest.approx(0.1)
    assert expected_gain(-0.1, 0.0) == 0.0


def test_an_outlier_counts_as_far_as_the_limit_from_the_median() -> None:
    assert clipped([0.0, 0.1, 0.2, 9.0, -9.0]) == [0.0, 0.1, 0.2, 0.1 + CLIP_LOG, 0.1 - CLIP_LOG]
