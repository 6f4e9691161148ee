"""Results on disk: written whole or not at all, and what cannot be read counts as absent."""

import json
from pathlib import Path
from typing import Any


def write(path: Path, text: str) -> None:
    """Writes the text, replacing the file in one move."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def read(path: Path) -> dict[str, Any] | None:
    """Returns the JSON object in a file, or None when there is none; an unreadable one is named in a line."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # bad JSON and bad UTF-8 alike
        found = error
    if isinstance(found, dict):
        return found
    what = found if isinstance(found, ValueError) else f"a {type(found).__name__}"
    print(f"{path} is no JSON object ({what}); taken as absent", flush=True)
    return None
