"""What makes up the peak, and live tensors over a step."""

from itertools import pairwise

import pytest

from autofit.reports.svg.memory import BREAKDOWN, MOST_MODULES, TIMELINE
from tests.reports.samples import GIB, bounded, kept, typical
from tests.reports.svg.reading import drawn, picture, values


def test_bars_are_as_long_as_their_bytes() -> None:
    report = typical()
    found = picture("breakdown", report)
    bars = found.of_class("af-bar-rec")[1:]  # the first one is in the key
    kinds = [part.size_bytes for part in report.memory[0].profile.breakdown.kinds]
    widths = [float(bar.getAttribute("width")) for bar in bars]
    assert widths[1] / widths[0] == pytest.approx(max(kinds) / sum(kinds), rel=0.02)


def test_kinds_come_before_modules_and_largest_first() -> None:
    words = picture("breakdown", typical()).words()
    order = ["Peak, as traced", "By kind", "activation", "gradient", "batch", "transformer.h.*.attn × 12"]
    places = [words.index(text) for text in order]
    assert places == sorted(places)


def test_the_smallest_modules_are_one_entry() -> None:
    rows = [row for row in values(BREAKDOWN, typical()).rows if row[0].startswith("module ")]
    assert len(rows) == MOST_MODULES + 1
    assert rows[-1][0] == "module 2 other modules"


def test_the_budget_is_drawn_if_the_plans_come_near_it() -> None:
    assert picture("breakdown", typical()).of_class("af-budget")
    assert not picture("breakdown", typical(budget_bytes=200 * GIB)).of_class("af-budget")


def test_a_baseline_that_is_the_answer_is_drawn_once() -> None:
    found = picture("breakdown", kept())
    assert found.of_class("af-bar-rec")
    assert not found.of_class("af-bar-base")


def test_parts_a_trace_for_all_possible_data_is_labelled_as_an_upper_bound() -> None:
    label = "baseline: upper bound (sizes depend on the data)"
    report = bounded()
    assert [label in picture("breakdown", one).words() for one in (report, typical())] == [True, False]
    assert values(BREAKDOWN, report).head[-1] == label
    assert drawn(BREAKDOWN, report).note == "The memory of the baseline is an upper bound (sizes depend on the data)."
    assert drawn(BREAKDOWN, typical()).note == ""


def test_phases_are_named_for_both_plans() -> None:
    words = picture("timeline", typical()).words()
    assert [words.count(name) for name in ("forward", "backward", "optimizer")] == [4, 4, 2]


def test_no_point_of_the_timeline_is_lost_and_the_peak_is_marked() -> None:
    report = typical()
    found = picture("timeline", report)
    points = found.of_class("af-line-rec")[0].getAttribute("d").split("L")
    live = report.memory[0].profile.live_bytes
    assert len(points) == len(live) + 2
    highest = min(float(point.split()[1]) for point in points)
    mark = found.of_class("af-bar-rec")[0]
    assert abs(float(mark.getAttribute("cy")) - highest) < 0.1


def test_the_kinds_are_stacked_up_to_the_live_tensors_and_named_in_a_key() -> None:
    report = typical()
    found = picture("timeline", report)
    for name in report.memory[0].profile.kinds:
        assert name in found.words()
    panels = [[found.of_class(style)[place] for style in ("af-k0", "af-k2", "af-k5")] for place in (1, 2)]  # 0: the key
    for layers, line in zip(panels, ("af-line-rec", "af-line-base"), strict=True):
        outlines = [layer.getAttribute("d")[1:].split("L") for layer in layers]
        count = len(report.memory[0].profile.live_bytes) + 2
        assert outlines[-1][:count] == found.of_class(line)[0].getAttribute("d")[1:].split("L")
        for lower, upper in pairwise(outlines):
            assert upper[-2:0:-1][1 : count - 2] == lower[2 : count - 1]


def test_without_kinds_the_area_is_one() -> None:
    report = typical()
    memory = tuple(
        plan.model_copy(update={"profile": plan.profile.model_copy(update={"kinds": {}})}) for plan in report.memory
    )
    found = picture("timeline", report.model_copy(update={"memory": memory}))
    assert (len(found.of_class("af-area-rec")), len(found.of_class("af-k5"))) == (1, 0)


def test_what_comes_on_top_of_live_tensors_is_drawn() -> None:
    words = picture("timeline", typical()).words()
    assert "peak 15.12 GiB with the allocator's cache and context" in words


def test_one_budget_line_in_each_panel_or_a_sentence() -> None:
    assert len(picture("timeline", typical()).of_class("af-budget")) == 2
    far = picture("timeline", typical(budget_bytes=200 * GIB))
    assert not far.of_class("af-budget")
    assert "The budget of 200 GiB is beyond this axis." in far.words()


def test_the_table_has_the_highest_value_of_each_phase() -> None:
    rows = values(TIMELINE, typical()).rows
    assert [row[:2] for row in rows[:5]] == [
        ("Recommended plan", name) for name in ("forward", "backward", "forward", "backward", "optimizer")
    ]


def test_accumulation_steps_that_are_not_shown_are_named() -> None:
    report = typical()
    assert report.baseline is not None
    expected = f"The timeline shows 2 of the {report.baseline.accumulation_steps} accumulation steps of the baseline; "
    assert drawn(TIMELINE, report).note.startswith(expected)
    shown = tuple(row.model_copy(update={"accumulation_steps": 2}) for row in report.rows)
    assert drawn(TIMELINE, report.model_copy(update={"rows": shown})).note == ""


def test_the_label_of_a_budget_near_the_top_is_clear_of_the_names_of_phases() -> None:
    report = typical()
    peak = max(max(plan.profile.peak_bytes, *plan.profile.live_bytes) for plan in report.memory)
    found = picture("timeline", report.model_copy(update={"budget_bytes": round(1.3 * peak)}))
    lines = [float(node.getAttribute("d").split("L")[0].split()[1]) for node in found.of_class("af-budget")]
    labels = [box for text, box in found.texts() if text.startswith("budget")]
    assert len(labels) == len(lines) == 2
    assert all(box.top > line for box, line in zip(labels, lines, strict=True))


def test_step_a_trace_for_all_possible_data_is_labelled_as_an_upper_bound() -> None:
    label = "Baseline: upper bound (sizes depend on the data)"
    report = bounded()
    assert [label in picture("timeline", one).words() for one in (report, typical())] == [True, False]
    assert {row[0] for row in values(TIMELINE, report).rows} == {"Recommended plan", label}
    assert drawn(TIMELINE, report).note.endswith(
        "The memory of the baseline is an upper bound (sizes depend on the data)."
    )


def test_the_label_of_a_peak_is_drawn_over_a_budget_line_beside_it() -> None:
    report = typical()
    peak = max(report.memory[0].profile.live_bytes)
    found = picture("timeline", report.model_copy(update={"budget_bytes": round(1.06 * peak)}))
    classes = [node.getAttribute("class") for node in found.root.getElementsByTagName("*")]
    assert classes.index("af-budget") < classes.index("af-line-rec")
