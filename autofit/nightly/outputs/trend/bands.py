"""Bands, limits and lines over nights. They end where a segment ends: figures of two segments are not compared."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from autofit.nightly.outputs.trend.entries import TrendEntry
from autofit.nightly.outputs.trend.time_scale import TimeScale
from autofit.reports.markup import number
from autofit.reports.svg.axes import AxisScale

_NEAR = 0.6
"""Distance in the picture below which two edges are drawn as one."""
_ALONE = 3.0
"""Half the width of the band of a night whose neighbours have none."""

Point = tuple[float, float]


def band_paths(entries: Sequence[TrendEntry], x: TimeScale, y: AxisScale) -> Iterator[str]:
    """Yields a closed path for each run of successive nights of one segment that have a noise band of throughput."""
    for run in _runs(entries, lambda entry: entry.band is not None):
        places = [(x(entry.at.timestamp()), entry.band or (0.0, 0.0)) for entry in run]
        low, high = ([(at, y(band[end])) for at, band in places] for end in (0, 1))
        edge = [*simpler(_widened(high)), *reversed(simpler(_widened(low)))]
        yield path(edge, 1) + "z"


def limit_path(entries: Sequence[TrendEntry], x: TimeScale, y: AxisScale) -> str:
    """Returns the path of the upper limit of peak memory; "" if no night has one."""
    found = []
    for run in _runs(entries, lambda entry: entry.last.verdict.high_bytes is not None):
        points = [(x(entry.at.timestamp()), y(float(entry.last.verdict.high_bytes or 0))) for entry in run]
        found.append(path(simpler(_widened(points)), 1))
    return "".join(found)


def lines(
    entries: Sequence[TrendEntry], value: Callable[[TrendEntry], float | None]
) -> Iterator[list[tuple[TrendEntry, float]]]:
    """Yields the runs of successive nights of one segment that have a value, each with at least two nights."""
    for run in _runs(entries, lambda entry: value(entry) is not None):
        points = [(entry, found) for entry in run if (found := value(entry)) is not None]
        if len(points) > 1:
            yield points


def _runs(entries: Sequence[TrendEntry], wanted: Callable[[TrendEntry], bool]) -> Iterator[list[TrendEntry]]:
    run = list[TrendEntry]()
    for entry in entries:
        if run and (entry.changes or not wanted(entry)):
            yield run
            run = []
        if wanted(entry):
            run.append(entry)
    if run:
        yield run


def _widened(points: Sequence[Point]) -> Sequence[Point]:
    """Returns the points, or two around a single one, so that it is visible."""
    if len(points) > 1:
        return points
    ((at, value),) = points
    return [(at - _ALONE, value), (at + _ALONE, value)]


def simpler(points: Sequence[Point]) -> list[Point]:
    """Returns the points without those inside a stretch of nearly equal values."""
    first, *others = points
    found = [first]
    for place, (at, value) in enumerate(others, start=1):
        last = place == len(points) - 1
        if last or abs(value - found[-1][1]) > _NEAR or abs(points[place + 1][1] - value) > _NEAR:
            found.append((at, value))
    return found


def path(points: Sequence[Point], per_unit: int = 10) -> str:
    """Returns a path through points, rounded to a part of a unit. Its steps are relative, which is short."""
    places = [(round(at * per_unit), round(value * per_unit)) for at, value in points]
    start = " ".join(number(end / per_unit) for end in places[0])
    steps = (((x1 - x0) / per_unit, (y1 - y0) / per_unit) for (x0, y0), (x1, y1) in pairwise(places))
    return f"M{start}" + "".join(f"l{number(dx)}{'' if dy < 0 else ' '}{number(dy)}" for dx, dy in steps)
