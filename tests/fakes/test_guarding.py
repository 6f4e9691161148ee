"""Lists for a test's step: the guard puts a plain list back, and leaves these as they are."""

import gc

from torch import nn

from autofit.guard.guard import Guard
from tests.fakes import notes, unguarded


class Marked(list[int]):
    """A list to which a weak reference can be had."""


def test_notes_outlive_a_collection() -> None:
    seen = notes()
    seen.append(1)
    gc.collect()
    assert list(seen) == [1]


def test_proxy_writes_to_the_object_itself() -> None:
    found = Marked()
    unguarded(found).append(2)
    assert found == [2]


def test_guard_puts_back_a_plain_list_and_not_the_notes() -> None:
    plain: list[int] = []
    seen = notes()

    def step() -> None:
        plain.append(1)
        seen.append(1)

    with Guard(nn.Linear(1, 1), functions={"step_fn": step}):
        step()
        assert plain == [1]
    assert plain == []
    assert list(seen) == [1]
