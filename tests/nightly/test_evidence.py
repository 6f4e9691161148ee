"""The evidence of a verdict in words, with its figures."""

import pytest

from autofit.nightly.decision import decide
from autofit.nightly.evidence import counted_nights, growth_per_night, rate_text, sentence, until_budget
from autofit.nightly.levels import Level, NightReading, PastNight, Track

MIB = 2**20


def level(rates: list[float]) -> Level:
    found = Level()
    for number, rate in enumerate(rates):
        found.add(PastNight(str(number), NightReading(rate, 100 * MIB), 100 * MIB))
    return found


def said(rates: list[float], first: NightReading, second: NightReading | None = None) -> str:
    found = level(rates)
    return sentence(decide(found, first, lambda: second), first, found.rate, "samples")


def test_a_quiet_night_is_inside_both_bands() -> None:
    assert said([100.0] * 20, NightReading(101.0, 100 * MIB)) == (
        "throughput 101 samples/s is inside its band of 14 nights, 98 samples/s to 102 samples/s; "
        "the peak 100 MiB is inside its band of 14 nights, 98 MiB to 102 MiB"
    )


def test_a_claim_comes_first_with_both_readings() -> None:
    slow = NightReading(90.0, 100 * MIB)
    assert said([100.0] * 20, slow, NightReading(91.0, 100 * MIB)).startswith(
        "throughput is 10.0% lower than the median of 14 nights, 100 samples/s: tonight 90 samples/s, measured again "
        "91 samples/s, band 98 samples/s to 102 samples/s; "
    )
    fat = NightReading(100.0, 110 * MIB)
    assert said([100.0] * 20, fat, fat).startswith("the peak is 10.0% higher than the median of 14 nights, 100 MiB")


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (NightReading(100.0, 100 * MIB), "was lower than expected once, not when measured again"),
        (None, "was lower than expected, and was not measured again"),
    ],
)
def test_a_doubt_is_named(second: NightReading | None, words: str) -> None:
    assert words in said([100.0] * 20, NightReading(90.0, 100 * MIB), second)


def test_growth_is_extrapolated_to_the_budget() -> None:
    growing = Track(reference=[(100.0 + number) * MIB for number in range(10)])
    assert until_budget(growing, 110 * MIB, 120 * MIB) == (
        "the peak grows by 1 MiB (0.91%) per night and reaches the budget of 120 MiB in 10 nights"
    )
    assert until_budget(growing, 110 * MIB, None).endswith("per night")
    assert until_budget(Track(reference=[100.0 * MIB] * 10), 100 * MIB, 120 * MIB) == ""
    assert growth_per_night([1.0]) == 0.0


def test_numbers_have_their_units() -> None:
    assert (rate_text(1234.5, "tokens"), counted_nights(1), counted_nights(2)) == (
        "1,234 tokens/s", "1 night", "2 nights"
    )  # fmt: skip
