"""The frame of a page: its head with the content security policy, the theme, the contents and the tooltip."""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from autofit.reports.markup import Markup, bullets, element
from autofit.reports.svg.drawing import style_sheet

_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Cpath d='M8 1l7 7-7 7-7-7z' fill='%230072b2'/%3E%3C/svg%3E"
)

Section = tuple[str, str, Markup]
"""A section of a page: its anchor, its heading and the section itself."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The texts around the sections of a page, already limited in length.

    Attributes:
        window: title of the window.
        kind: what the page is.
        title: the heading of the page.
        about: facts below the heading; empty ones are left out.
        footer: the last line.
        style: style sheet of the page.
        script: script of the page.
    """

    window: str
    kind: str
    title: str
    about: Sequence[str]
    footer: str
    style: str
    script: str


def page(frame: Frame, answer: Section, sections: Sequence[Section]) -> str:
    """Returns a page, complete and the same for the same arguments.

    The content security policy admits only the page's own style and script, by their digests.

    Args:
        frame: what the page says around its sections.
        answer: the first section; the link for keyboard users skips to it.
        sections: the other sections.
    """
    anchor, heading, first = answer
    main = element("main", first, *(body for _, _, body in sections), id="main")
    links = [(anchor, heading), *((anchor, heading) for anchor, heading, _ in sections)]
    body = element("div", _contents(links), main, class_="columns")
    skip = element("a", f"Skip to {heading[:1].lower()}{heading[1:]}", href="#main", class_="skip")
    tip = element("div", id="tip", role="tooltip", hidden=True)
    script = element("script", Markup(frame.script))
    footer = element("footer", element("p", frame.footer))
    inside = element("body", skip, _header(frame), body, footer, tip, script)
    return f"<!DOCTYPE html>\n{element('html', _head(frame), inside, lang='en')}\n"


def style(*more: str) -> str:
    """Returns the style sheet of every page and of its charts, with what a page adds to it."""
    return "".join((_text("page.css"), style_sheet(), *more))


def script(*more: str) -> str:
    """Returns the script of every page (theme, points of charts, copying), with what a page adds to it.

    All parts are in one function, so that they share their names and leave none behind.
    """
    parts = (_text("theme.js"), _text("points.js"), _text("copy.js"), *more)
    return '"use strict";\n(() => {\n' + "\n".join(parts) + "})();\n"


@cache
def _text(name: str) -> str:
    return files("autofit.reports").joinpath("assets", name).read_text(encoding="utf-8")


def _head(frame: Frame) -> Markup:
    policy = (
        f"default-src 'none'; style-src '{_digest(frame.style)}'; script-src '{_digest(frame.script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", frame.window),
        element("link", rel="icon", href=_ICON),
        element("style", Markup(frame.style)),
    )


def _digest(text: str) -> str:
    """Returns the source expression of an inline style or script (Content Security Policy Level 3, 2.3.1)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _header(frame: Frame) -> Markup:
    toggle = element(
        "button", "Dark", type="button", id="theme", hidden=True, aria_label="Dark theme", aria_pressed="false"
    )
    return element(
        "header",
        element("p", frame.kind, class_="eyebrow"),
        element("h1", frame.title),
        element("p", " · ".join(text for text in frame.about if text), class_="meta"),
        toggle,
    )


def _contents(links: Sequence[tuple[str, str]]) -> Markup:
    items = [element("a", heading, href=f"#{anchor}") for anchor, heading in links]
    return element("nav", element("p", "Contents", class_="eyebrow"), bullets(items), aria_label="Contents")
