"""Markup: what is escaped, what is left out, and what is cut."""

import pytest

from autofit.reports.markup import Markup, element, escaped, joined, number, shortened
from tests.reports.xml_tree import tree


def test_text_is_escaped_and_markup_is_not() -> None:
    assert element("p", "a < b & c", Markup("<b>d</b>")) == "<p>a &lt; b &amp; c<b>d</b></p>"


def test_attributes_are_escaped_and_named() -> None:
    found = element("a", class_="x", data_r=3, title='"><script>\n', hidden=True, alt=None, open=False, cx=1.04)
    assert found == '<a class="x" data-r="3" title="&quot;&gt;&lt;script&gt; " hidden cx="1"></a>'


def test_an_element_may_have_an_attribute_that_is_called_name() -> None:
    assert element("meta", name="viewport") == '<meta name="viewport">'


def test_what_holds_nothing_is_written_as_its_language_has_it() -> None:
    assert [element("circle", r=1), element("input"), element("td")] == ['<circle r="1"/>', "<input>", "<td></td>"]


def test_children_that_are_none_are_left_out() -> None:
    assert element("p", None, "x") == "<p>x</p>"
    assert joined(["<", None, Markup("<i>")], "-") == "&lt;-<i>"


@pytest.mark.parametrize("text", ["\x00\x08\x1b[31m", "\ufffe\uffff", "\ud800", "\u202e", "]]>", "&#0;"])
def test_any_text_makes_a_document_that_can_be_parsed(text: str) -> None:
    made = element("svg", element("text", text), data_text=text)
    assert tree(made).tagName == "svg"


def test_control_characters_and_escapes_of_a_terminal_are_gone() -> None:
    assert escaped("\x1b[31mred\x07\u202e") == "red"


@pytest.mark.parametrize(("value", "text"), [(1.0, "1"), (1.25, "1.2"), (-0.01, "0"), (1234.56, "1234.6")])
def test_coordinates_have_one_decimal_at_most(value: float, text: str) -> None:
    assert number(value) == text


def test_a_short_text_stays_and_a_long_one_says_that_it_was_cut() -> None:
    assert shortened("a\n b", 10) == "a b"
    assert shortened("a" * 10, 10) == "a" * 10
    assert shortened("a" * 11, 10) == "a" * 9 + "…"
    assert shortened("a" * 10_000, 10) == "a" * 9 + "…"
    assert shortened(" " * 1000 + "a", 10).endswith("…")
