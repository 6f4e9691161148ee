"""A storage that an environment variable or a file contains, so that a URL with a password is in no command line."""

import os
from pathlib import Path

from autofit.core.errors import UsageError
from autofit.files import head_of

ENV, FILE = "env:", "file:"
"""Beginnings of a location that names an environment variable, and of one that names a file."""
MAX_BYTES = 2**16
"""Maximum number of bytes that are read of a file with a location."""


def dereferenced(location: str | None) -> str | None:
    """Returns a location, or what the environment variable or the file that it names contains.

    Args:
        location: a path or a database URL, `env:NAME`, or `file:PATH`. None is returned as it is.

    Raises:
        UsageError: the variable is not set, or the file cannot be read. The message does not show what they contain.
    """
    if location is None or not location.startswith((ENV, FILE)):
        return location
    if location.startswith(ENV):
        text, what = in_variable(location.removeprefix(ENV))
    else:
        text, what = in_file(Path(location.removeprefix(FILE)).expanduser())
    if not text.strip():
        raise UsageError(f"found {what}; expected a path or a database URL in it.")
    return text.strip()


def in_variable(name: str) -> tuple[str, str]:
    """Returns the value of an environment variable, and what was found if it is empty."""
    return os.environ.get(name, ""), f"the environment variable {name}, which is not set or is empty"


def in_file(path: Path) -> tuple[str, str]:
    """Returns the text of a file, and what was found if there is none."""
    try:
        return head_of(path, MAX_BYTES).decode().strip(), f"the file {path}, which is empty"
    except OSError as error:
        return "", f"the file {path}, which cannot be read ({error.strerror})"
    except ValueError:  # not UTF-8, or a NUL in the path
        return "", f"the file {path}, which is not UTF-8 text"
