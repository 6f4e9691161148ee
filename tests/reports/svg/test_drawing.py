"""A picture as text, and where its letters go."""

from itertools import pairwise

import pytest

from autofit.reports.svg.drawing import (
    NARROW,
    WIDE,
    Box,
    Drawing,
    Format,
    fitted,
    place_label,
    spread,
    style_sheet,
    text_width,
    wrapped,
)
from tests.reports.xml_tree import tree

LONG = "precision=bf16, compile=default, checkpointing=blocks, optimizer_implementation=fused"
BOUNDS = Box(0, 0, 400, 300)


def test_a_text_that_fits_stays() -> None:
    assert fitted("bf16", 13, 100) == "bf16"


@pytest.mark.parametrize("width", [20.0, 60.0, 133.0, 300.0])
def test_a_text_that_does_not_fit_is_cut_to_the_width(width: float) -> None:
    found = fitted(LONG, 13, width)
    assert found.endswith("…")
    assert text_width(found, 13) <= width
    assert text_width(found, 13) > width - 30


@pytest.mark.parametrize("text", ["A" * 10_000, "a b " * 5000, "模型" * 300])
def test_wrapped_lines_fit_and_are_few(text: str) -> None:
    lines = wrapped(text, 13, 120, 2)
    assert len(lines) <= 2
    assert all(text_width(line, 13) <= 120 for line in lines)
    assert lines[-1].endswith("…")


def test_wrapping_loses_no_word_that_has_room() -> None:
    assert " ".join(wrapped(LONG, 13, 280, 4)) == LONG


def test_a_word_that_is_too_long_breaks_behind_a_sign_and_keeps_its_value() -> None:
    assert wrapped("a, optimizer_implementation=foreach", 13, 224, 3) == ["a, optimizer_implementation=", "foreach"]


@pytest.mark.parametrize("wanted", [[10.0, 11.0, 12.0], [95.0, 96.0, 97.0], [50.0, 10.0, 50.0, 90.0], [5.0]])
def test_positions_are_apart_in_bounds_and_in_order(wanted: list[float]) -> None:
    found = spread(wanted, [15.0] * len(wanted), 0, 100)
    assert all(after - before >= 15 - 1e-9 for before, after in pairwise(sorted(found)))
    assert min(found) >= 0
    assert max(found) <= 100
    pairs = sorted(zip(wanted, found, strict=True))
    assert [at for _, at in pairs] == sorted(found)


def test_a_higher_label_has_more_room() -> None:
    assert spread([50.0, 51.0, 52.0], [10.0, 30.0, 10.0], 0, 100) == [31.0, 51.0, 71.0]


def test_positions_that_are_far_apart_stay() -> None:
    assert spread([10.0, 40.0, 80.0], [15.0] * 3, 0, 100) == [10.0, 40.0, 80.0]


def test_a_label_stands_beside_its_point() -> None:
    box = place_label(100, 100, 50, 30, BOUNDS, [])
    assert (box.left, box.right, box.top) == (111, 161, 85)


def test_a_label_avoids_what_is_taken_and_the_edge() -> None:
    taken = [Box(105, 60, 200, 140)]
    box = place_label(100, 100, 50, 30, BOUNDS, taken)
    assert not any(box.overlaps(other) for other in taken)
    assert place_label(395, 5, 50, 30, BOUNDS, []).inside(BOUNDS)


def test_a_label_without_any_room_stays_in_bounds() -> None:
    small = Box(0, 0, 60, 40)
    assert place_label(30, 20, 50, 30, small, [small]).inside(small)


def drawing(about: str = "speeds") -> Drawing:
    made = Drawing(WIDE, about, height=100)
    made.text(10, 20, "<b>")
    made.line(0, 0.25, 10, 10, "af-grid")
    made.rect(0, 0, -5, 10, "af-over")
    return made


def test_a_picture_that_stands_alone_has_its_name_style_and_size() -> None:
    root = tree(drawing().svg(alone=True))
    assert (root.getAttribute("width"), root.getAttribute("height"), root.getAttribute("role")) == ("860", "100", "img")
    assert root.namespaceURI == "http://www.w3.org/2000/svg"
    assert [child.tagName for child in root.childNodes][:3] == ["title", "style", "rect"]


def test_a_picture_in_a_page_uses_the_style_of_the_page() -> None:
    found = drawing().svg()
    assert "<style" not in found
    assert "style=" not in found
    assert 'aria-label="speeds"' in found


def test_texts_are_escaped() -> None:
    found = drawing('"><script>').svg(alone=True)
    assert "<script" not in found
    assert "&lt;b&gt;" in found


def test_a_rectangle_is_never_of_negative_width() -> None:
    assert 'width="0"' in drawing().svg()


def test_formats_know_whether_they_are_narrow() -> None:
    assert [WIDE.narrow, NARROW.narrow, Format(560).narrow] == [False, True, False]


def test_the_style_sheet_names_no_address() -> None:
    assert "af-grid" in style_sheet()
    assert "url(" not in style_sheet()
    assert "@import" not in style_sheet()
