"""Throughput against peak memory, and over the micro batch size."""

import pytest

from autofit.reports.report import BATCH_ONLY, Report, SpeedCurve
from autofit.reports.svg.speed import CURVES, FRONT, MOST_CURVES
from tests.reports.samples import GIB, large, typical
from tests.reports.svg.reading import Picture, drawn, picture, values


def centre(found: Picture, rank: int) -> tuple[float, float]:
    node = found.points()[rank]
    if node.tagName == "circle":
        return float(node.getAttribute("cx")), float(node.getAttribute("cy"))
    x, y = node.getAttribute("d").strip("M").partition("m")[0].split()
    return float(x), float(y)


def test_faster_is_higher_and_more_memory_is_further_right() -> None:
    report = typical()
    found = picture("front", report)
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


def test_both_plans_are_named_with_their_numbers_in_the_key() -> None:
    words = picture("front", typical()).words()
    assert {"recommended plan, 512/s, peak 15.12 GiB", "baseline, 198.4/s, peak 11.42 GiB"} <= set(words)


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


def many() -> Report:
    """A report with ten curves, of which the baseline's is the slowest."""
    report = typical()
    extra = [curve.model_copy(update={"combination": f"knob={number}"}) for number, curve in enumerate(report.curves)]
    own = [curve for curve in report.curves if curve.combination == BATCH_ONLY]
    others = [curve for curve in report.curves if curve.combination != BATCH_ONLY]
    return report.model_copy(update={"curves": tuple([*others, *extra, *own])})


def test_each_curve_has_a_style_of_its_own_and_its_name() -> None:
    report = typical()
    found = picture("curves", report)
    styles = [node.getAttribute("class") for node in found.of_class("af-line")]
    assert len(set(styles)) == len(report.curves)
    assert {curve.combination for curve in report.curves if len(curve.combination) < 30} <= set(found.words())


def test_the_recommended_plan_and_the_baseline_have_their_own_colours() -> None:
    report = typical()
    order = [node.getAttribute("class") for node in picture("curves", report).of_class("af-line")]
    names = [curve.combination for curve in report.curves]
    assert report.recommended is not None
    assert order[names.index(report.recommended.combination)] == "af-line af-s1"
    assert order[names.index(BATCH_ONLY)] == "af-line af-s2"


def test_of_many_curves_the_fastest_are_drawn_and_always_the_baseline() -> None:
    assert len(many().curves) > MOST_CURVES
    found = picture("curves", many())
    assert len(found.of_class("af-line")) == 2 * MOST_CURVES  # and the key
    assert BATCH_ONLY in found.words()


def test_equal_ratios_of_batches_are_equally_far_apart() -> None:
    found = picture("curves", typical())
    at = [box for text, box in found.texts() if text in {"8", "32", "128"}]
    centres = sorted((box.left + box.right) / 2 for box in at)
    assert centres[1] - centres[0] == pytest.approx(centres[2] - centres[1], abs=0.3)


def test_the_table_has_every_point_and_the_first_size_that_did_not_fit() -> None:
    rows = values(CURVES, typical()).rows
    assert (BATCH_ONLY, "16", "198.4") in rows
    assert (BATCH_ONLY, "64", "did not fit") in rows


def test_a_size_below_a_measured_one_is_not_the_one_that_did_not_fit() -> None:
    report = typical()
    curve = SpeedCurve(combination=BATCH_ONLY, ranks=report.curves[-1].ranks, refused_sizes=(1,))
    assert not [
        row for row in values(CURVES, report.model_copy(update={"curves": (curve,)})).rows if "did not fit" in row
    ]


def test_a_single_point_is_a_marker_without_a_line() -> None:
    report = typical()
    assert report.recommended is not None
    single = SpeedCurve(combination=report.recommended.combination, ranks=(report.recommended.rank,))
    others = [curve for curve in report.curves if curve.combination != single.combination]
    found = picture("curves", report.model_copy(update={"curves": (single, *others)}))
    assert report.recommended.rank in found.points()
    assert len(found.of_class("af-line")) == 2 * len(others) + 1  # and the key


def test_points_that_did_not_race_are_hollow_and_explained() -> None:
    report = typical()
    found = picture("curves", report)
    hollow = {int(node.getAttribute("data-r")) for node in found.of_class("af-hollow") if node.hasAttribute("data-r")}
    raced = {racer.rank for racer in report.race}
    ranks = {rank for curve in report.curves for rank in curve.ranks}
    assert hollow == {rank for rank in ranks if rank not in raced and not report.row(rank).is_baseline}
    assert "did not race: by its probe" in found.words()
    assert drawn(CURVES, report).note.startswith("Hollow points did not race")
    assert "Hollow" not in drawn(CURVES, typical(race=())).note
    assert not picture("curves", typical(race=())).of_class("af-hollow")


def test_sizes_between_powers_of_two_have_ticks() -> None:
    report = typical()
    sizes = dict(zip(report.curves[0].ranks, (40, 48), strict=True))
    rows = tuple(row.model_copy(update={"micro_batch_size": sizes.get(row.rank, 40)}) for row in report.rows)
    curve = report.curves[0].model_copy(update={"refused_sizes": (56,)})
    assert {"40", "48", "56"} <= set(
        picture("curves", report.model_copy(update={"rows": rows, "curves": (curve,)})).words()
    )
