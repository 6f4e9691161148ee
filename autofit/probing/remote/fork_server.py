"""Nursery: a process that has imported torch and the user's libraries, and from which workers are forked.

A worker that is forked here starts in a fraction of a second; a fresh interpreter spends most of its start on imports.
The nursery runs none of the user's code and no step, and uses no device. It forks only while it has one thread and no
device's files are open: a fork copies no other thread, and a device's context cannot be used in a copy.

Started as `python -P supervisor.py --nursery FD --life FD`. Messages arrive as JSON on the first descriptor, a socket:

* `{"do": "fork", "variables": {...}}`, with five descriptors: the pipes that `Child` makes. The forked process becomes
  a supervisor (supervisor.py) and forks the worker. It writes `started PID` to the last descriptor, and when the worker
  has ended `ended STATUS`, a wait status. If forking is unsafe, the nursery writes `refused MODULE REASON` there
  instead, with the module after whose import that was found, or `-`.
* `{"do": "import", "names": [...], "gpus": N}`: modules to import while nothing is asked. Errors are ignored. Libraries
  that ask torch meanwhile for the number of GPUs get this answer, so that none of them starts the driver.
* `{"do": "reap", "pid": PID}`: the parent has done with a supervisor that has ended.
"""

import gc
import importlib
import json
import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from select import select
from time import monotonic, sleep
from typing import Any

from autofit.linux_process import device_files, end_with, thread_count
from autofit.probing import frozen_heap
from autofit.probing.remote import forked_state, supervisor

MESSAGE_BYTES = 2**16
"""Largest size of a message."""
FORKED = 5
"""Number of descriptors that come with a request to fork: life, requests, replies, output, status."""
_NICE = 19
"""Niceness of the thread that imports, so that it takes little from what is measured meanwhile. Children fork from
the main thread and do not inherit it."""
_QUIET = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
"""Variables of the nursery alone: OpenBLAS and the allocator of pyarrow would start threads on import, and torch the
driver when it is asked for the number of GPUs."""
_THREADS = 2
"""Number of threads while modules are imported."""
_VANISH_S = 1.0
"""Maximum time until a thread that has ended is gone from the system's list."""


def main(connection: int, life: int) -> None:
    """Imports what every worker needs, then serves."""
    end_with(life)
    before = {name: os.environ.get(name) for name in _QUIET}
    os.environ.update(_QUIET)
    worker = importlib.import_module("autofit.probing.remote.worker")  # and with it torch
    ForkServer(socket.socket(fileno=connection), life, worker.serve, before).serve()


class ForkServer:
    """Serves one parent until the parent closes its end.

    A forked worker runs `work` with the descriptors of its requests and replies, and with the values `before` of the
    variables that are set in this process alone. This process ends with the pipe `life`.
    """

    def __init__(
        self, connection: socket.socket, life: int, work: Callable[[int, int], None], before: dict[str, str | None]
    ) -> None:
        self._connection, self._life, self._work, self._before = connection, life, work, before
        self._imports = Imports()

    def serve(self) -> None:
        """Answers messages until the parent is gone. Returns in a forked worker once its work is done."""
        while True:
            content, given, _, _ = socket.recv_fds(
                self._connection, MESSAGE_BYTES, FORKED, flags=socket.MSG_CMSG_CLOEXEC
            )
            if not content:
                os._exit(0)  # a thread may be importing
            message: dict[str, Any] = json.loads(content)
            if message["do"] == "import":
                self._imports.add(message["names"], message["gpus"])
            elif message["do"] == "reap":
                with suppress(ChildProcessError):  # another nursery has forked it
                    os.waitpid(message["pid"], 0)
            elif self._forked(message["variables"], given):
                return

    def _forked(self, variables: dict[str, str], given: list[int]) -> bool:
        """Forks a worker, or says why not. Returns True in the worker, after its work."""
        life, read, write, output, status = given
        self._imports.pause()
        is_worker = False
        if select([life], [], [], 0)[0]:
            pass  # the parent no longer waits for this one
        elif reason := unsafe():
            os.write(status, f"refused {self._imports.culprit or '-'} {reason}\n".encode())
        else:
            gc.freeze()  # a collection in the worker would copy the pages that it shares with this process
            is_worker = os.fork() == 0
        if is_worker:
            self._connection.close()
            os.close(self._life)
            _become_worker(life, read, write, output, status)
            frozen_heap.inherit()
            forked_state.restore(self._before)
            forked_state.set_variables(variables)
            forked_state.renew()
            sys.argv[1:] = ["--life", str(life), "--read", str(read), "--write", str(write)]
            self._work(read, write)
            return True
        for descriptor in given:
            os.close(descriptor)
        self._imports.go_on()
        return False


def unsafe() -> str:
    """Returns why this process must not be forked, or ""."""
    until = monotonic() + _VANISH_S
    while thread_count() > 1 and monotonic() < until:
        sleep(0.001)
    if (threads := thread_count()) > 1:
        return f"it has {threads} threads, which a library started"
    if files := device_files():
        return f"it has opened a device ({', '.join(files)})"
    gpus = _gpus()
    return "it has used a GPU" if gpus is not None and gpus.gpu_in_use() else ""


def _become_worker(life: int, read: int, write: int, output: int, status: int) -> None:
    """Makes this forked process the supervisor of a worker, and returns in the worker."""
    os.setpgid(0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor, source in ((0, null), (1, output), (2, output)):
        os.dup2(source, descriptor)
    os.close(null)
    os.close(output)
    os.write(status, f"started {os.getpid()}\n".encode())

    def say_ended(found: int) -> None:
        with suppress(BrokenPipeError):
            os.write(status, f"ended {found}\n".encode())

    supervisor.keep(life, read, write, ended=say_ended)
    os.close(status)


class Imports:
    """Imports modules in a thread of low priority, which can be halted between two modules.

    Attributes:
        culprit: the module after whose import another thread or an open device was found; "" if there is none.
    """

    def __init__(self) -> None:
        self.culprit, self._gpus = "", 0
        self._names: deque[str] = deque()
        self._halt = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, names: list[str], gpus: int) -> None:
        """Adds modules to import, where there are this many GPUs, and begins."""
        self.pause()
        self._gpus = gpus
        self._names.extend(names)
        self.go_on()

    def pause(self) -> None:
        """Waits for the module that is being imported; the thread is gone then."""
        self._halt.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def go_on(self) -> None:
        """Imports the remaining modules."""
        self._halt.clear()
        if self._names:
            self._thread = threading.Thread(target=self._run, name="autofit-imports", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        os.nice(_NICE)  # on Linux, of this thread alone
        gpus = _gpus()
        with nullcontext() if gpus is None else gpus.known_gpu_count(self._gpus):
            while self._names and not self._halt.is_set():
                name = self._names.popleft()
                if name in sys.modules:
                    continue
                with suppress(BaseException):  # a library may even exit; the worker that needs it imports it itself
                    importlib.import_module(name)
                if thread_count() > _THREADS or device_files():
                    self.culprit = name
                    self._names.clear()


def _gpus() -> Any:
    """Returns the module that asks torch about GPUs; None if torch is not loaded."""
    return importlib.import_module("autofit.devices") if "torch" in sys.modules else None
