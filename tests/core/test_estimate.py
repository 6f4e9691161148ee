"""An estimate without bounds is a guess."""

from autofit.core.estimate import Estimate


def test_an_estimate_with_a_bound_on_either_side_is_bounded() -> None:
    assert Estimate(value_bytes=10, lower_bytes=5).is_bounded
    assert Estimate(value_bytes=10, upper_bytes=15).is_bounded
    assert not Estimate(value_bytes=10, basis="from the measured peak of another plan").is_bounded
