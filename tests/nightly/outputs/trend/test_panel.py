"""What panels have in common: the axis of time, and the segments with what began them."""

from autofit.nightly.outputs.trend.entries import entries_of
from autofit.nightly.outputs.trend.panel import began
from tests.nightly import samples
from tests.nightly.outputs.trend.drawn import of, picture, year

HISTORY = samples.year()


def test_segments_are_numbered_above_the_chart_with_what_began_them() -> None:
    found = picture(year()["resnet50"])
    words = found.words()
    assert "4 driver 580.65.06" in words
    assert "1" in words
    assert len(found.of_class("tr-border")) == 3


def test_a_history_of_one_segment_has_no_names() -> None:
    found = picture(of(HISTORY["gpt"][-20:]))
    assert not found.of_class("tr-border")
    assert "1" not in found.words()


def test_in_a_narrow_chart_a_name_without_room_is_only_a_number() -> None:
    words = picture(year()["resnet50"], 344.0).words()
    assert {"1", "2", "3"} <= set(words)


def test_what_began_a_segment_is_in_few_words() -> None:
    starts = [entry for entry in entries_of(HISTORY["resnet50"], 400) if entry.changes]
    assert [began(entry) for entry in starts] == ["torch 2.13.0+cu130", "new plan", "driver 580.65.06"]


def test_the_axis_of_time_has_months_and_days() -> None:
    words = picture(year()["gpt"]).words()
    assert {"Jan 2026", "May", "Nov 7", "Nov 21"} <= set(words)
