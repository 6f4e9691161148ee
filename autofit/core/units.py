"""Bytes, durations and lists of names: parsing and formatting."""

import re
import reprlib
from collections.abc import Sequence
from math import isfinite

from autofit.core.errors import UsageError

_BYTES = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
LEAST_BARE_BYTES = 100_000
"""Smallest memory budget without a unit: a user who passes `20` means 20 GiB."""
MOST_BYTES = 2**63 - 1
"""Largest memory: that of any 64-bit address space."""
_SECONDS = {"": 1.0, "ms": 1e-3, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str | int) -> int:
    """Parses a number of bytes: `1073741824`, `"20GiB"`, `"512 MB"`.

    Units with an `i` are powers of 1024 (IEC 80000-13), those without are powers of 1000.

    Raises:
        UsageError: `text` is not a number with a known unit, or is not positive.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        value = text
    else:
        value = round(_quantity(str(text), _BYTES, "memory", '"20GiB", "512MiB" or a number of bytes'))
    if not 0 < value <= MOST_BYTES:
        raise UsageError(
            f"found {reprlib.repr(text)} as memory; expected more than zero bytes, and at most "
            f'{format_bytes(MOST_BYTES)}. Pass for example "20GiB".'
        )
    return value


def parse_budget(given: str | int) -> int:
    """Parses a memory budget as `parse_bytes` does.

    Raises:
        UsageError: as in `parse_bytes`, or a number without a unit is too small to mean bytes.
    """
    size = parse_bytes(given)
    number = str(given).strip()
    if size < LEAST_BARE_BYTES and number[-1].isdigit():
        raise UsageError(f'found a memory budget of {number} bytes; did you mean "{number}GiB"? Add the unit.')
    return size


def parse_duration(text: str | float) -> float:
    """Parses a number of seconds: `300`, `"5min"`, `"90s"`, `"1.5h"`.

    Raises:
        UsageError: `text` is not a number with a known unit, or is not positive.
    """
    value = _quantity(str(text), _SECONDS, "time", '"5min", "90s", "1h" or a number of seconds')
    if value <= 0:
        raise UsageError(f'found {text!r} as time; expected more than zero seconds. Pass for example "5min".')
    return value


def parse_time(text: str | float | None) -> float | None:
    """Parses a time budget: as `parse_duration`, or None and "none" for no limit.

    Raises:
        UsageError: as `parse_duration`.
    """
    return None if text is None or str(text).strip().lower() == "none" else parse_duration(text)


def _quantity(text: str, units: dict[str, float] | dict[str, int], what: str, expected: str) -> float:
    match = _QUANTITY.fullmatch(text)
    unit = match.group(2).lower() if match else ""
    if match is None or unit not in units:
        raise UsageError(f"cannot read {text!r} as {what}; expected {expected}.")
    value = float(match.group(1)) * units[unit]
    if not isfinite(value):
        raise UsageError(f"found {reprlib.repr(text)} as {what}, which is too large; expected {expected}.")
    return value


def format_bytes(count: int | None) -> str:
    """Returns `count` bytes in the largest binary unit in which the value is at least 1, or "unknown"."""
    if count is None:
        return "unknown"
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.4g} {unit}" if value < 1000 else f"{value:.0f} {unit}"


def format_duration(seconds: float) -> str:
    """Returns `seconds` as a short text such as "38 ms", "4.2 s" or "3 min 20 s"."""
    if seconds < 0.9995:  # with three digits, more would round to a whole second
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def format_names(names: Sequence[str], most: int) -> str:
    """Returns the first `most` names and the number of others: "a, b and 3 more"."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")


def short_number(value: float, digits: int = 4) -> str:
    """Returns `value` with this many digits at most, in common notation: 52,380 or 0.0312."""
    text = f"{value:.{digits}g}"
    return f"{float(text):,.0f}" if float(text) >= 1000 else text


def format_ratio(value: float, decimals: int = 2, sign: str = "x") -> str:
    """Returns a ratio as "1.32x"; from 10 on with three digits, as "12.8x" or "1,020x"; near 0 as "<0.01x"."""
    if value < 10.0**-decimals:
        return f"<{10.0**-decimals:.{decimals}f}{sign}"
    return f"{f'{value:.{decimals}f}' if value < 9.995 else short_number(value, 3)}{sign}"
