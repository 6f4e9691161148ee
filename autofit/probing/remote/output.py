"""Output: what the user's code prints in a child goes to a log for its owner's eyes, and nowhere else.

It may hold whatever that code prints, keys and passwords too. So no part of it reaches a plan, a study or a result, but
for the last line of an exception, without what looks like a secret.
"""

import os
import re
import stat
import tempfile
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from autofit.core.redaction import redacted
from autofit.failures.evidence import plain

MOST_BYTES = 2**20
"""A log beyond this is cut to the last that was printed."""
KEPT_BYTES = 2**16
_LINE_LIMIT = 240
_HEAD, _CUT = b"--- printed by your code from ", b"[what was printed before is not kept]\n"
"""What a log begins with; a file that begins otherwise is somebody else's."""
_EXCEPTION = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt)(?::\s.*)?$")


class OutputLog:
    """A log file, of mode 0600, that is made when something is printed. Thread-safe.

    Args:
        path: the file; None: a temporary one of its own, which `close` removes unless somebody was told of it.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._temporary = path, path is None
        self._file: int | None = None
        self._failure, self._told = "", False
        self._lock = threading.Lock()

    def write(self, chunk: bytes, tail: bytes) -> None:
        """Adds a chunk; what no longer has room is dropped, but for `tail`, the last of it all.

        A log that cannot be written costs nothing but itself.
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

    def told(self) -> str:
        """Returns where the output is, for a person; from then on it is kept."""
        if self._file is None:
            return f"what it printed could not be kept ({self._failure})" if self._failure else ""
        self._told = True
        return f"what it printed is in {self._path}"

    def close(self) -> None:
        """Closes the file; removes a temporary one that nobody was told of."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file, self._failure = None, "it was closed"
                if self._temporary and not self._told and self._path is not None:
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
            raise PermissionError(0, "the study's directory is a link, or another user's")
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self._path, flags, 0o600)
        found = os.fstat(descriptor)
        if not (stat.S_ISREG(found.st_mode) and _mine(found) and found.st_nlink == 1):
            os.close(descriptor)
            raise PermissionError(0, "its file is not a plain one of this user")
        begins = os.pread(descriptor, max(len(_HEAD), len(_CUT)), 0)
        if begins and not begins.startswith((_HEAD, _CUT)):
            os.close(descriptor)
            raise PermissionError(0, f"{self._path.name} is there already and holds something else")
        return descriptor


def _mine(found: os.stat_result) -> bool:
    return found.st_uid in (os.geteuid(), 0)


def last_exception(output: str) -> str:
    """Returns the last line of an output where that is an exception's, made safe to show; else ""."""
    lines = [line for line in plain(output[-4000:], 4000).splitlines() if line.strip()]
    if not lines or not _EXCEPTION.match(lines[-1]):
        return ""
    return plain(redacted(lines[-1]), _LINE_LIMIT)
