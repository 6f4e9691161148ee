"""Lists for what a test's own step sees, which the guard leaves as they are."""

import weakref
from typing import Any


class _Notes(list[Any]):
    """A list to which a weak reference can be had."""


def unguarded(found: Any) -> Any:
    """Returns `found` behind a weak reference, which the guard does not follow: what a step writes to it stays."""
    weakref.finalize(unguarded, bool, found).atexit = False  # keeps it, out of the reach of any function of the tests
    return weakref.proxy(found)


def notes() -> Any:
    """Returns a list for what a test's step sees. A plain list is put back after each probe, as a user's would be."""
    return unguarded(_Notes())
