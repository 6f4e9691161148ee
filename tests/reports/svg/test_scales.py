"""Scales: values stay inside, ticks are round and few."""

import pytest

from autofit.reports.svg.scales import (
    AxisScale,
    byte_ticks,
    byte_unit,
    duration_ticks,
    nice_step,
    nice_ticks,
    power_ticks,
    rate_ticks,
    size_ticks,
    span,
)

GIB = 2**30


def test_a_linear_scale_maps_its_ends_and_middle() -> None:
    scale = AxisScale(10, 20, 100, 0)
    assert [scale(10), scale(15), scale(20)] == [100, 50, 0]


def test_equal_ratios_are_equally_long_on_a_logarithmic_scale() -> None:
    scale = AxisScale(1, 8, 0, 30, log2=True)
    assert [scale(1), scale(2), scale(4), scale(8)] == pytest.approx([0, 10, 20, 30])


def test_values_outside_are_drawn_at_the_ends() -> None:
    scale = AxisScale(1, 2, 0, 10)
    assert [scale(-5), scale(7)] == [0, 10]


@pytest.mark.parametrize(
    ("high_s", "labels"),
    [
        (1.0, ["0", "0.2 s", "0.4 s", "0.6 s", "0.8 s", "1 s"]),
        (63.0, ["0", "20 s", "40 s", "60 s"]),
        (300.0, ["0", "1 min", "2 min", "3 min", "4 min", "5 min"]),
        (5 * 3600.0, ["0", "1 h", "2 h", "3 h", "4 h", "5 h"]),
    ],
)
def test_times_are_in_the_unit_in_which_they_are_read(high_s: float, labels: list[str]) -> None:
    ticks = duration_ticks(high_s, 5)
    assert [label for _, label in ticks] == labels
    assert ticks[-1][0] == pytest.approx(high_s, rel=0.06)


@pytest.mark.parametrize("values", [[1.0], [0.0], [3.0, 3.0], [990.0, 1000.0], [1.0, 1e9], [5e-7, 6e-7]])
def test_a_span_holds_its_values_and_is_not_empty(values: list[float]) -> None:
    low, high = span(values)
    assert low <= min(values)
    assert max(values) <= high
    assert low < high


def test_a_span_starts_at_zero_only_if_that_wastes_little() -> None:
    assert span([100.0, 300.0])[0] == 0
    assert span([280.0, 300.0])[0] > 250


@pytest.mark.parametrize("count", [2, 3, 5, 7])
@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 37), (980, 1011), (0.012, 0.094), (3, 7e9)])
def test_ticks_are_multiples_of_a_round_step_and_not_too_many(low: float, high: float, count: int) -> None:
    ticks, step = nice_ticks(low, high, count), nice_step(low, high, count)
    assert f"{step:e}"[:3] in {"1.0", "2.0", "2.5", "5.0"}
    assert 1 <= len(ticks) <= count + 1
    assert all(low - step * 1e-6 <= tick <= high + step * 1e-6 for tick in ticks)


def test_ticks_of_bytes_are_round_in_one_unit() -> None:
    assert byte_ticks(0, 21 * GIB, 5) == [
        (0, "0"), (5 * GIB, "5 GiB"), (10 * GIB, "10 GiB"), (15 * GIB, "15 GiB"), (20 * GIB, "20 GiB"),
    ]  # fmt: skip
    assert byte_unit(512) == ("B", 1)


def test_ticks_of_powers_are_thinned() -> None:
    assert [label for _, label in power_ticks(1, 1024, 20)][-1] == "1,024"
    assert [value for value, _ in power_ticks(0.9, 1100, 4)] == [1, 8, 64, 512]


def test_a_span_without_a_power_of_two_has_a_tick_in_its_middle() -> None:
    assert power_ticks(24 / 1.15, 24 * 1.15, 5) == [(24.0, "24")]


def test_ticks_of_rates_have_thousands_marked() -> None:
    assert [label for _, label in rate_ticks(0, 60_000, 3)] == ["0", "20,000", "40,000", "60,000"]


def test_sizes_have_a_tick_each_where_their_labels_fit() -> None:
    sizes = [64, 40, 48, 56, 48]
    wide, narrow = (AxisScale(40 / 1.15, 64 * 1.15, 0, width, log2=True) for width in (500, 60))
    assert size_ticks(sizes, wide, 12, 9) == [(40, "40"), (48, "48"), (56, "56"), (64, "64")]
    assert size_ticks(sizes, narrow, 12, 9) == [(64, "64")]
    assert size_ticks([8], AxisScale(7, 9, 0, 500, log2=True), 12, 9) == [(8, "8")]
