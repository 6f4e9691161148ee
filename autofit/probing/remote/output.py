"""Output: the output of the user's code in a child goes to a private log file, and nowhere else.

The output may contain keys and passwords. So no part of it reaches a plan, a study or a result, except for the last
line of an exception, from which anything that looks like a secret is removed.
"""

import os
import re
import stat
import tempfile
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from autofit.core.printable import redacted
from autofit.failures.evidence import plain

MOST_BYTES = 2**20
"""Maximum size of a log. When it is reached, only the last `KEPT_BYTES` are kept."""
KEPT_BYTES = 2**16
_LINE_LIMIT = 240
_HEAD, _CUT = b"--- printed by your code from ", b"[what was printed before is not kept]\n"
"""The two possible beginnings of a log. A file with any other beginning is not a log of autofit's."""
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)(?::\s.*)?$")


class OutputLog:
    """A log file with mode 0600 that is created at the first output. Thread-safe.

    Args:
        path: the file. None uses a temporary file, which `close` removes unless `location` was called.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._temporary = path, path is None
        self._file: int | None = None
        self._failure, self._shown = "", False
        self._lock = threading.Lock()

    def write(self, chunk: bytes, tail: bytes) -> None:
        """Appends a chunk. If the log is full, everything but `tail`, the end of the output, is dropped.

        Errors in writing the log are ignored.
        """
        with self._lock, suppress(OSError):
            if self._file is None and not self._failure:
                self._open()
            if self._file is None:
                return
            if os.fstat(self._file).st_size + len(chunk) > MOST_BYTES:
                os.ftruncate(self._file, 0)
                chunk = _CUT + tail
            while chunk:
                chunk = chunk[os.write(self._file, chunk) :]

    def location(self) -> str:
        """Returns a text that says where the output is. From then on the file is kept."""
        if self._file is None:
            return f"its output could not be kept ({self._failure})" if self._failure else ""
        self._shown = True
        return f"its output is in {self._path}"

    def close(self) -> None:
        """Closes the file. Removes a temporary file whose location was not shown."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file, self._failure = None, "it was closed"
                if self._temporary and not self._shown and self._path is not None:
                    self._path.unlink(missing_ok=True)

    def _open(self) -> None:
        try:
            self._file = self._descriptor()
            os.fchmod(self._file, 0o600)
            when = datetime.now(UTC).isoformat(timespec="seconds")
            os.write(self._file, _HEAD + f"{when} on\n".encode())
        except OSError as error:
            self._failure = error.strerror or str(error)

    def _descriptor(self) -> int:
        if self._path is None:
            descriptor, name = tempfile.mkstemp(prefix="autofit-", suffix=".log")
            self._path = Path(name)
            return descriptor
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._path.parent.is_symlink() or not _mine(self._path.parent.lstat()):
            raise PermissionError(0, "the study's directory is a link or belongs to another user")
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self._path, flags, 0o600)
        found = os.fstat(descriptor)
        if not (stat.S_ISREG(found.st_mode) and _mine(found) and found.st_nlink == 1):
            os.close(descriptor)
            raise PermissionError(0, "the log is not a regular file of this user")
        begins = os.pread(descriptor, max(len(_HEAD), len(_CUT)), 0)
        if begins and not begins.startswith((_HEAD, _CUT)):
            os.close(descriptor)
            raise PermissionError(0, f"{self._path.name} already exists and is not a log of autofit's")
        return descriptor


def _mine(found: os.stat_result) -> bool:
    return found.st_uid in (os.geteuid(), 0)


def last_exception(output: str) -> str:
    """Returns the last line of an output, made safe to show, if it is that of an exception; else ""."""
    lines = [line for line in plain(output[-4000:], 4000).splitlines() if line.strip()]
    if not lines or not _EXCEPTION.match(lines[-1]):
        return ""
    return plain(redacted(lines[-1]), _LINE_LIMIT)
