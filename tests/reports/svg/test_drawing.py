"""Drawing: a document of its own, or a part of a page."""

from autofit.reports.svg.drawing import NARROW, WIDE, Drawing, Format, style_sheet
from tests.reports.xml_tree import tree


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
