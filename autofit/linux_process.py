"""What only Linux offers to and knows of a process: to die with its parent, to adopt orphans, its threads and devices.

Imports the standard library only. On other systems `die_with` and `adopt_orphans` do nothing.
"""

import ctypes
import fcntl
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

IS_LINUX = sys.platform == "linux"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_DEVICE_FILES = ("/dev/nvidia-uvm", "/dev/kfd", "/dev/dri/render", "/dev/accel")
"""Files that a process opens to use a device. A query of the driver's version or of the devices' number opens none."""
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


def end_with(descriptor: int) -> None:
    """Has the kernel end this process when the other end of a pipe closes, whatever this process does meanwhile.

    Args:
        descriptor: the reading end of a pipe to which nothing is written.
    """
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([descriptor], [], [], 0)[0]:  # it was closed before the call above
        os._exit(1)


def thread_count() -> int:
    """Returns the number of threads of this process, those of libraries included."""
    return len(os.listdir("/proc/self/task"))


def device_files() -> list[str]:
    """Returns the files of compute devices that this process has open: the mark of a device context."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            path = os.readlink(f"/proc/self/fd/{name}")
            if path.startswith(_DEVICE_FILES):
                found.append(path)
    return sorted(found)


def allocator_option() -> Callable[[int, int], int] | None:
    """Returns glibc's `mallopt`; None where the C library has none."""
    return None if _LIBC is None else getattr(_LIBC, "mallopt", None)
