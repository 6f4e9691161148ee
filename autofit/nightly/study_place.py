"""StudyPlace: where the searches of a night keep their trials: with the history, or in a local file while it is away.

Each process has a local file of its own, so that no file is moved while another process uses it. Processes on other
machines may share the folder: a lock beside the file says that it is in use.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autofit import locks
from autofit.core.errors import StudyError
from autofit.nightly.history import History
from autofit.reports.counting import counted
from autofit.study import permissions
from autofit.study.location import Place


class StudyPlace:
    """Where the searches of a night keep their trials. An object is used by one thread.

    Args:
        history: the history of the night.
        location: path or URL of its storage.
        local: the path of local files, each of which has an identifier before its ending.
    """

    def __init__(self, history: History, location: str, local: Path) -> None:
        self._history, self.location, self._pattern = history, location, local
        self._local: Path | None = None
        self._descriptor = -1

    @property
    def away(self) -> bool:
        """Whether the history could not be read when the night began, so that earlier nights are not known."""
        return self._history.away

    def now(self) -> str:
        """Returns the path or URL for a search that begins now. Asks the storage of the history whether it answers."""
        return self.location if self._history.answers() else self.local()

    def local(self) -> str:
        """Returns the path of this process's local file, which is in use until it was merged."""
        if self._local is None:
            permissions.make_directory(self._pattern.parent)
            path = self._pattern.with_suffix(f".{uuid.uuid4().hex[:12]}{self._pattern.suffix}")
            self._descriptor = os.open(_lock_of(path), os.O_RDWR | os.O_CREAT, 0o600)
            with suppress(OSError):  # some network file systems have no locks
                locks.locked(self._descriptor, 0.0)
            self._local = path
        return str(self._local)

    def merge(self) -> list[str]:
        """Moves the trials of local files that no other process uses to the storage of the history, if it answers.

        Returns:
            Notes on what was moved, and on what was not and why.
        """
        pattern = f"{self._pattern.stem}.*{self._pattern.suffix}"
        files = sorted(self._pattern.parent.glob(pattern))
        notes: list[str] = []
        try:
            if not files or not self._history.answers():
                return []
            count = sum([self._merged(path, notes) for path in files])
        except (StudyError, OSError) as error:
            return [*notes, f"trials of searches during which the study was away are kept in {pattern}: {error}"]
        moved = f"merged into the study: {counted(count, 'trial')} of searches during which it was not available"
        return [*notes, moved] if count else notes

    def _merged(self, path: Path, notes: list[str]) -> int:
        """Moves the trials of one file; returns their number. One that cannot be read is set aside."""
        from autofit.study import merging  # noqa: PLC0415  # loads Optuna

        with self._unused(path) as unused:
            if not unused or not path.exists():
                return 0
            try:
                studies = merging.read(path)
            except StudyError as error:
                kept = path.with_suffix(".damaged")
                path.rename(kept)
                notes.append(f"{kept} could not be merged into the study: {error}")
                return 0
            count = merging.write(studies, Place.of(self.location))
            for each in (path, Path(f"{path}-journal"), _lock_of(path)):
                each.unlink(missing_ok=True)
            return count

    def close(self) -> None:
        """Gives up this process's local file, which a later night merges."""
        if self._local is not None:
            os.close(self._descriptor)
            self._local = None

    @contextmanager
    def _unused(self, path: Path) -> Iterator[bool]:
        """Keeps other processes from a file. Gives whether none of them uses it."""
        if path == self._local:  # no search of this process runs now
            descriptor, self._local = self._descriptor, None
            free = True
        else:
            descriptor, free = os.open(_lock_of(path), os.O_RDWR | os.O_CREAT, 0o600), True
            with suppress(OSError):
                free = locks.locked(descriptor, 0.0)
        try:
            yield free
        finally:
            os.close(descriptor)


def _lock_of(path: Path) -> Path:
    return path.with_suffix(".lock")
