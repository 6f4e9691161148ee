"""The frame of a page: its head with the content security policy, the theme, the contents and the tooltip."""

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from autofit.core.units import format_bytes, format_duration, format_ratio, short_number
from autofit.reports.markup import CODE, LABEL, REASON, Markup, asset, breakable, code_text, printed, shortened
from autofit.reports.report import UPPER_BOUND
from autofit.reports.sentences import RATIOS, counted

_ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Cpath d='M8 1l7 7-7 7-7-7z' fill='%230072b2'/%3E%3C/svg%3E"
)

Section = tuple[str, str, Markup]
"""A section of a page: its anchor, its heading and what stands below that."""


def page(
    answer: Markup, sections: Sequence[Section], styles: Sequence[str] = (), scripts: Sequence[str] = (), **texts: Any
) -> str:
    """Returns a page, complete and the same for the same arguments; `answer` stands first, without a heading.

    The content security policy admits only the page's own style and script, by their digests. `styles` and `scripts`
    are names in `assets` that are added to those of every page.

    `texts`, limited in length, are `window` (title of the window), `kind` (what the page is), `title` (its heading),
    `about` (facts below the heading; empty ones are left out), and `footer`.
    """
    style = "".join(map(asset, ("page.css", "charts.css", *styles)))
    # All scripts are in one function, so that they share their names and leave none behind.
    joined = "\n".join(map(asset, ("theme.js", "points.js", "copy.js", *scripts)))
    script = f'"use strict";\n(() => {{\n{joined}}})();\n'
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    made = {"policy": Markup(policy), "icon": Markup(_ICON), "style": Markup(style), "script": Markup(script)}
    return _templates().get_template("frame.jinja").render(answer=answer, sections=sections, **made, **texts)


def filled(template: str, macro: str, *values: Any) -> Markup:
    """Returns what a macro of a template in `assets` makes of values. Text that is not `Markup` is escaped."""
    return Markup(getattr(_templates().get_template(template).module, macro)(*values))


@cache
def _templates() -> Environment:
    """Returns the templates of all pages. Their lines are joined without the line breaks and indentation."""
    found = Environment(
        autoescape=True,
        finalize=lambda value: value if hasattr(value, "__html__") else printed(value),
        loader=FunctionLoader(lambda name: "".join(line.strip() for line in asset(name).splitlines())),
        undefined=StrictUndefined,
    )
    found.filters |= {
        "breakable": breakable, "bytes": lambda count: "–" if count is None else format_bytes(count),
        "code": code_text, "counted": counted, "cut": shortened, "duration": format_duration, "rate": short_number,
        "ratio": format_ratio,
    }  # fmt: skip
    found.globals |= {"CODE": CODE, "LABEL": LABEL, "RATIOS": RATIOS, "REASON": REASON, "UPPER_BOUND": UPPER_BOUND}
    return found


def _digest(text: str) -> str:
    """Returns the source expression of an inline style or script (Content Security Policy Level 3, 2.3.1)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
