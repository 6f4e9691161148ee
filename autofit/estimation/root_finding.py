"""Root finding: finds with few evaluations where an approximately linear quantity crosses a limit."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence

_PATIENCE = 9
"""Number of evaluations after which bisection replaces linear interpolation, which has then failed."""
_STRIDE = 4
"""Factor by which the next candidate is larger if the quantity does not grow yet."""


def last_below(
    candidates: Sequence[int],
    value_of: Callable[[int], int],
    limit: int,
    start: int,
    known: Mapping[int, int] | None = None,
    tolerance: float = 0.0,
) -> int | None:
    """Returns the largest candidate whose value is at most `limit`, or None if even the smallest is above it.

    The returned candidate was evaluated. So was the next one (within the tolerance), which is above the limit. If
    values do not grow monotonically, a larger candidate may be below the limit again. Costs about four evaluations.

    Args:
        candidates: non-negative numbers in ascending order.
        value_of: evaluates a candidate.
        limit: maximum value.
        start: evaluated first, or the candidate below it, unless it is known.
        known: values that need no evaluation, by number. Numbers that are not candidates are used for interpolation.
        tolerance: relative amount by which the result may be too small.
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
    """Interpolates at `number` from the two nearest known values; from one value, on the line through zero."""
    near = sorted(values, key=lambda known: abs(known - number))[:2]
    low, high = (0, near[0]) if len(near) == 1 else sorted(near)
    start = values.get(low, 0)
    return start + (values[high] - start) * (number - low) / (high - low)


def nearest_below(candidates: Sequence[int], values: Mapping[int, int], limit: int) -> int | None:
    """Returns the largest candidate that is below `limit` on the line through known values; None if there is none."""
    place = _next(candidates, values, limit) if values else -1
    return candidates[place] if place >= 0 else None


def _next(candidates: Sequence[int], values: Mapping[int, int], limit: int) -> int:
    """Returns the index of the candidate where the line through two values meets the limit.

    The two are the nearest below and above the limit, or the two nearest if all are on one side.
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
