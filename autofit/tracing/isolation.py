"""Isolation of a trace: it leaves nothing behind in the user's objects and cannot hang.

A trace runs on a copy of the model, the optimizer and the loss module. Other objects that the user's functions hold are
not copied: closures, bound objects, tables in a module. They may keep a fake tensor. So on a host the trace runs in a
forked process. On other devices, where forking is not sound, only functions that hold nothing are traced, and no fake
tensor may be left afterwards.

The process is forked, not spawned, because the user's objects exist only in this process. As with data loader workers,
forking is sound if no device has been opened: on a host, on Linux. The child computes in one thread. OpenMP's other
threads are not forked, and an operator that torch really computes because it has no fake kernel, such as that of a
fused optimizer, would wait for them forever.
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

import torch

from autofit.core.errors import SpaceError, Untraceable
from autofit.core.uninterrupted import EVERY, FROM_OUTSIDE, uninterrupted
from autofit.core.units import format_duration
from autofit.linux_process import die_with
from autofit.memory.trace import Trace
from autofit.tracing.static_memory import check_nothing_left, check_self_contained, fake_tensors
from autofit.workloads.workload import Workload

LIMIT_S = 30.0
"""Time limit of a trace. A trace takes 0.2 to 3 s; a longer one belongs to a step that loops over samples or never
ends."""
FORKED_RATIO = 1.5
"""Multiple of the limit after which a tracing process is killed, since it may hang where the trace cannot end it."""
IS_SUPPORTED = sys.platform == "linux"
_TRACE, _UNTRACEABLE, _SPACE = b"T", b"U", b"S"
_CHUNK_BYTES = 2**20
_POLL_S = 0.1


def isolated(work: Callable[[], Trace], workload: Workload, on_host: bool, limit_s: float = LIMIT_S) -> Trace:
    """Runs `work`, a trace of `workload`, and returns its result. It ends by itself after `limit_s`, unless it hangs.

    With `on_host`, only the host is involved, so that a process may be forked.

    Raises:
        Untraceable: `work` raised it; or the workload holds objects that a trace could change, or a fake tensor was
            left behind.
        SpaceError: `work` raised it.
    """
    if on_host and IS_SUPPORTED:
        return trace_in_fork(work, FORKED_RATIO * limit_s)
    containers = check_self_contained(workload)
    before, existing = [each.copy() for each in containers], fake_tensors()
    try:
        found = work()
    finally:
        for each, entries in zip(containers, before, strict=True):
            if each != entries:
                each.clear()
                (each.extend if isinstance(each, list) else each.update)(entries)
    check_nothing_left(existing)
    return found


def trace_in_fork(work: Callable[[], Trace], limit_s: float) -> Trace:
    """Runs `work` in a forked process and returns its result. All other effects of `work` are lost with that process.

    Raises:
        Untraceable: `work` raised Untraceable or an unexpected error, took longer than `limit_s`, or its process died.
        SpaceError: `work` raised it.
    """
    with uninterrupted(*EVERY) as arrived:
        me, (read, write) = os.getpid(), os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python warns about threads; the child uses none
            child = os.fork()
        if child == 0:
            os.close(read)
            _run_child(work, write, me)
        os.close(write)
        try:
            reply = _read(read, child, limit_s, arrived)
        finally:
            _kill(child)
            os.close(read)
    return _parsed(reply, limit_s)


def _kill(child: int) -> None:
    """Kills the child and the process group that it leads, and reaps it."""
    for kill in (os.killpg, os.kill):  # the child may not have made its group yet
        with suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(child, 0)


def _run_child(work: Callable[[], Trace], write: int, parent: int) -> None:
    """Runs `work`, writes the reply and ends this process without Python's own clean-up."""
    try:
        die_with(parent)
        os.setpgid(0, 0)  # a Ctrl-C at the terminal is for the parent, which then kills this group
        for number in FROM_OUTSIDE:
            signal.signal(number, signal.SIG_DFL)
        torch.set_num_threads(1)
        gc.freeze()  # collecting the parent's objects would only copy its memory pages
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
    except BaseException as error:  # noqa: BLE001  # only the reply may leave this process
        return _UNTRACEABLE + f"{type(error).__name__}: {error}\0in the process that traces".encode()


def _read(descriptor: int, child: int, limit_s: float, arrived: list[int]) -> bytes | None:
    """Returns everything that the child writes until it ends; None if the time runs out or a signal arrives first.

    Waits for the child, not for the end of the pipe: a process that the child started may hold the pipe open.
    """
    found, deadline = bytearray(), monotonic() + limit_s
    while True:
        ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        wait_s = 0.0 if ended else min(max(deadline - monotonic(), 0.0), _POLL_S)
        ready, _, _ = select.select([descriptor], [], [], wait_s)
        if not ready:
            if ended:
                return bytes(found)
            if monotonic() < deadline and not arrived:
                continue
            return None
        chunk = os.read(descriptor, _CHUNK_BYTES)
        if not chunk:
            return bytes(found)
        found += chunk


def _parsed(reply: bytes | None, limit_s: float) -> Trace:
    if reply is None:
        raise Untraceable(f"the trace was not finished after {format_duration(limit_s)}", "in the process that traces")
    kind, content = reply[:1], reply[1:]
    if kind == _TRACE:
        return Trace.model_validate_json(content)
    if kind == _SPACE:
        raise SpaceError(content.decode())
    if kind == _UNTRACEABLE:
        reason, _, where = content.decode().partition("\0")
        raise Untraceable(reason, where)
    raise Untraceable("its process died", "in the process that traces")
