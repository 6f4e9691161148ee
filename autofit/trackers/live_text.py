"""Live text: the state of a search on one line, with as much detail as the width allows."""

import re
from collections.abc import Mapping, Sequence

from autofit.core.units import format_bytes
from autofit.terminal import cells, cut

_GAPS = ("  ", " ")
_BAR_CELLS = 10
_SHORTER = ("bar", "now", "phase", "end", "now", "trials", "end", "now", "end", "gap", "trials")
"""Parts in the order in which they become shorter, one form at a time, until the line fits. The gaps between them are
one of them. If that is not enough, "now" is left out and the others are fitted anew."""

Forms = Sequence[str]
"""A part of the line from its longest form to its shortest."""


def fitted(parts: Mapping[str, Forms], width: int) -> str:
    """Returns the parts on one line of at most `width` cells, each as long as there is room for."""
    forms: dict[str, Forms] = {**parts, "gap": _GAPS}
    at = dict.fromkeys(forms, 0)
    for name in (name for name in _SHORTER if name in forms):
        line = _joined(forms, at)
        if cells(line) <= width:
            return line
        at[name] = min(at[name] + 1, len(forms[name]) - 1)
    line = _joined(forms, at)
    if cells(line) > width and "now" in parts:
        return fitted({name: texts for name, texts in parts.items() if name != "now"}, width)
    return cut(line, width)


def _joined(forms: Mapping[str, Forms], at: Mapping[str, int]) -> str:
    now = {name: texts[at[name]] for name, texts in forms.items()}
    gap = now.pop("gap")
    return gap.join(filter(None, now.values()))


def bar(share: float, blocks: bool) -> str:
    """Returns a bar that is filled by `share`; "" for a negative one, which is unknown."""
    if share < 0:
        return ""
    filled = round(min(share, 1.0) * _BAR_CELLS)
    full, empty = ("█", "░") if blocks else ("#", "-")
    return f"{full * filled}{empty * (_BAR_CELLS - filled)}"


def of_budget(part_bytes: int, whole_bytes: int | None) -> str:
    """Returns "53.7 of 72 MiB", with the unit once if it is the same; without a budget the part alone."""
    if whole_bytes is None:
        return format_bytes(part_bytes)
    (few, unit), (many, units) = (format_bytes(count).split() for count in (part_bytes, whole_bytes))
    few, many = (f"{float(number):.4g}" if "." not in number else f"{float(number):.3g}" for number in (few, many))
    return f"{few} of {many} {units}" if unit == units else f"{few} {unit} of {many} {units}"


def compact(text: str) -> str:
    """Returns what `of_budget` gave in fewer cells: "53.7/72 MiB", or "53M/2G" for two units."""
    few, of, many = text.partition(" of ")
    return text.replace(" of ", "/") if not of or " " not in few else re.sub(r" ([KMGT])iB", r"\1", f"{few}/{many}")


def short_time(seconds: float) -> str:
    """Returns seconds as "38 s", "4:38" or "1:02:05"."""
    whole, rest = divmod(int(max(seconds, 0.0)), 60)
    hours, whole = divmod(whole, 60)
    if hours:
        return f"{hours}:{whole:02}:{rest:02}"
    return f"{whole}:{rest:02}" if whole else f"{rest} s"
