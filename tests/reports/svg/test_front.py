"""Throughput against peak memory: where plans, the budget and the front are drawn."""

import pytest

from autofit.reports.svg.front import FRONT
from tests.reports.samples import GIB, large, typical
from tests.reports.svg.reading import Picture, picture


def centre(found: Picture, rank: int) -> tuple[float, float]:
    node = found.points()[rank]
    if node.tagName == "circle":
        return float(node.getAttribute("cx")), float(node.getAttribute("cy"))
    corners = [pair.split() for pair in node.getAttribute("d").strip("MZ").split("L")]
    xs, ys = ([float(corner[place]) for corner in corners] for place in (0, 1))
    return sum(xs) / len(xs), sum(ys) / len(ys)


@pytest.mark.parametrize("width", [860.0, 344.0])
def test_faster_is_higher_and_more_memory_is_further_right(width: float) -> None:
    report = typical()
    found = picture("front", report, width)
    rows = [row for row in report.rows if row.rate_per_s is not None]
    places = [centre(found, row.rank) for row in rows]
    assert [y for _, y in places] == sorted(y for _, y in places)
    by_memory = sorted(zip(rows, places, strict=True), key=lambda pair: pair[0].peak_bytes or 0)
    assert [x for _, (x, _) in by_memory] == sorted(x for x, _ in places)


def test_plans_within_the_budget_are_left_of_its_line() -> None:
    report = typical()
    found = picture("front", report)
    line = float(found.of_class("af-budget")[0].getAttribute("d").strip("M").split()[0])
    assert all(centre(found, row.rank)[0] < line for row in report.rows if row.rate_per_s is not None)
    assert float(found.of_class("af-over")[0].getAttribute("x")) == line
    crosses = [float(node.getAttribute("d").strip("M").split()[0]) for node in found.of_class("af-x")[1:]]
    assert crosses
    assert all(at > line - 5 for at in crosses)


def test_refused_plans_beyond_the_axis_are_counted() -> None:
    assert "2 did not fit and are beyond this axis" in picture("front", typical()).words()


def test_both_plans_are_named_with_their_numbers() -> None:
    words = picture("front", typical()).words()
    assert ["Recommended" in words, "Baseline" in words, "512/s, 15.12 GiB" in words] == [True] * 3


def test_the_front_is_a_staircase_through_its_plans() -> None:
    report = typical()
    line = picture("front", report).of_class("af-frontier")[0].getAttribute("d").strip("M").split("L")
    assert len(line) == 2 * sum(row.on_front for row in report.rows) - 1


def test_a_budget_far_beyond_is_said_and_not_drawn() -> None:
    found = picture("front", typical(budget_bytes=80 * GIB))
    assert found.of_class("af-budget") == []
    assert "budget 80 GiB, beyond this axis →" in found.words()


def test_many_plans_are_thinned_but_none_of_the_front_is_lost() -> None:
    report = large()
    shown = picture("front", report).points()
    assert 100 < len(shown) < 400
    assert {row.rank for row in report.rows if row.on_front} <= shown.keys()


def test_the_caption_names_the_tolerances_of_the_front() -> None:
    assert "Speeds within 2% and peaks within 1% count as equal" in FRONT.aid


def test_a_far_budget_and_the_name_of_the_axis_do_not_collide_when_narrow() -> None:
    found = dict(picture("front", typical(budget_bytes=200 * GIB), 344.0).texts())
    assert found["budget 200 GiB →"].left > found["samples per second"].right
