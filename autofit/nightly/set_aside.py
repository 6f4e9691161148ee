"""SetAside: a local file that keeps the records of a night while the storage of the history is not available.

The file has one record per line, as JSON, and is only appended to until its records are merged. It may
be used by several processes at once. A last line that a killed process left incomplete is ignored.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autofit import locks
from autofit.core.errors import StudyError
from autofit.nightly.record_text import check_schema, from_text, to_text
from autofit.nightly.records import NightRecord
from autofit.study import permissions

LOCK_WAIT_S = 30.0
"""Maximum time to wait for another process that is using the file."""


class SetAside:
    """The records that were set aside.

    Attributes:
        path: the file. It is empty or does not exist while nothing is set aside.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: NightRecord) -> None:
        """Appends a record. When it returns, the record is on disk.

        Raises:
            StudyError: the file cannot be written.
        """
        line = f"{to_text(record)}\n".encode()
        with self._guarded():
            permissions.make_directory(self.path.parent)
        with self._open(os.O_RDWR | os.O_CREAT) as descriptor:
            if descriptor is None:
                raise StudyError(f"records cannot be kept in {self.path}: found no directory; expected one. Create it.")
            os.ftruncate(descriptor, _content(descriptor).rfind(b"\n") + 1)  # without an incomplete last line
            with open(descriptor, "ab", closefd=False) as file:
                file.write(line)
            os.fsync(descriptor)
            _sync_directory(self.path.parent)

    def read(self) -> tuple[tuple[NightRecord, ...], int]:
        """Returns the records, oldest first, and the number of lines that cannot be read.

        Raises:
            StudyError: the file cannot be read, or has records of a newer version.
        """
        with self._open(os.O_RDONLY) as descriptor:
            return self._records(b"" if descriptor is None else _content(descriptor))

    @contextmanager
    def taken(self) -> Iterator[tuple[tuple[NightRecord, ...], int]]:
        """Gives what `read` returns, while no other process appends. Afterwards the file is emptied.

        If the context ends with an exception, the file is kept.

        Raises:
            StudyError: as in `read`.
        """
        with self._open(os.O_RDWR) as descriptor:
            yield self._records(b"" if descriptor is None else _content(descriptor))
            if descriptor is not None:
                os.ftruncate(descriptor, 0)
                os.fsync(descriptor)

    def _records(self, data: bytes) -> tuple[tuple[NightRecord, ...], int]:
        lines = data.split(b"\n")[:-1]  # what follows the last line feed is an incomplete line
        found = [self._record(line) for line in lines]
        records = tuple(record for record in found if record is not None)
        return records, len(found) - len(records)

    def _record(self, line: bytes) -> NightRecord | None:
        text = line.decode(errors="replace")
        check_schema(text, str(self.path))
        return from_text(text)

    @contextmanager
    def _open(self, flags: int) -> Iterator[int | None]:
        """Opens the file, for its owner alone, and locks it against other processes. None: it does not exist."""
        with self._guarded():
            try:
                descriptor = os.open(self.path, flags | os.O_NOFOLLOW, 0o600)
            except FileNotFoundError:
                yield None
                return
            try:
                self._check(descriptor)
                yield descriptor
            finally:
                os.close(descriptor)

    def _check(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise StudyError(
                f"records cannot be kept in {self.path}: found something that is not a file of this user; expected no "
                "file, or one that autofit made. Move it away."
            )
        if found.st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
        if not _lock(descriptor):
            raise StudyError(
                f"{self.path} is in use: found it locked by {locks.holder_of(self.path)}; expected it to be free. Wait "
                "until that process ends, or end it."
            )

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StudyError(
                f"records cannot be kept in {self.path}: {error.strerror or error}; expected a file that this "
                "user can write, in a directory that has space. Check its permissions and the free space."
            ) from None


def _content(descriptor: int) -> bytes:
    os.lseek(descriptor, 0, os.SEEK_SET)
    with open(descriptor, "rb", closefd=False) as file:
        return file.read()


def _lock(descriptor: int) -> bool:
    """Returns whether the file was locked in time. A file system without locks counts as locked."""
    with suppress(OSError):
        return locks.locked(descriptor, LOCK_WAIT_S)
    return True


def _sync_directory(directory: Path) -> None:
    """Makes the name of a new file durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
