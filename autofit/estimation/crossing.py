"""Crossing: where a quantity that grows about in a straight line crosses a limit, found with few evaluations."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence

_PATIENCE = 9
"""After so many evaluations the middle is taken: the line has misled."""
_STRIDE = 4
"""Where the quantity does not grow yet, so many times further is looked next."""


def last_below(
    candidates: Sequence[int],
    value_of: Callable[[int], int],
    limit: int,
    start: int,
    known: Mapping[int, int] | None = None,
    tolerance: float = 0.0,
) -> int | None:
    """Returns the largest candidate whose value is at most `limit`, or None where even the smallest is above.

    The one that is returned was evaluated, and so was the next (within the tolerance), which is above; where values do
    not quite grow, there may be a larger one that is below again. Costs about four evaluations.

    Args:
        candidates: numbers from 0 up, ascending.
        value_of: evaluates a candidate.
        limit: what the value may be.
        start: evaluated first, or the candidate below it, unless it is known.
        known: values that need no evaluation, by number; numbers that are no candidates help to draw the line.
        tolerance: by what share of itself the one that is returned may be too small.
    """
    values, below, above = dict(known or {}), -1, len(candidates)
    for candidate, value in values.items():
        place = bisect_left(candidates, candidate)
        if place < len(candidates) and candidates[place] == candidate:
            below, above = (max(below, place), above) if value <= limit else (below, min(above, place))
    place = bisect_right(candidates, start) - 1
    for count in range(len(candidates) + 1):
        if above - below <= 1 or _close(candidates, below, above, tolerance):
            break
        if count or start in values:
            place = _next(candidates, values, limit) if count < _PATIENCE else (below + above) // 2
        place = min(max(place, below + 1), above - 1)
        candidate = candidates[place]
        values[candidate] = value_of(candidate)
        below, above = (place, above) if values[candidate] <= limit else (below, place)
    return candidates[below] if below >= 0 else None


def _close(candidates: Sequence[int], below: int, above: int, tolerance: float) -> bool:
    inside = below >= 0 and above < len(candidates)
    return inside and candidates[above] - candidates[below] <= tolerance * candidates[below]


def on_line(values: Mapping[int, int], number: int) -> float:
    """Returns what the line through the two known values nearest to `number` has there; of one value, from zero on."""
    near = sorted(values, key=lambda known: abs(known - number))[:2]
    low, high = (0, near[0]) if len(near) == 1 else sorted(near)
    start = values.get(low, 0)
    return start + (values[high] - start) * (number - low) / (high - low)


def nearest_below(candidates: Sequence[int], values: Mapping[int, int], limit: int) -> int | None:
    """Returns the largest candidate that is below `limit` on the line through known values; None where none is."""
    place = _next(candidates, values, limit) if values else -1
    return candidates[place] if place >= 0 else None


def _next(candidates: Sequence[int], values: Mapping[int, int], limit: int) -> int:
    """Returns the place of the candidate where the line through two values meets the limit.

    The two are the nearest below and above the limit; while all are on one side, the two nearest.
    """
    near = sorted(values, key=lambda candidate: abs(values[candidate] - limit))
    beyond = (other for other in near if (values[other] > limit) != (values[near[0]] > limit))
    near = [near[0], *([other] if (other := next(beyond, None)) is not None else near[1:2])]
    if len(near) == 1:
        wanted = 2.0 * near[0] if values[near[0]] <= limit else near[0] / 2
        return bisect_right(candidates, wanted) - 1
    low, high = sorted(near)
    slope = (values[high] - values[low]) / (high - low)
    if slope <= 0:
        return bisect_right(candidates, _STRIDE * max(values)) - 1
    return bisect_right(candidates, low + (limit - values[low]) / slope) - 1
