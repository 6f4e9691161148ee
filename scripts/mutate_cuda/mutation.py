"""Mutation: one check of the CUDA path that is disabled."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """One check that is disabled.

    Attributes:
        name: what no longer happens.
        file: where.
        old: the text, there exactly once.
        new: what stands there instead.
        likely: at least one test file (`budget` for tests/cuda/test_budget.py, or a path) that runs before all others.
    """

    name: str
    file: str
    old: str
    new: str
    likely: tuple[str, ...] = ()
