"""The command line or Python call that repeats a search, without secrets."""

import inspect
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from autofit.core.redaction import redacted

_NAMED = re.compile(r"-{0,2}[\w.-]+=")
_HIDDEN = "***"
_NOT_SHOWN = ("progress", "listeners", "extras")
"""Arguments that do not change the search."""


def command_line(words: Sequence[str]) -> str:
    """Returns an `autofit` command line that a shell reads, with "***" for secrets.

    Args:
        words: the arguments, without the program's name.
    """
    return shlex.join(["autofit", *map(_without_secret, words)])


def tuning_call(function: Callable[..., object], values: Mapping[str, object]) -> str:
    """Returns the Python call of `autofit.tune` that has these arguments, without those that have their defaults.

    A function is written by its name. What cannot be written is `...`.

    Args:
        function: what was called.
        values: its arguments by name; others are left out.
    """
    named = []
    for name, parameter in inspect.signature(function).parameters.items():
        value, default = values.get(name, parameter.default), parameter.default
        given = value is not default and not (isinstance(value, bool | int | float | str) and value == default)
        if parameter.kind is parameter.KEYWORD_ONLY and given and name not in _NOT_SHOWN:
            named.append(f"{name}={_code(value)}")
    return redacted(f"autofit.tune({', '.join(['model', 'loader', *named])})")


def _without_secret(word: str) -> str:
    """Returns a word of a command line without secrets; if the value in NAME=VALUE has one, all of it is replaced."""
    safe, name = redacted(word), _NAMED.match(word)
    if safe == word or name is None or "://" in word:
        return safe
    return name[0] + _HIDDEN


def _code(value: object) -> str:
    """Returns a value as code."""
    if isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, Path):
        return repr(str(value))
    if isinstance(value, list | tuple) and all(isinstance(each, bool | int | float | str) for each in value):
        return repr(list(value))
    name = getattr(value, "__name__", "")
    return name if isinstance(name, str) and name.isidentifier() else "..."
