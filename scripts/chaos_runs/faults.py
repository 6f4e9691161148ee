"""Faults at a place of a workload: errors, crashes, hangs, wrong values, leaks."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

CANARY = "CHAOS_SECRET_TOKEN_5f3a"


class Fault:
    """A fault at the n-th visit of a place, and at each later visit if it is lasting."""

    def __init__(self, name: str, place: str, nth: int, lasting: bool) -> None:
        self.name, self.place, self.nth, self.lasting = name, place, nth, lasting
        self.visits, self.leaked = 0, list[torch.Tensor]()

    def visit(self, place: str, value: Any = None) -> Any:
        """Passes `value` through a place, and applies the fault if it is due."""
        if place != self.place or self.name == "none":
            return value
        self.visits += 1
        due = self.visits >= self.nth if self.lasting else self.visits == self.nth
        return STRIKES[self.name](self, value) if due else value


def _raise(error: Callable[[], BaseException], fault: Fault, value: Any) -> Any:
    raise error()


def _nan(fault: Fault, value: Any) -> Any:
    return value * float("nan") if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _wrong_shape(fault: Fault, value: Any) -> Any:
    return value[:1] if isinstance(value, torch.Tensor) and value.dim() else value


def _print(fault: Fault, value: Any) -> Any:
    print(f"{CANARY} \x1b[31m\u202e {'x' * 10_000}", flush=True)
    print(f"key={CANARY}", file=sys.stderr, flush=True)
    return value


def _slow(fault: Fault, value: Any) -> Any:
    time.sleep(0.2)
    return value


def _leak(fault: Fault, value: Any) -> Any:
    fault.leaked.append(torch.zeros(1000))
    return value


def _hang(fault: Fault, value: Any) -> Any:
    time.sleep(600)
    return value


def _helper(fault: Fault, value: Any) -> Any:
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    return value


def _crash(fault: Fault, value: Any) -> Any:
    print(CANARY, flush=True)
    os._exit(7)


def _segfault(fault: Fault, value: Any) -> Any:
    return ctypes.string_at(0)


def _kill(fault: Fault, value: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


STRIKES: dict[str, Callable[[Fault, Any], Any]] = {
    "error": partial(_raise, lambda: RuntimeError("the chaos run raised this")),
    "out_of_memory": partial(_raise, lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")),
    "interrupt": partial(_raise, KeyboardInterrupt),
    "exit": partial(_raise, lambda: SystemExit(3)),
    "nan": _nan,
    "wrong_shape": _wrong_shape,
    "print": _print,
    "slow": _slow,
    "leak": _leak,
    "hang": _hang,
    "helper": _helper,
    "crash": _crash,
    "segfault": _segfault,
    "kill": _kill,
}
