"""Python's garbage collection in a process that probes: rare while it imports, and not of the heap while plans run."""

import gc
from typing import ClassVar

MOST_IMMORTAL = 1000
"""Python 3.12 counts its immortal objects, a few hundred, as frozen once they met a collection. A heap that was frozen
by a call has at least the 5,000 objects of a fresh interpreter."""

_RARELY = 10**6
"""Objects made between two collections while a process imports. With Python's 700, importing torch and transformers
takes a sixth longer; what is not collected until then takes less than 100 MB."""
_usual = gc.get_threshold()


def collect_rarely() -> None:
    """Collects garbage rarely, until `collect_as_usual` is called in this process or in one that it forks."""
    gc.set_threshold(_RARELY, *_usual[1:])


def collect_as_usual() -> None:
    """Undoes `collect_rarely`, unless the user's code has set a threshold of its own."""
    if gc.get_threshold()[0] == _RARELY:
        gc.set_threshold(*_usual)


def inherit() -> None:
    """Leaves out of account what is frozen now: the nursery froze it before it forked this process."""
    FrozenHeap.inherited = gc.get_freeze_count()


def is_frozen() -> bool:
    """Returns whether someone has frozen the heap in this process."""
    return gc.get_freeze_count() > FrozenHeap.inherited + MOST_IMMORTAL


class FrozenHeap:
    """Excludes existing objects from garbage collection, which then takes 1 ms per probe instead of 500 ms.

    With `on_host`, plans run in main memory. Garbage then takes nothing from them, since what is metered is what they
    allocate; it is left until the heap is collected again. Otherwise it is collected first.

    Attributes:
        inherited: number of objects that were frozen when this process was forked.
    """

    inherited: ClassVar[int] = 0

    def __init__(self, *, on_host: bool) -> None:
        self._on_host, self._froze = on_host, False

    def freeze(self) -> None:
        """Freezes the heap, unless the user has already frozen it."""
        if not is_frozen():
            if not self._on_host:
                gc.collect()
            self._froze = True  # set first: unfreezing a heap that is not frozen does nothing
            gc.freeze()

    def unfreeze(self) -> None:
        """Undoes `freeze`. A second call does nothing."""
        if self._froze:
            gc.unfreeze()
            self._froze = False
