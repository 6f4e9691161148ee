"""The rule: bands follow the noise, a run shows what one night does not, and one outlier shows nothing."""

import random

import pytest

from autofit.nightly.rule import (
    LEAST_CHANGE,
    clipped,
    deviation,
    deviation_of_steps,
    memory_band,
    throughput_band,
    throughput_suspicions,
)


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
    assert [each.cause for each in throughput_suspicions(calm, band, 80.0)] == ["night"]
    slower = [*calm, 95.5, 95.0]
    found = throughput_suspicions(slower, throughput_band(slower), 95.2)
    assert [(each.cause, each.nights) for each in found] == [("run", 3)]
    assert found[0].confirmed(94.0)
    assert not found[0].confirmed(100.0)


def test_a_slow_decline_is_a_drift() -> None:
    falling = [value * 0.997**number for number, value in enumerate(nights(60, 0.004))]
    found = throughput_suspicions(falling, throughput_band(falling), falling[-1])
    assert "drift" in [each.cause for each in found]
    early = throughput_suspicions(falling[:26], throughput_band(falling[:26]), falling[25])
    assert "drift" not in [each.cause for each in early]  # the first and the latest nights would overlap


def test_only_one_night_suspects_that_it_is_faster() -> None:
    calm = nights(60, 0.01)
    found = throughput_suspicions(calm, throughput_band(calm), 110.0)
    assert [(each.cause, each.side) for each in found] == [("night", 1)]
