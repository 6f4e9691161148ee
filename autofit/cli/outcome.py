"""Runs a command, prints its error, returns its exit code. Turns signals into a KeyboardInterrupt."""

import argparse
import errno
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from autofit.core.errors import AutofitError, UsageError, UserCodeError
from autofit.core.printable import ascii_json, printable
from autofit.core.uninterrupted import ignores_exceptions
from autofit.terminal import columns, is_terminal, wrapped

INTERRUPTED = 130
AGAIN_S = 0.05
"""Time after which a signal is sent again that came where Python ignores exceptions."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk, or of a stream that is redirected to one, that has no space left."""


def run(execute: Callable[[argparse.Namespace], int], given: argparse.Namespace) -> int:
    """Runs `execute` and returns its exit code, or that of the error it raised, which is printed."""
    try:
        code = execute(given)
        sys.stdout.flush()
        return code
    except AutofitError as error:
        text = error.traceback_text if isinstance(error, UserCodeError) else ""
        return _fail(given, error.exit_code, type(error).__name__, str(error), text)
    except BrokenPipeError:  # the reader has closed the pipe: `autofit show | head -1`
        _give_up_stdout()
        return 0
    except KeyboardInterrupt as interrupt:
        message = str(interrupt) or "interrupted; the same command resumes from the trials in the study"
        return _fail(given, INTERRUPTED, "Interrupted", message, "")
    except Exception as error:  # noqa: BLE001  # the last resort: an internal error is exit code 1, with its traceback
        if isinstance(error, OSError) and error.errno in _FULL:
            where = f" for {error.filename}" if error.filename else ""
            message = f"something could not be written{where}: found {error.strerror}; expected free space. Free some"
            return _fail(given, UsageError.exit_code, type(error).__name__, f"{message}, then run again.", "")
        return _fail(given, 1, type(error).__name__, f"internal error: {error}", traceback.format_exc())


def _fail(given: argparse.Namespace, code: int, kind: str, message: str, trace: str) -> int:
    if given.json:
        with suppress(OSError):
            print(failure(code, kind, message, trace))
    _give_up_stdout()
    text = f"autofit: {printable(message)}"
    if is_terminal(sys.stderr) and "\n" not in text:
        text = "\n".join(wrapped(text, columns(sys.stderr)))
    with suppress(OSError):  # the exit code is then all that is left to say it
        print(f"{printable(trace).rstrip()}\n{text}" if trace else text, file=sys.stderr)
    return code


def _give_up_stdout() -> None:
    """Flushes stdout, or discards what is left if that fails, so that flushing it at exit does not fail again."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Prints a text on stderr, since stdout is for the result, or for the script that runs."""
    print(f"autofit: {printable(text)}", file=sys.stderr, flush=True)


def failure(code: int, kind: str, message: str, trace: str = "") -> str:
    """Returns the JSON document that `--json` prints when a command fails."""
    error = {"type": kind, "message": message, "traceback": trace, "exit_code": code}
    return ascii_json(json.dumps({"error": error}, indent=2))


@contextmanager
def terminable(next_step: str) -> Iterator[None]:
    """Turns SIGINT, unless it is ignored, and SIGTERM into a KeyboardInterrupt while the context is open.

    The message ends with the next step of the user.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if ignores_exceptions(frame):
            again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
            return
        raise KeyboardInterrupt(*([f"terminated; {next_step}"] if number == signal.SIGTERM else []))

    before = {signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt)}
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, or the caller handles it
        before[signal.SIGINT] = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
