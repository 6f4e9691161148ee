"""Process-wide state that a probe may touch: precision and backend flags, random generators, environment.

Each flag has one name, one way to read it and one way to write it. A flag is written only if it differs, so that
restoring an unchanged process does nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from autofit.guard.process_flags import Flag, process_flags
from autofit.guard.random_state import global_rngs


class ProcessState:
    """A snapshot of the process-wide flags and the global random generators."""

    def __init__(self) -> None:
        """Reads all state. Does not initialise a device."""
        self._rngs = global_rngs()
        for rng in self._rngs:
            rng.save()
        self._flags = [(flag, flag.read()) for flag in process_flags()]

    def parts(self) -> list[tuple[str, Callable[[], object]]]:
        """Returns the name and the restore function of each part, signal handlers last."""
        writes: list[tuple[str, Callable[[], object]]] = [(rng.name, rng.restore) for rng in self._rngs]
        for flag, kept in self._flags:
            writes.append((flag.name, partial(_put_back, flag, kept)))
        return writes

    def comparisons(self) -> list[tuple[str, Callable[[], Iterable[str]]]]:
        """Returns the name of each part, and the function that yields what differs, such as "flags.sdp.math"."""
        compare: list[tuple[str, Callable[[], Iterable[str]]]] = [(rng.name, rng.differences) for rng in self._rngs]
        return [*compare, *((flag.name, partial(_differences, flag, kept)) for flag, kept in self._flags)]


def _differences(flag: Flag, kept: Any) -> Iterator[str]:
    """Yields the name of a flag that differs, or those of its keys."""
    now = flag.read()
    if isinstance(kept, dict):
        missing = object()
        yield from (f"{flag.name}.{key}" for key in {**kept, **now} if kept.get(key, missing) != now.get(key, missing))
    elif now != kept:
        yield flag.name


def _put_back(flag: Flag, kept: Any) -> None:
    """Writes a flag if it differs."""
    if flag.read() != kept:
        flag.write(kept)
