"""What a throughput ratio says beside its value."""

import math
from statistics import NormalDist, fmean

import pytest

from autofit.core.answer import Ratio


@pytest.mark.parametrize(("value", "low", "high"), [(1.0, 0.9, 1.111), (1.2, 1.15, 1.252), (0.9, 0.75, 1.08)])
def test_the_expected_gain_is_the_mean_of_what_is_above_nothing(value: float, low: float, high: float) -> None:
    log = NormalDist(math.log(value), math.log(high / low) / (2 * 1.959964))
    drawn = [max(log.inv_cdf((i + 0.5) / 20_000), 0.0) for i in range(20_000)]
    assert Ratio(value=value, low=low, high=high).expected_gain == pytest.approx(fmean(drawn), rel=2e-3, abs=1e-6)


def test_the_expected_gain_of_what_is_surely_known() -> None:
    assert Ratio(value=1.1, low=1.1, high=1.1).expected_gain == pytest.approx(math.log(1.1))
    assert Ratio(value=0.9, low=0.9, high=0.9).expected_gain == pytest.approx(0.0, abs=1e-9)
    assert Ratio(value=1.0, low=1.0, high=1.0).expected_gain == pytest.approx(0.0, abs=1e-8)


def test_extreme_ratios_are_short_in_text() -> None:
    assert str(Ratio(value=1019.65, low=0.0032, high=2128.03)) == "1,020x (<0.01 to 2,130)"
    assert str(Ratio(value=1.3, low=1.2, high=1.4)) == "1.30x (1.20 to 1.40)"
