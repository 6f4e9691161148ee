"""The frame of a page, and its colours."""

import re
from importlib.resources import files
from itertools import combinations
from typing import Any

import pytest

from autofit.reports.frame import page
from autofit.reports.markup import Markup, asset

TEXTS: dict[str, Any] = {
    "window": "gpt – autofit", "kind": "autofit nightly", "title": "Night 1", "about": ("cuda", "", "2 jobs"),
    "footer": "Made here.",
}  # fmt: skip


def built(**texts: Any) -> str:
    sections = [("gpt", "gpt", Markup("<p>steady</p>"))]
    answer = Markup("<p>all steady</p>")
    return page(answer, sections, **{**TEXTS, "styles": ("what_if.css",), "scripts": ("what_if.js",), **texts})


def test_a_page_holds_what_it_is_given_and_links_to_each_section() -> None:
    found = built()
    assert found.startswith('<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">')
    assert "<title>gpt – autofit</title>" in found
    assert '<p class="eyebrow">autofit nightly</p><h1>Night 1</h1><p class="meta">cuda · 2 jobs</p>' in found
    assert '<a href="#main" class="skip">Skip to the answer</a>' in found
    assert re.findall('<li><a href="#([a-z]+)">([^<]*)</a>', found) == [("answer", "The answer"), ("gpt", "gpt")]
    assert '<main id="main"><section id="answer" aria-label="The answer"><p>all steady</p></section>' in found
    assert '<section id="gpt" aria-labelledby="gpt-heading"><h2 id="gpt-heading">gpt</h2><p>steady</p>' in found
    assert "<footer><p>Made here.</p></footer>" in found


def test_texts_are_escaped() -> None:
    hostile = "</title><script>alert(1)</script>"
    found = built(window=hostile, kind=hostile, title=hostile, about=(hostile,), footer=hostile)
    assert found.count("<script>") == 1
    assert found.count("&lt;script&gt;alert(1)") == 5


def test_the_style_and_script_of_a_page_follow_those_of_all_pages_in_one_function_in_strict_mode() -> None:
    found = built()
    style = found[found.index("<style>") : found.index("</style>")]
    assert style.index("--surface") < style.index(asset("charts.css")[:200]) < style.index(asset("what_if.css"))
    script = found[found.index("<script>") : found.index("</script>")]
    assert script.startswith('<script>"use strict";\n(() => {\n')
    assert script.endswith(f"{asset('what_if.js')}}})();\n")
    assert all(f"// {part}" in script for part in ("Theme:", "Points of charts:", "Copy buttons;"))


def test_another_style_or_script_has_another_digest() -> None:
    sources = {
        re.findall(r"sha256-[A-Za-z0-9+/=]+", built(**added))[number]
        for added in ({}, {"styles": (), "scripts": ()})
        for number in (0, 1)
    }
    assert len(sources) == 4


PAGE = files("autofit.reports").joinpath("assets", "page.css").read_text(encoding="utf-8")
COLOURS = {
    name: pair for name, *pair in re.findall(r"--([a-z0-9]+): light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)", PAGE)
}
TEXT, SHAPES = (
    ("ink", "muted", "rec", "base", "good", "bad"),
    ("other", "axis", "control", *(f"s{n}" for n in range(1, 8))),
)
BLINDNESS = {  # Machado, Oliveira and Fernandes 2009, severity 1.0, for linear RGB
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}

Linear = tuple[float, float, float]


def linear(colour: str) -> Linear:
    """Returns a colour as linear RGB (IEC 61966-2-1)."""
    values = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in values)
    return red, green, blue


def contrast(one: str, other: str) -> float:
    """Returns the contrast ratio of two colours (WCAG 2.1)."""
    low, high = sorted(
        sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear(x), strict=True)) for x in (one, other)
    )
    return (high + 0.05) / (low + 0.05)


def lab(rgb: Linear) -> Linear:
    """Returns a colour as CIE L*a*b* (D65)."""
    rows = ((0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505))
    white = (0.9505, 1.0, 1.089)
    xyz = [sum(w * max(c, 0.0) for w, c in zip(row, rgb, strict=True)) / w for row, w in zip(rows, white, strict=True)]
    x, y, z = (value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116 for value in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def seen(colour: str, blindness: str) -> Linear:
    """Returns a colour as somebody with a colour blindness sees it."""
    rgb = linear(colour)
    red, green, blue = (sum(w * c for w, c in zip(row, rgb, strict=True)) for row in BLINDNESS[blindness])
    return red, green, blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_texts_and_shapes_stand_out_from_the_ground(theme: int) -> None:
    for ground in ("surface", "raised"):
        assert {name for name in TEXT if contrast(COLOURS[name][theme], COLOURS[ground][theme]) < 4.5} == set()
    surface = COLOURS["surface"][theme]
    assert {name for name in SHAPES if contrast(COLOURS[name][theme], surface) < 3} == set()


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("blindness", BLINDNESS)
def test_the_two_plans_and_what_did_not_fit_differ_for_colour_blind_readers(theme: int, blindness: str) -> None:
    colours = [lab(seen(COLOURS[name][theme], blindness)) for name in ("rec", "base", "other")]
    for one, other in combinations(colours, 2):
        assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 > 15


def test_a_chart_that_stands_alone_has_the_colours_of_the_light_page() -> None:
    used = re.findall(r"var\(--([a-z0-9]+), (#[0-9a-f]{3,6})\)", asset("charts.css"))
    assert len(used) > 20
    wide = {name: value if len(value) == 7 else "#" + "".join(2 * digit for digit in value[1:]) for name, value in used}
    assert wide == {name: COLOURS[name][0] for name in wide}
