"""Links between processes that only Linux offers: die with the parent, and adopt orphans.

Imports the standard library only. On other systems both functions do nothing.
"""

import ctypes
import os
import signal
import sys

IS_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_LIBC = ctypes.CDLL(None, use_errno=True) if IS_LINUX else None  # loaded on import: after a fork it could deadlock


def die_with(parent: int) -> None:
    """Has the kernel kill this process when `parent`, the process that forked it, dies."""
    if _LIBC is None:
        return
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent died before the call above
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the reaper of its descendants: if one dies, its children become children of this process."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1)
