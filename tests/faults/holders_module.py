"""A module of the user's own that keeps state in its globals."""

from typing import Any

STEPS = 0
SEEN: list[int] = []


def remember(batch: Any) -> None:
    SEEN.append(len(batch))
