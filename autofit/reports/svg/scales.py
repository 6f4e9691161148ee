"""Scales: from values to coordinates, with ticks at round values."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise

from autofit.core.units import short_number
from autofit.reports.svg.lettering import text_width

_UNITS = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))
_DURATIONS = (("h", 3600), ("min", 60), ("s", 1))
_LEAST_TICKED = 5
"""An axis of time is in the largest unit that it holds this many times."""
_STEPS = (1, 2, 2.5, 5, 10)
_FROM_ZERO = 0.4
"""An axis starts at zero if its smallest value is below this share of the largest one."""


@dataclass(frozen=True, slots=True)
class AxisScale:
    """A mapping from values to coordinates.

    Attributes:
        low: smallest value.
        high: largest value.
        start: coordinate of `low`.
        end: coordinate of `high`.
        log2: whether equal ratios, not equal differences, are equally long.
    """

    low: float
    high: float
    start: float
    end: float
    log2: bool = False

    def __call__(self, value: float) -> float:
        """Returns the coordinate of a value. Values outside the scale are drawn at its ends."""
        value = min(max(value, self.low), self.high)
        if self.log2:
            share = math.log2(value / self.low) / math.log2(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def span(values: Iterable[float], margin: float = 0.06) -> tuple[float, float]:
    """Returns the lowest and highest value of an axis that shows all `values`; from zero unless that wastes space."""
    found = list(values)
    low, high = min(found), max(found)
    if low <= _FROM_ZERO * high:
        return 0.0, high * (1 + margin) or 1.0
    room = max(high - low, 0.04 * abs(high)) * max(margin, 0.12)
    return low - room, high + room


def nice_step(low: float, high: float, count: int) -> float:
    """Returns the round step that divides a span into about `count` parts, and at most `count` + 1."""
    rough = (high - low) / max(count, 1)
    size = 10.0 ** math.floor(math.log10(rough))
    return next(size * factor for factor in _STEPS if size * factor >= rough * 0.999)


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """Returns the multiples of a round step that lie between `low` and `high`."""
    step = nice_step(low, high, count)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def byte_unit(high: float) -> tuple[str, int]:
    """Returns the largest binary unit that `high` holds at least once."""
    return next(((name, size) for name, size in _UNITS if high >= size), _UNITS[-1])


def byte_ticks(low: float, high: float, count: int) -> list[tuple[float, str]]:
    """Returns ticks at round numbers of one binary unit, as value and label."""
    unit, size = byte_unit(high)
    return [
        (tick * size, f"{tick:,.4g} {unit}" if tick else "0") for tick in nice_ticks(low / size, high / size, count)
    ]


def duration_ticks(high_s: float, count: int) -> list[tuple[float, str]]:
    """Returns ticks from 0 to `high_s` seconds in seconds, minutes or hours, as value and label."""
    unit, size = next((name, size) for name, size in _DURATIONS if high_s >= _LEAST_TICKED * size or size == 1)
    return [(tick * size, f"{tick:,.4g} {unit}" if tick else "0") for tick in nice_ticks(0, high_s / size, count)]


def rate_ticks(low: float, high: float, count: int) -> list[tuple[float, str]]:
    """Returns ticks of a throughput, as value and label."""
    return [(tick, short_number(tick)) for tick in nice_ticks(low, high, count)]


def power_ticks(low: float, high: float, most: int) -> list[tuple[float, str]]:
    """Returns the powers of two between `low` and `high`, or each second or third one if there are more than `most`.

    If there is none, the middle of the span is the only tick.
    """
    first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
    step = max(math.ceil((last - first + 1) / max(most, 1)), 1)
    if last < first:
        middle = round(math.sqrt(low * high))
        return [(float(middle), f"{middle:,}")]
    return [(float(2**power), f"{2**power:,}") for power in range(first, last + 1, step)]


def size_ticks(sizes: Collection[int], x: AxisScale, font: float, most: int) -> list[tuple[float, str]]:
    """Returns a tick at each size if their labels fit beside each other; else as `power_ticks`.

    Args:
        sizes: values on the scale; one may occur several times.
        x: the scale.
        font: size of the labels.
        most: see `power_ticks`.
    """
    ticks = [(float(size), f"{size:,}") for size in sorted(set(sizes))]
    ends = [(x(size) - half, x(size) + half) for size, label in ticks for half in [text_width(label, font) / 2]]
    fits = all(left - right >= font / 2 for (_, right), (left, _) in pairwise(ends))
    return ticks if fits else power_ticks(x.low, x.high, most)
