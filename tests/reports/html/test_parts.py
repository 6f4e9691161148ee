"""Parts of a page: tables, facts and code."""

from autofit.reports.html.parts import CODE, breakable, bullets, code_block, code_text, data_table, facts, section, tile
from autofit.reports.svg.chart import DataTable


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
