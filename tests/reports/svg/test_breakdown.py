"""Memory breakdown: bars of both plans on one scale."""

import pytest

from autofit.reports.svg.breakdown import BREAKDOWN, MOST_MODULES, table
from tests.reports.samples import GIB, bounded, kept, typical
from tests.reports.svg.reading import picture


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
    rows = [row for row in table(typical()).rows if row[0].startswith("module ")]
    assert len(rows) == MOST_MODULES + 1
    assert rows[-1][0] == "module 2 other modules"


def test_the_budget_is_drawn_if_the_plans_come_near_it() -> None:
    assert picture("breakdown", typical()).of_class("af-budget")
    assert not picture("breakdown", typical(budget_bytes=200 * GIB)).of_class("af-budget")


def test_a_baseline_that_is_the_answer_is_drawn_once() -> None:
    found = picture("breakdown", kept())
    assert found.of_class("af-bar-rec")
    assert not found.of_class("af-bar-base")


def test_a_trace_for_all_possible_data_is_labelled_as_an_upper_bound() -> None:
    label, short = "baseline: upper bound (sizes depend on the data)", "baseline: upper bound"
    report = bounded()
    assert [label in picture("breakdown", one).words() for one in (report, typical())] == [True, False]
    assert short in picture("breakdown", report, 344).words()
    assert table(report).head[-1] == label
    assert BREAKDOWN.note(report) == "The memory of the baseline is an upper bound (sizes depend on the data)."
    assert BREAKDOWN.note(typical()) == ""
