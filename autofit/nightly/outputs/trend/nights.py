"""Marks of nights: one shape and colour for each verdict, the same in the charts, in the tables and beside words."""

from autofit.nightly.records import VerdictKind
from autofit.reports.markup import number

STYLES = {
    VerdictKind.REGRESSION: "vr",
    VerdictKind.DOES_NOT_FIT: "vn",
    VerdictKind.ERROR: "ve",
    VerdictKind.CANNOT_COMPARE: "vc",
    VerdictKind.FASTER: "vf",
    VerdictKind.STEADY: "vs",
}
"""Class of each verdict in `trend.css`. It is short, since a page with many nights repeats it thousands of times."""

_CORNERS = {
    "vr": ((-6, -5), (6, -5), (0, 6)),
    "vf": ((-6, 5), (6, 5), (0, -6)),
    "vn": ((-5, -5), (5, -5), (5, 5), (-5, 5)),
}


def mark(kind: VerdictKind, x: float, y: float) -> str:
    """Returns the path of a verdict's mark at a place: a steady night is a dot, one that cannot be compared a ring."""
    style, at = STYLES[kind], f"M{number(x)} {number(y)}"
    if style in _CORNERS:
        first, *others = _CORNERS[style]
        steps = zip((first, *others), others, strict=False)
        lines = "".join(f"l{dx - x0} {dy - y0}" for (x0, y0), (dx, dy) in steps)
        return f"M{number(x + first[0])} {number(y + first[1])}{lines}z"
    if style == "ve":
        return f"M{number(x - 5)} {number(y - 5)}l10 10m0-10l-10 10"
    if style == "vc":
        return f"M{number(x - 3)} {number(y)}a3 3 0 1 0 6 0a3 3 0 1 0-6 0z"
    return f"{at}h0"
