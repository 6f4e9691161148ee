"""Apart: traces in a forked process, so that nothing of the user's can keep a fake tensor, and none can hang.

A step function, a closure or a module of the user's may keep what it is given: a table by batch size, a running mean.
Only what the trace copies (model, optimizer, loss module) is safe from that in the user's own process.

Forked, and not started afresh, because the user's objects are here and nowhere else. That is sound where no device has
been opened and nothing is computed in the child, as with data loader workers: on a host, on Linux.
"""

import gc
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from autofit.core.errors import SpaceError, Untraceable
from autofit.core.trace import Trace

POSSIBLE = sys.platform == "linux"
_TRACE, _UNTRACEABLE, _SPACE = b"T", b"U", b"S"
_PIECE = 2**20


def traced_apart(work: Callable[[], Trace], limit_s: float) -> Trace:
    """Returns what `work` returns in a forked process; everything else that it does is lost with that process.

    Raises:
        Untraceable: it raised that, or anything unexpected; it took longer than `limit_s`; its process died.
        SpaceError: it raised that.
    """
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of threads; the child starts none and ends
        child = os.fork()
    if child == 0:
        os.close(read)
        _answer(work, write)
    os.close(write)
    try:
        reply = _read(read, limit_s)
    finally:
        os.close(read)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return _understood(reply, limit_s)


def _answer(work: Callable[[], Trace], write: int) -> None:
    """Does the work and ends this process, without anything that Python does at the end of one."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        gc.freeze()  # collecting what is the parent's would only copy its pages
        with suppress(BrokenPipeError):
            reply = _reply(work)
            while reply:
                reply = reply[os.write(write, reply) :]
    finally:
        os._exit(0)


def _reply(work: Callable[[], Trace]) -> bytes:
    try:
        return _TRACE + work().model_dump_json().encode()
    except Untraceable as error:
        return _UNTRACEABLE + f"{error.reason}\0{error.where}".encode()
    except SpaceError as error:
        return _SPACE + str(error).encode()
    except BaseException as error:  # noqa: BLE001  # nothing may get out of this process but its reply
        return _UNTRACEABLE + f"{type(error).__name__}: {error}\0in the process that traces".encode()


def _read(descriptor: int, limit_s: float) -> bytes | None:
    """Returns all that comes; None when the time is over."""
    found, deadline = bytearray(), monotonic() + limit_s
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(deadline - monotonic(), 0))
        if not ready:
            return None
        piece = os.read(descriptor, _PIECE)
        if not piece:
            return bytes(found)
        found += piece


def _understood(reply: bytes | None, limit_s: float) -> Trace:
    if reply is None:
        raise Untraceable(f"the trace was not done after {limit_s:.0f} s", "in the process that traces")
    kind, content = reply[:1], reply[1:]
    if kind == _TRACE:
        return Trace.model_validate_json(content)
    if kind == _SPACE:
        raise SpaceError(content.decode())
    if kind == _UNTRACEABLE:
        reason, _, where = content.decode().partition("\0")
        raise Untraceable(reason, where)
    raise Untraceable("its process died", "in the process that traces")
