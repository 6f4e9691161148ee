"""Texts as a terminal can show them: without control characters."""

import json
import re

_COMMANDS = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # an escape sequence as a whole
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # control characters but tab and line feed; U+009B begins a sequence too
    r"|[\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""What commands a terminal, reorders a line or cannot be seen (Unicode 16: Bidi_Control and other format characters).
The joiners U+200C and U+200D stay, which scripts and emoji need."""
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_NOT_ASCII = re.compile(r"[^\x00-\x7e]")


def printable(text: str) -> str:
    """Returns `text` without what commands a terminal or hides in it; half a surrogate pair becomes U+FFFD."""
    return _SURROGATE.sub("\ufffd", _COMMANDS.sub("", text))


def one_line(text: str) -> str:
    """Returns `text` as `printable` does, on one line, with single spaces."""
    # Twice: the rarer line breaks are spaces here, and what is taken out may leave two spaces together.
    return " ".join(printable(" ".join(text.split())).split())


def ascii_json(document: str) -> str:
    """Returns a JSON document with each character outside ASCII escaped; it has the same meaning."""
    return _NOT_ASCII.sub(lambda found: _escaped(found.group()), document)


def _escaped(letter: str) -> str:
    # `json.dumps` leaves DEL alone, which is ASCII.
    return "\\u007f" if letter == "\x7f" else json.dumps(letter)[1:-1]
