"""Texts of foreign code, made safe to show: without control characters, and without what looks like a secret."""

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


_HIDDEN = "***"
_SECRET_NAME = (
    r"(?:api|access|secret|private|auth|account|signing|encryption)[_-]?key|token|secret|passwo?r?d|passphrase"
)
_SECRET_NAME += r"|credentials?|authorization|cookie|dsn"
_SECRET_NAME += r"|(?<=[A-Za-z0-9][_-])(?<!ward[_-])pass|(?-i:pwd)"  # neither "backward_pass" nor $PWD, the folder
_NAMED = re.compile(
    r"(?P<name>(?<![\w.-])[\w.-]{0,60}?(?<![A-Za-z])(?:" + _SECRET_NAME + r")(?![A-Za-z])[\w.-]{0,60}"
    r"|(?-i:\b[A-Z][A-Z0-9_]{0,60}_(?:KEY|PWD|PASS|AUTH)|\bPGPASSWORD"
    r"|(?<![\w.-])[\w.-]{0,60}?[a-z0-9](?:Token|Secret|Passwo?r?d|Passphrase|Credentials?|Pwd|(?<!ward)Pass)(?![a-z])[\w.-]{0,60}))"
    r"(?P<sign>[\"']?\s*(?:=>|[=:])\s*)"
    r"(?P<value>(?:(?:Bearer|Basic)\s+)?(?:\"[^\"\n]*\"?|'[^'\n]*'?|[^\s,;&\"'})\]]+))",
    re.IGNORECASE,
)
_URL_USER = re.compile(r"(?P<scheme>\b[A-Za-z][A-Za-z0-9+.-]{0,20}://)[^\s/@:]*(?::[^\s/]*)?@")
_URL_QUERY = re.compile(r"(?P<url>\b[A-Za-z][A-Za-z0-9+.-]{0,20}://[^\s?\"']{1,2000}\?)[^\s\"']+")
_FORMATS = re.compile(
    r"\bBearer\s+[\w.~+/=-]{8,}"
    r"|\bsk-[\w-]{16,}|\bgh[oprsu]_\w{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}|\bnpm_[A-Za-z0-9]{30,}|\bpypi-[\w-]{16,}|\bhf_\w{16,}|\bAKIA[0-9A-Z]{12,}"
    r"|\bxox[abprs]-[\w-]{10,}|\bAIza[\w-]{30,}|\beyJ[\w-]{8,2000}\.[\w-]{8,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
"""Secrets that are recognised by their format: tokens of common services and web standards, and private keys."""


def redacted(text: str) -> str:
    """Returns `text` with "***" for values of names like API_KEY, users and queries of URLs, and known tokens.

    Numbers are kept: "max_token=512" is not a secret.
    """
    text = _FORMATS.sub(_HIDDEN, text)
    text = _URL_USER.sub(rf"\g<scheme>{_HIDDEN}@", text)
    text = _URL_QUERY.sub(rf"\g<url>{_HIDDEN}", text)
    return _NAMED.sub(_without_value, text)


def _without_value(found: re.Match[str]) -> str:
    value = found["value"]
    if re.fullmatch(r"-?\d{1,9}(?:\.\d*)?", value):
        return found[0]
    return f"{found['name']}{found['sign']}{_HIDDEN}"
