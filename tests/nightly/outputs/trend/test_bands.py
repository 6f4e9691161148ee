"""Bands, limits and lines: they stay within a segment, and a shorter path is the same path."""

import random
import re

import pytest

from autofit.nightly.outputs.trend.bands import Point, band_paths, limit_path, lines, path, simpler
from autofit.nightly.outputs.trend.entries import entries_of
from autofit.nightly.outputs.trend.time_scale import time_scale
from autofit.reports.svg.axes import AxisScale
from tests.nightly import samples

HISTORY = samples.year()


def points_of(text: str) -> list[Point]:
    """Returns the points of a path of this module."""
    found = list[Point]()
    for command, values in re.findall(r"([Ml])([^Mlz]*)", text):
        dx, dy = (float(number) for number in re.findall(r"-?[0-9.]+", values))
        at = (dx, dy) if command == "M" else (found[-1][0] + dx, found[-1][1] + dy)
        found.append(at)
    return found


@pytest.mark.parametrize("per_unit", [1, 10])
def test_relative_steps_do_not_add_up_to_an_error(per_unit: int) -> None:
    noise = random.Random(2)
    given = [(place * 2.345, noise.uniform(-5, 200)) for place in range(300)]
    read = points_of(path(given, per_unit))
    assert len(read) == 300
    for (x, y), (px, py) in zip(given, read, strict=True):
        assert abs(x - px) <= 0.51 / per_unit
        assert abs(y - py) <= 0.51 / per_unit


def test_a_flat_stretch_becomes_its_two_ends() -> None:
    flat = [(float(place), 10.0) for place in range(50)]
    assert simpler(flat) == [flat[0], flat[-1]]
    step = [*flat, *((float(place), 20.0) for place in range(50, 100))]
    assert simpler(step) == [step[0], step[49], step[50], step[-1]]
    assert simpler(flat[:1]) == flat[:1]


def test_a_slow_rise_is_not_flattened() -> None:
    rise = [(float(place), 0.1 * place) for place in range(300)]
    kept = simpler(rise)
    for x, y in rise:
        before = max(point for point in kept if point[0] <= x)
        assert abs(before[1] - y) <= 0.8


def test_a_band_ends_where_its_segment_ends() -> None:
    entries = entries_of(HISTORY["gpt"], 400)
    x = time_scale(entries, 0.0, 1000.0)
    found = list(band_paths(entries, x, AxisScale(40_000, 60_000, 200.0, 0.0)))
    assert len(found) == 3
    borders = [x(entry.at.timestamp()) for entry in entries if entry.changes]
    for text in found:
        at = [place for place, _ in points_of(text)]
        assert text.endswith("z")
        assert not [border for border in borders if min(at) < border < max(at)]


def test_a_band_has_its_ends_at_the_limits_of_the_verdict() -> None:
    entries = entries_of(HISTORY["gpt"][-1:], 10)
    (text,) = band_paths(entries, time_scale(entries, 0.0, 100.0), AxisScale(40_000, 60_000, 200.0, 0.0))
    band = entries[0].band
    assert band is not None
    heights = {y for _, y in points_of(text)}
    assert heights == {round((60_000 - end) / 100) for end in band}
    assert {x for x, _ in points_of(text)} == {47.0, 53.0}  # a band of one night can be seen


def test_the_limit_of_memory_has_a_stretch_for_each_segment() -> None:
    entries = entries_of(HISTORY["gpt"], 400)
    text = limit_path(entries, time_scale(entries, 0.0, 1000.0), AxisScale(0, 2**35, 100.0, 0.0))
    assert text.count("M") == 3
    assert limit_path(entries[:1], time_scale(entries, 0.0, 1.0), AxisScale(0, 1, 0.0, 1.0)) == ""


def test_a_line_is_interrupted_by_a_segment_and_by_a_night_without_a_value() -> None:
    found = list(lines(entries_of(HISTORY["vit"], 400), lambda entry: entry.rate_per_s))
    assert len(found) == 4  # three segments, and the second one has three nights with an error
    assert all(len(points) > 1 for points in found)
