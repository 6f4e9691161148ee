"""Dates on an axis: ticks at whole days, weeks and months."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAYS = (1, 2, 4, 7, 14)
_STEPS = (1, 2, 3, 6, 12, 24, 60, 120, 600, 3000)
"""Distances of ticks, in days and in months."""


def date_ticks(first: datetime, last: datetime, most: int) -> list[tuple[float, str]]:
    """Returns at most `most` ticks between two times in UTC, as seconds since 1970 and label; the first time if none.

    The first tick of each year has the year in its label, unless all nights are of one year.
    """
    days = (last - first) / timedelta(days=1)
    for step in _DAYS:
        if days / step < most:
            return _labelled(list(_every_day(first, last, step)) or [first], first, last, days=True)
    months = (last.year - first.year) * 12 + last.month - first.month
    step = next((step for step in _STEPS if months // step < most), _STEPS[-1])
    return _labelled(list(_every_month(first, last, step)), first, last, days=False)[:most]


def _every_day(first: datetime, last: datetime, step: int) -> Iterator[datetime]:
    at = _midnight(first)
    while at <= last:
        if at >= first:
            yield at
        at += timedelta(days=step)


def _every_month(first: datetime, last: datetime, step: int) -> Iterator[datetime]:
    """Yields the first day of each `step`-th month; those of a year are the same in every year."""
    for month in range(first.year * 12 + first.month - 1, last.year * 12 + last.month):
        at = datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC)
        if month % step == 0 and first <= at <= last:
            yield at


def _labelled(ticks: list[datetime], first: datetime, last: datetime, *, days: bool) -> list[tuple[float, str]]:
    found, year = list[tuple[float, str]](), first.year if first.year == last.year else None
    for at in ticks:
        label = f"{_MONTHS[at.month - 1]} {at.day}" if days else _MONTHS[at.month - 1]
        found.append((at.timestamp(), label if at.year == year else f"{label} {at.year}"))
        year = at.year
    return found


def _midnight(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0)
