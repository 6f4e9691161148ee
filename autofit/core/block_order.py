"""Block order: numbers of blocks in some order, as the text that a plan holds, such as "0-3,7,4-6"."""

import re
from collections.abc import Sequence
from itertools import pairwise

_ORDER = re.compile(r"(\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*)?")


def written_order(order: Sequence[int]) -> str:
    """Returns an order of at least one block as text."""
    starts = [0, *(at + 1 for at, (one, next_one) in enumerate(pairwise(order)) if next_one != one + 1), len(order)]
    runs = ((order[start], order[end - 1]) for start, end in pairwise(starts))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def read_order(text: object) -> tuple[int, ...] | None:
    """Returns the order that a text names; () for an empty one, None if it is something else."""
    if not isinstance(text, str) or not _ORDER.fullmatch(text):
        return None
    runs = [run.partition("-") for run in text.split(",") if run]
    return tuple(block for first, _, last in runs for block in range(int(first), int(last or first) + 1))
