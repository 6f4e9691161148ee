"""The scale of time: in order, inside, and closer together only where nights share points."""

from itertools import pairwise

import pytest

from autofit.nightly.outputs.trend.entries import entries_of
from autofit.nightly.outputs.trend.time_scale import time_scale
from tests.nightly import samples

HISTORY = samples.year()


@pytest.mark.parametrize("job", HISTORY)
@pytest.mark.parametrize("most", [40, 65, 400])
def test_nights_are_inside_in_their_order_and_apart(job: str, most: int) -> None:
    entries = entries_of(HISTORY[job], most)
    x = time_scale(entries, 50.0, 850.0)
    places = [x(entry.at.timestamp()) for entry in entries]
    assert all(50 < place < 850 for place in places)
    assert all(one < other for one, other in pairwise(places))


def test_a_short_history_has_one_scale() -> None:
    entries = entries_of(HISTORY["gpt"][-30:], 65)
    x = time_scale(entries, 0.0, 100.0)
    assert not x.turns
    steps = [x(b.at.timestamp()) - x(a.at.timestamp()) for a, b in pairwise(entries)]
    assert max(steps) - min(steps) < 1e-6


def test_a_long_history_turns_where_the_single_nights_begin() -> None:
    entries = entries_of(HISTORY["gpt"], 65)
    x = time_scale(entries, 0.0, 100.0)
    assert x.turns
    for entry in entries:
        assert (x(entry.at.timestamp()) > x.middle) == (entry.at.timestamp() > x.turn)
        assert entry.at.timestamp() < x.turn or len(entry.records) == 1
    assert 30 <= x.middle <= 70


def test_both_parts_have_ticks_in_order() -> None:
    x = time_scale(entries_of(HISTORY["gpt"], 65), 50.0, 850.0)
    ticks = x.ticks(14)
    assert [value for value, _ in ticks] == sorted(value for value, _ in ticks)
    assert {"Jan 2026", "Jul"} <= {label for value, label in ticks if value < x.turn}
    assert {"Nov 7", "Nov 21"} <= {label for value, label in ticks if value > x.turn}
    assert len(ticks) <= 16


def test_one_night_is_in_the_middle() -> None:
    entries = entries_of(HISTORY["gpt"][-1:], 65)
    assert time_scale(entries, 0.0, 100.0)(entries[0].at.timestamp()) == 50.0
