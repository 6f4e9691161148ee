"""The text chart: each point in its place, the budget as a line or in words, ASCII alone."""

import pytest

from autofit.reports.text_chart import HEIGHT, WIDTH, ChartPoint, scatter

MIB = 2**20


def test_marks_lie_where_their_values_are() -> None:
    chart = scatter(
        [ChartPoint(90 * MIB, 100.0, "R"), ChartPoint(10 * MIB, 5.0, "B"), ChartPoint(10 * MIB, 5.0, "o")],
        100 * MIB,
        "samples",
    )
    lines = chart.split("\n")
    assert lines[0] == "samples/s"
    area = lines[1 : HEIGHT + 1]
    ((top, right),) = [(n, line.index("R")) for n, line in enumerate(area) if "R" in line]
    ((bottom, left),) = [(n, line.index("B")) for n, line in enumerate(area) if "B" in line]  # over the plan below it
    assert top < 2 < HEIGHT - 2 < bottom
    assert left < right < len(area[0]) - 1
    assert area[bottom].rindex("|") > right  # the budget
    assert not any("o" in line for line in area)
    assert max(map(len, lines)) <= WIDTH + 40
    assert "budget 100 MiB, shown as |" in lines[-1]
    assert chart.isascii()


def test_a_budget_far_away_does_not_press_the_points_together() -> None:
    chart = scatter([ChartPoint(MIB, 1.0, "R")], 80 * 1024 * MIB, "tokens")
    assert "budget 80 GiB, outside the chart" in chart
    assert "1.05 MiB" in chart


@pytest.mark.parametrize("points", [[], [ChartPoint(1, 0.001, "o")] * 600])
def test_no_points_and_many_equal_ones(points: list[ChartPoint]) -> None:
    assert scatter(points, 100, "samples").count("o other plans") == (1 if points else 0)
