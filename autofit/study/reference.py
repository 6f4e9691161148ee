"""A storage that an environment variable or a file names, so that a URL with a password is in no command line."""

import os
from pathlib import Path

from autofit.core.errors import UsageError

ENV, FILE = "env:", "file:"
"""Beginnings of a location that names an environment variable, and of one that names a file."""
LONGEST = 4096
"""Maximum number of characters in a file with a location."""


def dereferenced(location: str | None) -> str | None:
    """Returns a location, or what the environment variable or the file that it names contains.

    Args:
        location: a path or a database URL, `env:NAME`, or `file:PATH`. None is returned as it is.

    Raises:
        UsageError: the variable is not set, or the file cannot be read. The message does not show what they contain.
    """
    if location is None:
        return None
    if location.startswith(ENV):
        name = location.removeprefix(ENV)
        return _filled(
            os.environ.get(name, "").strip(), f"the environment variable {name}, which is not set or is empty"
        )
    if location.startswith(FILE):
        path = Path(location.removeprefix(FILE)).expanduser()
        try:
            with path.open(encoding="utf-8") as file:
                text = file.read(LONGEST).strip()
        except (OSError, ValueError) as error:
            found = (error.strerror if isinstance(error, OSError) else None) or "what is not UTF-8"
            raise UsageError(
                f"the study {location} cannot be read: found {found}; expected a file with a path or a database URL."
            ) from None
        return _filled(text, f"{path}, which is empty")
    return location


def _filled(text: str, what: str) -> str:
    if not text:
        raise UsageError(f"found {what}; expected a path or a database URL in it.")
    return text
