"""Nursery: the parent's side of the process from which workers are forked (autofit/probing/remote/fork_server.py)."""

import json
import math
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from autofit.linux_process import IS_LINUX
from autofit.probing.remote.forked_state import can_set

SUPERVISOR = Path(__file__).parent / "supervisor.py"
ANSWER_S = 20.0
"""Maximum wait for a nursery that has forked before. It may have to finish an import first."""
_NAMES = 500  # names in a message; the names of modules are far shorter than 100 characters


def fresh(given: Mapping[str, int], environment: Mapping[str, str], output: int) -> subprocess.Popen[bytes]:
    """Starts a fresh interpreter with a supervisor, given descriptors by option."""
    options = (text for name, descriptor in given.items() for text in (f"--{name}", str(descriptor)))
    # -P: a file in the working directory must not shadow a module of the standard library.
    return subprocess.Popen(
        [sys.executable, "-P", str(SUPERVISOR), *options],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env={**environment, "PYTHONUNBUFFERED": "1"},
        pass_fds=tuple(given.values()),
        process_group=0,
    )


class _Refused(NamedTuple):
    """Why the nursery forked nothing; "" if it died or does not answer; and the module that is at fault."""

    reason: str = ""
    culprit: str = ""


class ForkedProcess:
    """A supervisor that the nursery forked, with the part of `subprocess.Popen` that `Child` uses.

    It writes its wait status to the other end of the descriptor `status`, which closes when it ends. `ended` is called
    once then.
    """

    def __init__(self, pid: int, status: int, ended: Callable[[int], None]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status, self._ended, self._said = status, ended, b""

    def poll(self) -> int | None:
        """Returns the return code, or None while the process is alive."""
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float) -> int:
        """Waits for the process to end and returns its return code.

        Raises:
            subprocess.TimeoutExpired: it has not ended after `timeout` seconds.
        """
        until = monotonic() + timeout
        while self.returncode is None:
            if not select.select([self._status], [], [], max(until - monotonic(), 0.0))[0]:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            said = os.read(self._status, 4096)
            self._said += said
            if not said:  # a supervisor that said nothing was killed itself
                word, _, status = self._said.decode().partition(" ")
                self.returncode = os.waitstatus_to_exitcode(int(status)) if word == "ended" else -signal.SIGKILL
                os.close(self._status)
                self._ended(self.pid)
        return self.returncode


class Nursery:
    """Starts the nursery at the first fork, starts it once more if it dies, and gives up where forking is unsafe.

    Not thread-safe.

    Attributes:
        environment: variables of the forked processes, in addition to those of this process.
        reason: why the last process was not forked; "" if it was.
        libraries: the modules that the nursery imports. Those from the first on after whose import it could not be
            forked are left out when it starts again.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._life = -1
        self._variables = dict[str, str]()
        self._served = self._restarted = False
        self._given_up = "" if IS_LINUX else "processes are forked on Linux only"
        self.reason = self._given_up
        self.libraries: list[str] = []
        self._gpus = 0

    @property
    def pid(self) -> int | None:
        """The process id of the nursery; None while there is none."""
        return None if self._process is None else self._process.pid

    def fork(self, given: Sequence[int], variables: Mapping[str, str], patience_s: float) -> ForkedProcess | None:
        """Returns a forked process; None if none can be forked, for the `reason`.

        It gets the descriptors `given`, those of a `Child`: life, requests, replies and output. The `variables` of the
        environment are for it alone.

        Raises:
            TimeoutError: the nursery did not answer in that time. It was ended.
        """
        while not self._refusal(variables):
            try:
                found = self._asked([*given], variables, patience_s)
            except OSError as error:
                if isinstance(error, TimeoutError):
                    raise
                found = _Refused(str(error))
            if isinstance(found, ForkedProcess):
                self._served = True
                return found
            self._lost(found)
        return None

    def learn(self, libraries: Sequence[str], gpus: int) -> None:
        """Has the nursery import modules while it has nothing else to do.

        Libraries that ask torch meanwhile for the number of GPUs get `gpus`.
        """
        self.libraries, self._gpus = list(libraries), gpus
        self._send_libraries()

    def close(self) -> None:
        """Ends the nursery. Processes that it forked live on."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        os.close(self._life)
        if self._connection is not None:
            self._connection.close()

    def _refusal(self, variables: Mapping[str, str]) -> str:
        self.reason = self._given_up
        if not self.reason and not can_set(variables):
            self.reason = f"{', '.join(variables)} must be set before a process starts"
        if not self.reason and self._process is not None and self._variables != self._present():
            self.reason = "the environment variables have changed since the nursery started"
        return self.reason

    def _lost(self, refused: _Refused) -> None:
        """Ends a nursery that forked nothing. It may start once more if it has forked before.

        After a refusal it only starts again if the module is known that must not be imported.
        """
        self.close()
        known = refused.culprit in self.libraries
        if known:
            self.libraries = self.libraries[: self.libraries.index(refused.culprit)]
        if self._restarted or not self._served or (refused.reason and not known):
            self._given_up = refused.reason or "the nursery died"
        self._restarted = True

    def _asked(self, given: list[int], variables: Mapping[str, str], patience_s: float) -> ForkedProcess | _Refused:
        """Asks for a fork."""
        if self._process is None:
            self._start()
        assert self._connection is not None, "it was started"
        limit_s = min(patience_s, ANSWER_S) if self._served and not self._restarted else patience_s
        read, write = os.pipe()
        try:
            try:
                message = json.dumps({"do": "fork", "variables": dict(variables)}).encode()
                socket.send_fds(self._connection, [message], [*given, write])
            finally:
                os.close(write)
            word, _, content = self._answer(read, limit_s, limit_s == patience_s).partition(" ")
            if word != "started":
                os.close(read)
                culprit, _, reason = content.partition(" ")
                return _Refused(reason, culprit)
            return ForkedProcess(int(content), read, lambda pid: self._send({"do": "reap", "pid": pid}))
        except BaseException as error:
            with suppress(OSError):
                os.close(read)
            if not isinstance(error, OSError) or isinstance(error, TimeoutError):
                self.close()  # what was asked for may still be queued
                raise
            return _Refused()

    def _answer(self, status: int, limit_s: float, is_last: bool) -> str:
        """Returns the first line of an answer; "" if the nursery died, or may be replaced and does not answer.

        Raises:
            TimeoutError: it does not answer, and there is no more time.
        """
        said, until = b"", monotonic() + limit_s
        while not said.endswith(b"\n"):
            left_s = None if limit_s == math.inf else max(until - monotonic(), 0.0)
            if not select.select([status], [], [], left_s)[0]:
                if is_last:
                    raise TimeoutError
                return ""
            byte = os.read(status, 1)  # the rest is for ForkedProcess
            if not byte:
                return ""
            said += byte
        return said.decode(errors="replace").strip()

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        life, self._life = os.pipe()
        self._variables = self._present()
        try:
            given = {"nursery": theirs.fileno(), "life": life}
            self._process = fresh(given, self._variables, subprocess.DEVNULL)
        except BaseException:
            ours.close()
            os.close(self._life)
            raise
        finally:
            theirs.close()
            os.close(life)
        self._connection = ours
        self._send_libraries()

    def _present(self) -> dict[str, str]:
        return {**os.environ, **self.environment}

    def _send_libraries(self) -> None:
        for at in range(0, len(self.libraries), _NAMES):
            self._send({"do": "import", "names": self.libraries[at : at + _NAMES], "gpus": self._gpus})

    def _send(self, message: Mapping[str, object]) -> None:
        """Sends a message that has no answer. A nursery that is gone or does not read misses it."""
        if self._process is not None and self._connection is not None:
            with suppress(OSError):
                self._connection.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)
