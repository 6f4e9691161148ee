"""Lettering: how wide a text will be, cutting and wrapping it, and places for labels that do not overlap."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from autofit.core.printable import one_line
from autofit.reports.markup import shortened

_NARROW, _WIDE = frozenset("iljtfrI.,:;'|!()[]/ "), frozenset("mwMW@%—=+<>×~→…")
_LONGEST = 400
_BREAKS = re.compile(r"(?<=[=_.])")


def text_width(text: str, size: float) -> float:
    """Returns the width of a text in DejaVu Sans, which is wider than the usual sans-serif fonts of other systems."""
    return sum(_em(letter) for letter in text) * size


def _em(letter: str) -> float:
    if letter in _NARROW:
        return 0.38
    if letter in _WIDE:
        return 0.96
    if ord(letter) > 0x2E80:  # CJK and emoji fill a square
        return 1.05
    return 0.72 if letter.isupper() else 0.63


def fitted(text: str, size: float, width: float) -> str:
    """Returns as much of `text` as fits `width`, with "…" where something is missing."""
    text = shortened(text, _LONGEST)
    if text_width(text, size) <= width:
        return text
    room = width - text_width("…", size)
    for place, letter in enumerate(text):
        room -= _em(letter) * size
        if room < 0:
            text = text[:place]
            break
    return f"{text.rstrip(' ,.')}…"


def wrapped(text: str, size: float, width: float, most: int) -> list[str]:
    """Returns `text` as at most `most` lines that fit `width`; the last one is cut if needed.

    Lines end at a space or, in a word that is too long for a line, behind "=", "_" or ".".
    """
    lines = [""]
    words = [
        part
        for word in one_line(text[:_LONGEST]).split(" ")
        for part in (_BREAKS.split(f"{word} ") if text_width(word, size) > width else [f"{word} "])
        if part.strip()
    ]
    for place, word in enumerate(words):
        longer = f"{lines[-1]}{word}"
        if text_width(longer.rstrip(), size) <= width or not lines[-1]:
            lines[-1] = longer
        elif len(lines) < most:
            lines.append(word)
        else:
            lines[-1] = "".join([lines[-1], *words[place:]])
            break
    return [fitted(line.rstrip(), size, width) for line in lines]


def spread(wanted: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[float]:
    """Returns positions near the wanted ones, in their order, for labels that do not overlap.

    Args:
        wanted: where the middle of each label should be.
        heights: of each label, with the space around it.
        low: the first position that is allowed.
        high: the last position that is allowed, if there is room for all labels.
    """
    groups = list[list[int]]()
    tops = list[float]()
    for index in sorted(range(len(wanted)), key=lambda index: wanted[index]):
        group = [index]
        top = _settled(group, wanted, heights, low, high)
        while groups and tops[-1] + sum(heights[member] for member in groups[-1]) > top:
            tops.pop()
            group = groups.pop() + group
            top = _settled(group, wanted, heights, low, high)
        groups.append(group)
        tops.append(top)
    placed = list(wanted)
    for group, top in zip(groups, tops, strict=True):
        ends = accumulate(heights[member] for member in group)
        for member, end in zip(group, ends, strict=True):
            placed[member] = top + end - heights[member] / 2
    return placed


def _settled(group: Sequence[int], wanted: Sequence[float], heights: Sequence[float], low: float, high: float) -> float:
    """Returns the top of labels that stand one below the other, so that they are near where they should be."""
    ends = list(accumulate(heights[member] for member in group))
    tops = [wanted[member] + heights[member] / 2 - end for member, end in zip(group, ends, strict=True)]
    highest, lowest = low - heights[group[0]] / 2, high + heights[group[-1]] / 2 - ends[-1]
    return min(max(sum(tops) / len(tops), highest), max(lowest, highest))


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle that a label or a mark takes."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "Box") -> bool:
        """Returns whether the two rectangles overlap."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )  # fmt: skip

    def inside(self, other: "Box") -> bool:
        """Returns whether this one lies in the other one."""
        return (
            self.left >= other.left
            and self.right <= other.right
            and self.top >= other.top
            and self.bottom <= other.bottom
        )  # fmt: skip


def place(x: float, y: float, width: float, height: float, bounds: Box, taken: Sequence[Box]) -> Box:
    """Returns where a label of a point stands: beside, above or below it, clear of what is taken if that is possible.

    Args:
        x: of the point.
        y: of the point.
        width: of the label.
        height: of the label.
        bounds: the area that the label must not leave.
        taken: what other labels and marks take.
    """
    boxes = [
        Box(left, top, left + width, top + height)
        for off in (11.0, 22.0, 36.0, 54.0)
        for left, top in (
            (x + off, y - height / 2), (x - off - width, y - height / 2), (x - width / 2, y - off - height),
            (x - width / 2, y + off), (x + off, y - off - height), (x - off - width, y - off - height),
            (x + off, y + off), (x - off - width, y + off),
        )
    ]  # fmt: skip
    inside = [box for box in boxes if box.inside(bounds)] or [_moved(boxes[0], bounds)]
    return min(inside, key=lambda box: sum(box.overlaps(other) for other in taken))


def _moved(box: Box, bounds: Box) -> Box:
    left = max(min(box.left, bounds.right - (box.right - box.left)), bounds.left)
    top = max(min(box.top, bounds.bottom - (box.bottom - box.top)), bounds.top)
    return Box(left, top, left + box.right - box.left, top + box.bottom - box.top)
