"""Apart: traces in a forked process, so that nothing of the user's can keep a fake tensor, and none can hang.

A step function, a closure or a module of the user's may keep what it is given: a table by batch size, a running mean.
Only what the trace copies (model, optimizer, loss module) is safe from that in the user's own process.

Forked, and not started afresh, because the user's objects are here and nowhere else. That is sound where no device has
been opened, as with data loader workers: on a host, on Linux. The child computes in one thread: OpenMP's other threads
are not forked, and an operator that torch computes for want of a fake kernel, such as a fused optimizer's, would wait
for them for ever.
"""

import gc
import logging
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

import torch

from autofit.core.errors import SpaceError, Untraceable
from autofit.memory.trace import Trace
from autofit.probing.keeper import die_with

POSSIBLE = sys.platform == "linux"
_TRACE, _UNTRACEABLE, _SPACE = b"T", b"U", b"S"
_PIECE = 2**20
_LOOK_S = 0.1


def traced_apart(work: Callable[[], Trace], limit_s: float) -> Trace:
    """Returns what `work` returns in a forked process; everything else that it does is lost with that process.

    Raises:
        Untraceable: it raised that, or anything unexpected; it took longer than `limit_s`; its process died.
        SpaceError: it raised that.
    """
    me, (read, write) = os.getpid(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of threads; the child starts none and ends
        child = os.fork()
    if child == 0:
        os.close(read)
        _answer(work, write, me)
    os.close(write)
    try:
        reply = _read(read, child, limit_s)
    finally:
        _end(child)
        os.close(read)
    return _understood(reply, limit_s)


def _end(child: int) -> None:
    """Kills a process that traces, with the group that it leads, and reaps it; a second Ctrl-C does not prevent it."""
    for end in (os.killpg, os.kill):  # it may not have made its group yet
        with suppress(ProcessLookupError, PermissionError):
            end(child, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(child, 0)


def _answer(work: Callable[[], Trace], write: int, parent: int) -> None:
    """Does the work and ends this process, without anything that Python does at the end of one."""
    try:
        die_with(parent)
        os.setpgid(0, 0)  # a Ctrl-C at the terminal is for the parent, which then ends this group
        logging.disable(logging.CRITICAL)  # torch logs thirty lines about what a fake tensor cannot do
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        torch.set_num_threads(1)
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


def _read(descriptor: int, child: int, limit_s: float) -> bytes | None:
    """Returns all that comes until the child ends; None when the time is over.

    The child, and not the pipe, is looked at for that: a process that it started may hold the pipe open.
    """
    found, deadline = bytearray(), monotonic() + limit_s
    while True:
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        wait_s = 0.0 if ended else min(max(deadline - monotonic(), 0.0), _LOOK_S)
        ready, _, _ = select.select([descriptor], [], [], wait_s)
        if not ready:
            if ended:
                return bytes(found)
            if monotonic() < deadline:
                continue
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
