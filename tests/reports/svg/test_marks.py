"""Marks: the shape of a plan's point, keys, and thinning many points."""

from autofit.reports.svg.drawing import NARROW, WIDE, Drawing, Format
from autofit.reports.svg.lettering import Box
from autofit.reports.svg.marks import (
    APART,
    MOST_POINTS,
    axes,
    key,
    plan_keys,
    point,
    short_label,
    shown_budget,
    thinned,
    tip,
)
from autofit.reports.svg.scales import AxisScale
from tests.reports.samples import infeasible, kept, large, typical
from tests.reports.svg.reading import Picture
from tests.reports.xml_tree import tree

TYPICAL = typical()


def shape(rank: int, form: Format = WIDE, kind: str = "") -> str:
    drawing = Drawing(form, "")
    point(drawing, 10, 10, TYPICAL.row(rank), kind)
    return drawing.parts[0]


def test_recommended_plan_and_baseline_differ_in_shape_not_only_in_colour() -> None:
    best, own = TYPICAL.recommended, TYPICAL.baseline
    assert best is not None
    assert own is not None
    other = next(row.rank for row in TYPICAL.rows if not row.role)
    shapes = [shape(best.rank), shape(own.rank), shape(other)]
    assert ["af-rec" in shapes[0], "af-base" in shapes[1], shapes[2].startswith("<circle")] == [True] * 3
    assert shapes[0].split(" d=")[1] != shapes[1].split(" d=")[1]
    assert f'data-r="{best.rank}"' in shapes[0]


def test_a_plan_that_did_not_fit_is_a_cross_whoever_it_is() -> None:
    assert 'class="af-pt af-x"' in shape(1, kind="af-x")


def test_a_point_has_a_title_only_where_no_script_shows_its_plan() -> None:
    assert "<title>" not in shape(1)
    assert TYPICAL.row(1).label in shape(1, Format(860, titles=True))


def test_short_labels_and_tips_hold_the_plan() -> None:
    row = TYPICAL.row(1)
    assert short_label(row) == "micro batch 128 × 2: precision=bf16, compile=default, checkpointing=blocks"
    assert tip(row).endswith(f"{row.label} · 512/s · peak 15.12 GiB · measured")


def test_few_points_are_all_drawn_and_many_are_thinned_but_the_important_ones() -> None:
    rows = large().rows
    assert len(rows) > MOST_POINTS
    few = [(row, 1.0, 1.0) for row in rows[:MOST_POINTS]]
    assert thinned(few) == few
    found = [row for row, _, _ in thinned([(row, APART / 2, APART / 2) for row in rows])]
    important = [row for row in rows if row.role or row.on_front]
    assert set(map(id, important)) <= set(map(id, found))
    assert len(found) <= len(important) + 1


def test_a_key_uses_more_lines_where_it_is_narrow() -> None:
    entries = [("af-pt", "other plan")] * 5
    assert key(Drawing(NARROW, ""), entries, 0) > key(Drawing(WIDE, ""), entries, 0)


def test_keys_name_the_plans_that_are_drawn() -> None:
    every = range(1, 20)
    assert [text for _, text in plan_keys(TYPICAL, every)] == ["recommended plan", "baseline"]
    assert [text for _, text in plan_keys(TYPICAL, [2, 3])] == []
    assert [text for _, text in plan_keys(kept(), every)] == ["recommended: the baseline"]
    assert [kind for kind, _ in plan_keys(infeasible(), every)] == []


def test_a_budget_far_beyond_the_plans_does_not_stretch_an_axis() -> None:
    assert shown_budget(TYPICAL, TYPICAL.budget_bytes * 0.9)
    assert not shown_budget(TYPICAL, TYPICAL.budget_bytes / 4)


def test_the_label_of_a_tick_at_the_end_of_an_axis_is_inside() -> None:
    area = Box(40, 20, WIDE.width - 14, 200)
    drawing = Drawing(WIDE, "", height=240)
    x, y = AxisScale(0, 120, area.left, area.right), AxisScale(0, 1, area.bottom, area.top)
    axes(drawing, area, (x, [(60, "60 MiB"), (120, "120 MiB")], "peak memory"), (y, [], "speed"))
    found = Picture(tree(drawing.svg(alone=True)))
    boxes = dict(found.texts())
    assert boxes["120 MiB"].right <= WIDE.width
    middle = (boxes["60 MiB"].left + boxes["60 MiB"].right) / 2
    assert abs(middle - x(60)) < 0.1
