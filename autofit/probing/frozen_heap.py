"""FrozenHeap: keeps Python's heap out of garbage collection while plans run."""

import gc


class FrozenHeap:
    """Excludes existing objects from garbage collection, which then takes 1 ms per probe instead of 500 ms."""

    def __init__(self) -> None:
        self._froze = False

    def freeze(self) -> None:
        """Freezes the heap, unless the user has already frozen it."""
        if not gc.get_freeze_count():
            gc.collect()
            self._froze = True  # set first: unfreezing a heap that is not frozen does nothing
            gc.freeze()

    def unfreeze(self) -> None:
        """Undoes `freeze`. A second call does nothing."""
        if self._froze:
            gc.unfreeze()
            self._froze = False
