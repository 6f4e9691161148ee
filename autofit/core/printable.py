"""Texts as a terminal can show them: without control characters."""

import json
import re

_COMMANDS = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # a complete escape sequence
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"  # control characters except tab and line feed; U+009B also begins a sequence
    r"|[\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Characters that control a terminal, reorder a line or are invisible, except the joiners of scripts and emoji."""
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_NOT_ASCII = re.compile(r"[^\x00-\x7e]")


def printable(text: str) -> str:
    """Returns `text` without control and invisible characters. Unpaired surrogates become U+FFFD."""
    return _SURROGATE.sub("\ufffd", _COMMANDS.sub("", text))


def one_line(text: str) -> str:
    """Returns `text` as `printable` does, on one line, with single spaces."""
    # Split twice: uncommon line breaks become spaces here, and removed characters may leave two spaces.
    return " ".join(printable(" ".join(text.split())).split())


def ascii_json(document: str) -> str:
    """Returns a JSON document with each non-ASCII character escaped. Its meaning does not change."""
    return _NOT_ASCII.sub(lambda found: _escaped(found.group()), document)


def _escaped(letter: str) -> str:
    # `json.dumps` does not escape DEL, which is ASCII.
    return "\\u007f" if letter == "\x7f" else json.dumps(letter)[1:-1]
