"""Result files: written atomically; an unreadable file counts as absent."""

import json
from pathlib import Path
from typing import Any


def write(path: Path, text: str) -> None:
    """Writes the text and replaces the file atomically."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def read(path: Path) -> dict[str, Any] | None:
    """Returns the JSON object in a file, or None if there is none. An unreadable file is reported in one line."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # invalid JSON or invalid UTF-8
        found = error
    if isinstance(found, dict):
        return found
    what = found if isinstance(found, ValueError) else f"a {type(found).__name__}"
    print(f"{path} is not a JSON object ({what}); treated as absent", flush=True)
    return None
