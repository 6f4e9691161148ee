"""A picture as text, and where its letters go."""

import pytest

from autofit.reports.markup import Markup, asset
from autofit.reports.svg.drawing import Drawing, element, fitted, number, text_width
from tests.reports.xml_tree import tree

LONG = "precision=bf16, compile=default, checkpointing=blocks, optimizer_implementation=fused"


def test_text_is_escaped_and_markup_is_not() -> None:
    assert element("text", "a < b & c", Markup("<b>d</b>"), None) == "<text>a &lt; b &amp; c<b>d</b></text>"


def test_attributes_are_escaped_and_named() -> None:
    found = element("a", class_="x", data_r=3, title='"><script>', alt=None, cx=1.04)
    assert found == '<a class="x" data-r="3" title="&quot;&gt;&lt;script&gt;" cx="1"/>'


@pytest.mark.parametrize("text", ["\x00\x08\x1b[31m", "\ufffe\uffff", "\ud800", "\u202e", "]]>", "&#0;"])
def test_any_text_makes_a_document_that_can_be_parsed(text: str) -> None:
    assert tree(element("svg", element("text", text), data_text=text)).tagName == "svg"


@pytest.mark.parametrize(("value", "text"), [(1.0, "1"), (1.25, "1.2"), (-0.01, "0"), (1234.56, "1234.6")])
def test_coordinates_have_one_decimal_at_most(value: float, text: str) -> None:
    assert number(value) == text


def test_a_text_that_fits_stays() -> None:
    assert fitted("bf16", 13, 100) == "bf16"


@pytest.mark.parametrize("width", [20.0, 60.0, 133.0, 300.0])
def test_a_text_that_does_not_fit_is_cut_to_the_width(width: float) -> None:
    found = fitted(LONG, 13, width)
    assert found.endswith("…")
    assert text_width(found, 13) <= width
    assert text_width(found, 13) > width - 30


def drawing(about: str = "speeds") -> Drawing:
    made = Drawing(about, height=100)
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


def test_the_style_sheet_names_no_address() -> None:
    assert "af-grid" in asset("charts.css")
    assert "url(" not in asset("charts.css")
    assert "@import" not in asset("charts.css")
