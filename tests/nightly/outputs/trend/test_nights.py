"""Marks of verdicts: each has a shape and a style of its own."""

import re

import pytest

from autofit.nightly.outputs.trend.nights import STYLES, mark
from autofit.nightly.records import VerdictKind


def test_every_verdict_has_its_own_style_and_shape() -> None:
    assert set(STYLES) == set(VerdictKind)
    assert len(set(STYLES.values())) == len(STYLES)
    shapes = {mark(kind, 50.0, 50.0) for kind in VerdictKind}
    assert len(shapes) == len(STYLES)


@pytest.mark.parametrize("kind", VerdictKind)
def test_a_mark_is_around_its_place(kind: VerdictKind) -> None:
    x, y, points = 0.0, 0.0, list[tuple[float, float]]()
    for command, values in re.findall(r"([MlhamzA])([^MlhamzA]*)", mark(kind, 100.0, 40.0)):
        numbers = [float(text) for text in re.findall(r"-?[0-9.]+", values)]
        if command == "M":
            x, y = numbers
        elif command in "lma" and len(numbers) >= 2:
            x, y = x + numbers[-2], y + numbers[-1]
        points.append((x, y))
    assert all(abs(x - 100) <= 6 and abs(y - 40) <= 6 for x, y in points)


def test_better_points_up_and_worse_points_down() -> None:
    assert mark(VerdictKind.FASTER, 10, 10) == "M4 15l12 0l-6 -11z"
    assert mark(VerdictKind.REGRESSION, 10, 10) == "M4 5l12 0l-6 11z"
