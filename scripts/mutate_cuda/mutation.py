"""Mutation: a change that disables one check of the CUDA path."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """A change of the source that disables one check.

    Attributes:
        name: the resulting fault.
        file: path of the file.
        old: the text to replace, which occurs exactly once.
        new: the replacement.
        likely: test files that run first, at least one: `budget` for tests/cuda/test_budget.py, or a path.
    """

    name: str
    file: str
    old: str
    new: str
    likely: tuple[str, ...] = ()
