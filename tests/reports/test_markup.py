"""Text is escaped unless it was made here, and cut; parts of pages can be reached by a keyboard."""

from autofit.reports.frame import filled
from autofit.reports.markup import CODE, DataTable, Markup, breakable, code_text, escaped, joined, shortened


def part(macro: str, *values: object) -> str:
    """Returns a part of a page."""
    return filled("parts.jinja", macro, *values)


def test_what_is_none_is_left_out_and_markup_is_not_escaped() -> None:
    assert joined(["<", None, Markup("<i>")], "-") == "&lt;-<i>"


def test_control_characters_and_escapes_of_a_terminal_are_gone() -> None:
    assert escaped("\x1b[31mred\x07\u202e") == "red"


def test_a_short_text_stays_and_a_long_one_says_that_it_was_cut() -> None:
    assert shortened("a\n b", 10) == "a b"
    assert shortened("a" * 10, 10) == "a" * 10
    assert shortened("a" * 11, 10) == "a" * 9 + "…"
    assert shortened("a" * 10_000, 10) == "a" * 9 + "…"
    assert shortened(" " * 1000 + "a", 10).endswith("…")


def test_a_table_has_a_caption_headers_and_can_be_scrolled_by_keyboard() -> None:
    found = part("data_table", DataTable(("plan", "ratio"), (("a<b", "1.0x"),)), "Values")
    assert '<div class="scroll" tabindex="0" role="region" aria-label="Values">' in found
    assert "<caption>Values</caption>" in found
    assert '<th scope="col">ratio</th>' in found
    assert '<th scope="row">a&lt;b</th><td>1.0x</td>' in found


def test_facts_and_lists_hold_their_entries() -> None:
    assert part("facts", [("torch", "2.13")]) == '<dl class="facts"><div><dt>torch</dt><dd>2.13</dd></div></dl>'
    assert part("bullets", ["a", "&"]) == "<ul><li>a</li><li>&amp;</li></ul>"


def test_a_key_figure_has_its_kind_and_its_note() -> None:
    assert part("tile", "Gain", "2.0x", "<all>").startswith('<div class="tile"><div class="tile-name">Gain</div>')
    assert '<div class="tile-note">&lt;all&gt;</div>' in part("tile", "Gain", "2.0x", "<all>", "good")
    assert part("tile", "Gain", "2.0x", "", "good").startswith('<div class="tile good">')


def test_code_keeps_its_lines_and_indentation_and_loses_control_characters() -> None:
    assert code_text("\nfor x in y:\n    print(x)\x1b[31m\n") == "for x in y:\n    print(x)"
    assert len(code_text("a\n" * 10_000)) <= CODE + 1


def test_a_copy_button_is_shown_by_the_script_only() -> None:
    found = part("code_block", "Apply", "x = 1 < 2\ny = 3")
    assert 'class="copy" hidden' in found
    assert "<code>x = 1 &lt; 2\ny = 3</code>" in found


def test_only_long_words_may_break_and_only_behind_a_sign() -> None:
    found = breakable("Use micro_batch=4 <b> optimizer_implementation=fused: 2x")
    assert found == "Use micro_batch=4 &lt;b&gt; optimizer_<wbr>implementation=<wbr>fused: 2x"
