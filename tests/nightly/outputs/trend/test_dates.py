"""Ticks of dates: round, few enough, and the year is named where it changes."""

from datetime import UTC, datetime, timedelta

import pytest

from autofit.nightly.outputs.trend.dates import date_ticks

FIRST = datetime(2025, 11, 26, 1, 0, tzinfo=UTC)


def labels(days: float, most: int, first: datetime = FIRST) -> list[str]:
    return [label for _, label in date_ticks(first, first + timedelta(days=days), most)]


@pytest.mark.parametrize("days", [0, 0.01, 0.5, 1, 2, 9, 13, 40, 90, 200, 365, 1000, 4000, 90_000])
@pytest.mark.parametrize("most", [1, 2, 4, 7, 14])
def test_ticks_are_inside_in_order_and_few(days: float, most: int) -> None:
    last = FIRST + timedelta(days=days)
    ticks = date_ticks(FIRST, last, most)
    assert len(ticks) <= most + 1
    assert [value for value, _ in ticks] == sorted({value for value, _ in ticks})
    assert all(FIRST.timestamp() <= value <= last.timestamp() for value, _ in ticks)


def test_days_weeks_and_months_are_named() -> None:
    assert labels(6, 14) == ["Nov 27", "Nov 28", "Nov 29", "Nov 30", "Dec 1", "Dec 2"]
    assert labels(30, 5)[:2] == ["Dec 3", "Dec 10"]
    assert labels(365, 7) == ["Jan 2026", "Mar", "May", "Jul", "Sep", "Nov"]
    assert labels(365 * 3, 5) == ["Jan 2026", "Jan 2027", "Jan 2028"]


def test_a_year_that_begins_is_named_once() -> None:
    found = labels(60, 8)
    assert [label for label in found if "2026" in label] == [next(label for label in found if label.startswith("Jan"))]


def test_one_night_has_one_tick() -> None:
    assert labels(0, 14) == ["Nov 26"]
