"""Statistics of throughputs: tails, expected gain, outliers."""

from statistics import NormalDist, fmean

import pytest

from autofit.core.statistics import CLIP_LOG, DEVIATIONS_95, below, clipped, expected_gain


def test_the_probability_below_is_that_of_the_normal_distribution_also_far_out() -> None:
    for z in (-3.0, -1.0, 0.0, 0.5, 2.0):
        assert below(z) == pytest.approx(NormalDist().cdf(z), rel=1e-12)
    assert below(-9) == pytest.approx(1.1286e-19, rel=1e-4)
    assert below(DEVIATIONS_95) - below(-DEVIATIONS_95) == pytest.approx(0.95, abs=1e-4)


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 1.0), (0.3, 0.2), (-0.4, 0.3), (2.0, 0.01)])
def test_the_expected_gain_is_the_mean_of_the_positive_part(mean: float, deviation: float) -> None:
    draws = [NormalDist(mean, deviation).inv_cdf((at + 0.5) / 20_000) for at in range(20_000)]
    assert expected_gain(mean, deviation) == pytest.approx(fmean(max(draw, 0) for draw in draws), rel=1e-3)


def test_the_expected_gain_without_a_deviation() -> None:
    assert expected_gain(0.5, 0.0) == 0.5
    assert expected_gain(-0.5, 0.0) == 0.0


def test_an_outlier_is_moved_towards_the_median() -> None:
    assert clipped([0.0, 0.1, 5.0]) == [0.0, 0.1, 0.1 + CLIP_LOG]
    assert clipped([-5.0, 0.0, 0.1]) == [-CLIP_LOG, 0.0, 0.1]
