"""The levels of a job: bands follow the noise, changes stay open, and nothing is claimed without a second reading."""

import random

import pytest

from autofit.nightly.levels import (
    LEAST_CHANGE,
    LEAST_NIGHTS,
    Level,
    NightReading,
    Track,
    clipped,
    decide,
    deviation,
    deviation_of_steps,
    memory_band,
    throughput_band,
    throughput_suspicions,
)
from autofit.nightly.records import Verdict


def nights(count: int, noise: float, seed: int = 0, level: float = 100.0) -> list[float]:
    chance = random.Random(seed)
    return [level * (1 + chance.gauss(0, noise)) for _ in range(count)]


@pytest.mark.parametrize("noise", [0.005, 0.01, 0.03])
def test_the_deviation_is_that_of_the_nights_and_a_little_more_for_few(noise: float) -> None:
    many = deviation([value / 100 for value in nights(400, noise)])
    assert many == pytest.approx(noise, rel=0.15)
    few = [deviation([v / 100 for v in nights(6, noise, seed)]) for seed in range(200)]
    assert sum(few) / len(few) > 1.3 * noise


def test_outliers_widen_nothing_much_and_growth_does_not_look_like_noise() -> None:
    calm = nights(60, 0.01)
    assert deviation([*calm, 60.0, 50.0]) < 1.5 * deviation(calm)
    assert max(clipped([*calm, 500.0])) < 120
    grown = [value * 1.01**number for number, value in enumerate(nights(60, 0.001))]
    assert deviation_of_steps(grown) < 0.2 * deviation(grown)
    assert deviation([1.0]) == deviation_of_steps([1.0, 2.0]) == 0.0


def test_a_band_is_never_narrower_than_the_least_change() -> None:
    band = throughput_band([100.0] * 20)
    assert (band.expected, band.low, band.high, band.nights) == (100.0, 98.0, 102.0, 14)
    wide = throughput_band(nights(60, 0.02))
    assert wide.expected - wide.low > 3 * LEAST_CHANGE * wide.expected * 0.9


def test_the_band_of_memory_does_not_roll_and_knows_peaks_that_were_seen_before() -> None:
    growing = [100.0 + number for number in range(60)]
    assert memory_band(growing, [159.0]).expected == pytest.approx(106.5)
    assert memory_band([100.0] * 20, [100.0]).high == 102.0
    assert memory_band([100.0] * 20, [110.0, 110.0, 110.0]).high == 110.0


def test_one_slow_night_is_a_suspicion_of_one_night_and_three_are_a_run() -> None:
    calm = nights(60, 0.02)
    band = throughput_band(calm)
    assert throughput_suspicions(calm, band, 100.0) == []
    assert [each.nights for each in throughput_suspicions(calm, band, 80.0)] == [1]
    slower = [*calm, 95.5, 95.0]
    found = throughput_suspicions(slower, throughput_band(slower), 95.2)
    assert [each.nights for each in found] == [3]
    assert found[0].confirmed(94.0)
    assert not found[0].confirmed(100.0)


def test_only_one_night_suspects_that_it_is_faster() -> None:
    calm = nights(60, 0.01)
    found = throughput_suspicions(calm, throughput_band(calm), 110.0)
    assert [(each.nights, each.side) for each in found] == [(1, 1)]


def add(to: Level, number: int, rate: float = 100.0, peak: float = 10.0, **claim: object) -> None:
    """Adds a night whose two readings are equal."""
    reading, given = NightReading(rate, peak), {"expected_per_s": 100.0, "expected_bytes": 10} | claim
    to.add(str(number), reading, reading, Verdict.model_validate({"kind": "steady", "reason": "", **given}))


def level(count: int, rate: float = 100.0) -> Level:
    found = Level()
    for number in range(count):
        add(found, number, rate)
    return found


def test_a_level_needs_five_nights() -> None:
    assert [level(count).missing_nights for count in (0, 3, 5, 9)] == [5, 2, 0, 0]


def test_the_nights_of_a_regression_are_not_in_the_reference_until_it_ends_or_is_accepted() -> None:
    found = level(20)
    for number in range(20, 24):
        add(found, number, 90.0, moved=("slower",), evidence_nights=3, since="18")
    track = found.rate
    assert (len(track.reference), track.side, track.since) == (18, -1, "18")  # two nights before it were evidence
    assert track.changed == [100.0, 100.0, 90.0, 90.0, 90.0, 90.0]
    found.accept()
    assert (found.rate.side, found.rate.reference[-1]) == (0, 90.0)
    assert found.rate.reference[0] == 90.0  # earlier nights are kept for their noise, at the new level


def test_a_night_back_at_the_level_ends_a_regression() -> None:
    found = level(20)
    add(found, 20, 90.0, moved=("slower",))
    add(found, 21, 100.0)
    assert (found.rate.side, found.rate.changed, len(found.rate.reference)) == (0, [], 21)


def test_a_faster_level_is_the_reference_after_five_nights() -> None:
    found = level(20)
    for number in range(20, 20 + LEAST_NIGHTS):
        assert found.rate.side == (1 if number > 20 else 0)
        add(found, number, 110.0, moved=("faster",))
    assert found.rate.side == 0
    assert found.rate.reference[-LEAST_NIGHTS:] == [110.0] * LEAST_NIGHTS


def test_memory_that_became_lower_is_the_reference_after_five_nights() -> None:
    found = level(20)
    for number in range(20, 25):
        add(found, number, peak=8.0)
    assert found.memory.reference == [8.0] * LEAST_NIGHTS
    assert found.highest == [8.0, 8.0, 8.0]


def test_an_open_regression_of_memory_can_be_accepted() -> None:
    found = level(20)
    add(found, 20, peak=12.0, moved=("more memory",))
    assert (found.memory.side, found.highest) == (1, [10.0, 10.0, 10.0])
    found.accept()
    assert (found.memory.side, found.memory.reference[-1]) == (0, 12.0)


def test_a_reading_closer_to_the_old_level_suspects_that_the_change_is_over() -> None:
    track = Track(reference=[100.0] * 20)
    track.add_changed(90.0, -1, 100.0, "20")
    band = throughput_band(track.reference)
    assert track.back(band, 91.0) == []
    (found,) = track.back(band, 99.0)
    assert found.side == 1
    assert found.confirmed(99.0)
    assert not found.confirmed(90.0)


@pytest.mark.parametrize(
    ("first", "second", "rate", "memory"),
    [
        ((100.0, 10.0), None, 0, 0),
        ((94.0, 10.0), (94.0, 10.0), -1, 0),
        ((94.0, 10.0), (100.0, 10.0), 0, 0),
        ((94.0, 10.0), None, 0, 0),
        ((106.0, 10.0), (106.0, 10.0), 1, 0),
        ((100.0, 11.0), (100.0, 11.0), 0, 1),
        ((94.0, 11.0), (94.0, 11.0), -1, 1),
        ((100.0, 9.0), (100.0, 9.0), 0, 0),
    ],
)
def test_what_is_claimed(
    first: tuple[float, float], second: tuple[float, float] | None, rate: int, memory: int
) -> None:
    asked = []

    def confirm() -> NightReading | None:
        asked.append(1)
        return None if second is None else NightReading(*second)

    found = decide(level(20), NightReading(*first), confirm)
    assert (found.rate.side, found.memory.side) == (rate, memory)
    assert len(asked) == (first not in ((100.0, 10.0), (100.0, 9.0)))
    assert found.rate.begins is (rate != 0)


def test_an_open_change_stays_or_ends_with_both_readings() -> None:
    open_one = level(20)
    add(open_one, 20, 90.0, moved=("slower",))
    still = decide(open_one, NightReading(90.5, 10.0), lambda: pytest.fail("not needed"))
    assert (still.rate.side, still.rate.since) == (-1, "20")
    ended = decide(open_one, NightReading(100.0, 10.0), lambda: NightReading(99.0, 10.0))
    assert (ended.rate.side, ended.rate.since) == (0, "20")
    doubted = decide(open_one, NightReading(100.0, 10.0), lambda: NightReading(89.0, 10.0))
    assert (doubted.rate.side, doubted.rate.since) == (-1, "20")
