"""Text is escaped unless it was made here; parts of pages are cut and can be reached by a keyboard."""

import pytest

from autofit.reports.markup import (
    CODE,
    DataTable,
    Markup,
    breakable,
    bullets,
    code_block,
    code_text,
    data_table,
    element,
    escaped,
    facts,
    joined,
    number,
    section,
    shortened,
    tile,
)
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


def test_a_section_is_named_by_its_heading() -> None:
    found = section("race", "The <race>", "text")
    assert found.startswith('<section id="race" aria-labelledby="race-heading"><h2 id="race-heading">The &lt;race&gt;')


def test_a_table_has_a_caption_headers_and_can_be_scrolled_by_keyboard() -> None:
    found = data_table(DataTable(("plan", "ratio"), (("a<b", "1.0x"),)), "Values")
    assert '<div class="scroll" tabindex="0" role="region" aria-label="Values">' in found
    assert "<caption>Values</caption>" in found
    assert '<th scope="col">ratio</th>' in found
    assert '<th scope="row">a&lt;b</th><td>1.0x</td>' in found


def test_facts_and_lists_hold_their_entries() -> None:
    assert facts([("torch", "2.13")]) == '<dl class="facts"><div><dt>torch</dt><dd>2.13</dd></div></dl>'
    assert bullets(["a", "&"]) == "<ul><li>a</li><li>&amp;</li></ul>"


def test_a_key_figure_has_its_kind_and_its_note() -> None:
    assert tile("Gain", "2.0x", "<all>").startswith('<div class="tile"><div class="tile-name">Gain</div>')
    assert '<div class="tile-note">&lt;all&gt;</div>' in tile("Gain", "2.0x", "<all>", "good")
    assert tile("Gain", "2.0x", "", "good").startswith('<div class="tile good">')


def test_code_keeps_its_lines_and_indentation_and_loses_control_characters() -> None:
    assert code_text("\nfor x in y:\n    print(x)\x1b[31m\n") == "for x in y:\n    print(x)"
    assert len(code_text("a\n" * 10_000)) <= CODE + 1


def test_a_copy_button_is_shown_by_the_script_only() -> None:
    found = code_block("Apply", "x = 1 < 2")
    assert 'class="copy" hidden' in found
    assert "<code>x = 1 &lt; 2</code>" in found


def test_only_long_words_may_break_and_only_behind_a_sign() -> None:
    found = breakable("Use micro_batch=4 <b> optimizer_implementation=fused: 2x")
    assert found == "Use micro_batch=4 &lt;b&gt; optimizer_<wbr>implementation=<wbr>fused: 2x"
