"""Scales with round ticks, keys and the points of plans."""

import pytest

from autofit.reports.svg.axes import (
    APART,
    MOST_POINTS,
    AxisScale,
    axes,
    byte_ticks,
    key,
    nice_step,
    nice_ticks,
    plan_keys,
    point,
    power_ticks,
    rate_ticks,
    short_label,
    shown_budget,
    size_ticks,
    span,
    thinned,
)
from autofit.reports.svg.drawing import WIDTH, Box, Drawing
from tests.reports.samples import infeasible, kept, large, typical
from tests.reports.svg.reading import Picture
from tests.reports.xml_tree import tree

GIB = 2**30


def test_a_linear_scale_maps_its_ends_and_middle() -> None:
    scale = AxisScale(10, 20, 100, 0)
    assert [scale(10), scale(15), scale(20)] == [100, 50, 0]


def test_equal_ratios_are_equally_long_on_a_logarithmic_scale() -> None:
    scale = AxisScale(1, 8, 0, 30, log2=True)
    assert [scale(1), scale(2), scale(4), scale(8)] == pytest.approx([0, 10, 20, 30])


def test_values_outside_are_drawn_at_the_ends() -> None:
    scale = AxisScale(1, 2, 0, 10)
    assert [scale(-5), scale(7)] == [0, 10]


@pytest.mark.parametrize("values", [[1.0], [0.0], [3.0, 3.0], [990.0, 1000.0], [1.0, 1e9], [5e-7, 6e-7]])
def test_a_span_holds_its_values_and_is_not_empty(values: list[float]) -> None:
    low, high = span(values)
    assert low <= min(values)
    assert max(values) <= high
    assert low < high


def test_a_span_starts_at_zero_only_if_that_wastes_little() -> None:
    assert span([100.0, 300.0])[0] == 0
    assert span([280.0, 300.0])[0] > 250


@pytest.mark.parametrize("count", [2, 3, 5, 7])
@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 37), (980, 1011), (0.012, 0.094), (3, 7e9)])
def test_ticks_are_multiples_of_a_round_step_and_not_too_many(low: float, high: float, count: int) -> None:
    ticks, step = nice_ticks(low, high, count), nice_step(low, high, count)
    assert f"{step:e}"[:3] in {"1.0", "2.0", "2.5", "5.0"}
    assert 1 <= len(ticks) <= count + 1
    assert all(low - step * 1e-6 <= tick <= high + step * 1e-6 for tick in ticks)


def test_ticks_of_bytes_are_round_in_one_unit() -> None:
    assert byte_ticks(0, 21 * GIB, 5) == [
        (0, "0"), (5 * GIB, "5 GiB"), (10 * GIB, "10 GiB"), (15 * GIB, "15 GiB"), (20 * GIB, "20 GiB"),
    ]  # fmt: skip


def test_ticks_of_powers_are_thinned() -> None:
    assert [label for _, label in power_ticks(1, 1024, 20)][-1] == "1,024"
    assert [value for value, _ in power_ticks(0.9, 1100, 4)] == [1, 8, 64, 512]


def test_a_span_without_a_power_of_two_has_a_tick_in_its_middle() -> None:
    assert power_ticks(24 / 1.15, 24 * 1.15, 5) == [(24.0, "24")]


def test_ticks_of_rates_have_thousands_marked() -> None:
    assert [label for _, label in rate_ticks(0, 60_000, 3)] == ["0", "20,000", "40,000", "60,000"]


def test_sizes_have_a_tick_each_where_their_labels_fit() -> None:
    sizes = [64, 40, 48, 56, 48]
    wide, narrow = (AxisScale(40 / 1.15, 64 * 1.15, 0, width, log2=True) for width in (500, 60))
    assert size_ticks(sizes, wide, 12, 9) == [(40, "40"), (48, "48"), (56, "56"), (64, "64")]
    assert size_ticks(sizes, narrow, 12, 9) == [(64, "64")]
    assert size_ticks([8], AxisScale(7, 9, 0, 500, log2=True), 12, 9) == [(8, "8")]


TYPICAL = typical()


def shape(rank: int, *, titles: bool = False, kind: str = "") -> str:
    drawing = Drawing("", titles)
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
    assert TYPICAL.row(1).label in shape(1, titles=True)


def test_short_labels_and_tips_hold_the_plan() -> None:
    row = TYPICAL.row(1)
    assert short_label(row) == "micro batch 128 × 2: precision=bf16, compile=default, checkpointing=blocks"
    assert f"<title>{row.label} · 512/s · peak 15.12 GiB · measured</title>" in shape(1, titles=True)


def test_few_points_are_all_drawn_and_many_are_thinned_but_the_important_ones() -> None:
    rows = large().rows
    assert len(rows) > MOST_POINTS
    few = [(row, 1.0, 1.0) for row in rows[:MOST_POINTS]]
    assert sorted(row.rank for row, _, _ in thinned(few)) == [row.rank for row, _, _ in few]
    found = [row for row, _, _ in thinned([(row, APART / 2, APART / 2) for row in rows])]
    important = [row for row in rows if row.role or row.on_front]
    assert set(map(id, important)) <= set(map(id, found))
    assert len(found) <= len(important) + 1


def test_a_key_of_many_entries_uses_more_lines() -> None:
    entries = [("af-pt", "other plan")] * 5
    assert key(Drawing(""), 3 * entries) > key(Drawing(""), entries)


def test_keys_name_the_plans_that_are_drawn() -> None:
    every = range(1, 20)
    assert [text for _, text in plan_keys(TYPICAL, every)] == [
        "recommended plan, 512/s, peak 15.12 GiB",
        "baseline, 198.4/s, peak 11.42 GiB",
    ]
    assert [text for _, text in plan_keys(TYPICAL, [2, 3])] == []
    assert [text for _, text in plan_keys(kept(), every)] == ["recommended: the baseline, 242/s, peak 19.74 GiB"]
    assert [kind for kind, _ in plan_keys(infeasible(), every)] == []


def test_a_budget_far_beyond_the_plans_does_not_stretch_an_axis() -> None:
    assert shown_budget(TYPICAL, TYPICAL.budget_bytes * 0.9)
    assert not shown_budget(TYPICAL, TYPICAL.budget_bytes / 4)


def test_the_label_of_a_tick_at_the_end_of_an_axis_is_inside() -> None:
    area = Box(40, 20, WIDTH - 14, 200)
    drawing = Drawing("", height=240)
    x, y = AxisScale(0, 120, area.left, area.right), AxisScale(0, 1, area.bottom, area.top)
    axes(drawing, area, (x, [(60, "60 MiB"), (120, "120 MiB")], "peak memory"), (y, [], "speed"))
    found = Picture(tree(drawing.svg(alone=True)))
    boxes = dict(found.texts())
    assert boxes["120 MiB"].right <= WIDTH
    middle = (boxes["60 MiB"].left + boxes["60 MiB"].right) / 2
    assert abs(middle - x(60)) < 0.1
