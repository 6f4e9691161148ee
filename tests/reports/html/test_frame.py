"""The frame of a page: what is given stands in it as text, and only its own style and script are admitted."""

import re
from dataclasses import replace

from autofit.reports.html.frame import Frame, page, script, style
from autofit.reports.html.parts import section
from autofit.reports.markup import element
from autofit.reports.svg.drawing import style_sheet

FRAME = Frame(
    window="gpt – autofit", kind="autofit nightly", title="Night 1", about=("cuda", "", "2 jobs"), footer="Made here.",
    style=style(".x { color: red; }"), script=script("  const more = 1;\n"),
)  # fmt: skip


def built(frame: Frame = FRAME) -> str:
    answer = ("answer", "The verdicts", element("section", "all steady", id="answer"))
    return page(frame, answer, [("gpt", "gpt", section("gpt", "gpt", element("p", "steady")))])


def test_a_page_holds_what_it_is_given_and_links_to_each_section() -> None:
    found = built()
    assert found.startswith('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">')
    assert "<title>gpt – autofit</title>" in found
    assert '<p class="eyebrow">autofit nightly</p><h1>Night 1</h1><p class="meta">cuda · 2 jobs</p>' in found
    assert '<a href="#main" class="skip">Skip to the verdicts</a>' in found
    assert re.findall('<li><a href="#([a-z]+)">([^<]*)</a>', found) == [("answer", "The verdicts"), ("gpt", "gpt")]
    assert '<main id="main"><section id="answer">all steady</section><section id="gpt"' in found
    assert "<footer><p>Made here.</p></footer>" in found


def test_texts_are_escaped() -> None:
    hostile = "</title><script>alert(1)</script>"
    found = built(replace(FRAME, window=hostile, kind=hostile, title=hostile, about=(hostile,), footer=hostile))
    assert found.count("<script>") == 1
    assert found.count("&lt;script&gt;alert(1)") == 5


def test_the_style_of_a_page_follows_that_of_all_pages_and_charts() -> None:
    assert style("a {}") == style() + "a {}"
    assert style().endswith(style_sheet())


def test_a_script_is_one_function_in_strict_mode() -> None:
    found = script("  const more = 1;\n")
    assert found.startswith('"use strict";\n(() => {\n')
    assert found.endswith("\n  const more = 1;\n})();\n")
    assert all(f"// {part}" in found for part in ("Theme:", "Points of charts:", "Copy buttons;"))


def test_another_style_or_script_has_another_digest() -> None:
    sources = {
        re.findall(r"sha256-[A-Za-z0-9+/=]+", built(frame))[number]
        for frame in (FRAME, replace(FRAME, style=style(), script=script()))
        for number in (0, 1)
    }
    assert len(sources) == 4
