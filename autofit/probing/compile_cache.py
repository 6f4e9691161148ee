"""The compile cache of one search: empty when the search begins, shared by its probes, race and proof, then deleted.

A plan's first probe is therefore charged what a first training pays, and its race and proof do not compile again.
Never loads torch.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from autofit import locks

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""Environment variable that names the folder in which torch.compile keeps its code."""
ABANDONED_S = 60.0
"""Age in seconds from which a folder that nobody has locked is removed. A younger one may not be locked yet."""
_PREFIX = "autofit-compiled-"


class CompileCache(TemporaryDirectory[str]):
    """A new folder for the code of one search, locked until it is removed.

    The kernel releases the lock of a process that was killed, and the next search removes its folder.
    """

    def __init__(self) -> None:
        _remove_abandoned()
        super().__init__(prefix=_PREFIX, ignore_cleanup_errors=True)
        self._lock = _locked(Path(self.name))

    def cleanup(self) -> None:
        """Removes the folder."""
        super().cleanup()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


@contextmanager
def private_cache() -> Iterator[None]:
    """Has torch.compile keep its code in a folder of its own in this process, until the context is left."""
    before = os.environ.get(VARIABLE)
    with CompileCache() as folder:
        os.environ[VARIABLE] = folder
        _clear()
        try:
            yield
        finally:
            _clear()
            if before is None:
                os.environ.pop(VARIABLE, None)
            else:
                os.environ[VARIABLE] = before


def _remove_abandoned() -> None:
    """Removes the folders of this user's searches whose processes were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # it is gone, or another user's
            found = folder.lstat()
            mine = not hasattr(os, "geteuid") or found.st_uid == os.geteuid()
            if mine and time.time() - found.st_mtime > ABANDONED_S and (lock := _locked(folder)) is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _locked(folder: Path) -> int | None:
    """Returns a descriptor that locks a folder; None if another process has locked it, or where that is impossible."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:  # a link; or Windows, which opens no folder
        return None
    with suppress(OSError):  # some network file systems have no locks
        if locks.locked(descriptor, 0.0):
            return descriptor
    os.close(descriptor)
    return None


def _clear() -> None:
    """Clears what torch.compile knows of the folder in this process. If it is not loaded, that is nothing."""
    compiler = sys.modules.get("torch._inductor.utils")
    if compiler is not None:
        compiler.clear_caches()
