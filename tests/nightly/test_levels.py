"""The level: which nights tonight is compared with, and what happens to those of a change."""

from autofit.nightly.levels import Level, NightReading, PastNight, Track
from autofit.nightly.rule import LEAST_NIGHTS, throughput_band


def past(number: int, rate: float = 100.0, peak: float = 10.0, **changes: object) -> PastNight:
    return PastNight(str(number), NightReading(rate, peak), peak)._replace(**changes)  # type: ignore[arg-type]


def level(count: int, rate: float = 100.0) -> Level:
    found = Level()
    for number in range(count):
        found.add(past(number, rate))
    return found


def test_a_level_needs_five_nights() -> None:
    assert [level(count).missing_nights for count in (0, 3, 5, 9)] == [5, 2, 0, 0]


def test_the_nights_of_a_regression_are_not_in_the_reference_until_it_ends_or_is_accepted() -> None:
    found = level(20)
    for number in range(20, 24):
        expected = NightReading(100.0, 10.0)
        found.add(past(number, 90.0, rate_side=-1, evidence_nights=3, expected=expected))
    track = found.rate
    assert (len(track.reference), track.side, track.since) == (18, -1, "18")  # two nights before it were evidence
    assert track.changed == [100.0, 100.0, 90.0, 90.0, 90.0, 90.0]
    found.accept()
    assert (found.rate.side, found.rate.reference[-1]) == (0, 90.0)
    assert found.rate.reference[0] == 90.0  # earlier nights are kept for their noise, at the new level


def test_a_night_back_at_the_level_ends_a_regression() -> None:
    found = level(20)
    found.add(past(20, 90.0, rate_side=-1, expected=NightReading(100.0, 10.0)))
    found.add(past(21, 100.0))
    assert (found.rate.side, found.rate.changed, len(found.rate.reference)) == (0, [], 21)


def test_a_faster_level_is_the_reference_after_five_nights() -> None:
    found = level(20)
    for number in range(20, 20 + LEAST_NIGHTS):
        assert found.rate.side == (1 if number > 20 else 0)
        found.add(past(number, 110.0, rate_side=1, expected=NightReading(100.0, 10.0)))
    assert found.rate.side == 0
    assert found.rate.reference[-LEAST_NIGHTS:] == [110.0] * LEAST_NIGHTS


def test_memory_that_became_lower_is_the_reference_after_five_nights() -> None:
    found = level(20)
    for number in range(20, 25):
        found.add(past(number, peak=8.0))
    assert found.memory.reference == [8.0] * LEAST_NIGHTS
    assert found.highest == [8.0, 8.0, 8.0]


def test_an_open_regression_of_memory_can_be_accepted() -> None:
    found = level(20)
    found.add(past(20, peak=12.0, memory_side=1, expected=NightReading(100.0, 10.0)))
    assert (found.memory.side, found.highest) == (1, [10.0, 10.0, 10.0])
    found.accept()
    assert (found.memory.side, found.memory.reference[-1]) == (0, 12.0)


def test_a_reading_closer_to_the_old_level_suspects_that_the_change_is_over() -> None:
    track = Track(reference=[100.0] * 20, nights=[str(n) for n in range(20)])
    track.add_changed("20", 90.0, -1, 100.0, 1)
    band = throughput_band(track.reference)
    assert track.back(band, 91.0) == []
    (found,) = track.back(band, 99.0)
    assert (found.cause, found.side) == ("back", 1)
    assert found.confirmed(99.0)
    assert not found.confirmed(90.0)
