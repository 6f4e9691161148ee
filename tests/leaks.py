"""What a test must not leave behind in the process: threads, child processes, descriptors, switches of torch."""

import gc
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

GRACE_S = 2.0
"""What is on its way out has this long to be gone."""
FDS, CHILDREN = Path("/proc/self/fd"), Path(f"/proc/self/task/{os.getpid()}/children")
"""Where Linux lists a process's descriptors and children; without them neither is watched."""
ONE_FOR_ALL = frozenset({"tqdm_monitor"})
"""Threads that a library starts once for the whole process."""
SWITCHES: dict[str, Callable[[], object]] = {
    "grad mode": torch.is_grad_enabled,
    "default dtype": torch.get_default_dtype,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "anomaly mode": torch.is_anomaly_enabled,
    "matmul precision": torch.get_float32_matmul_precision,
    "cuDNN benchmark": lambda: torch.backends.cudnn.benchmark,
    "cuDNN deterministic": lambda: torch.backends.cudnn.deterministic,
    "threads": torch.get_num_threads,
    "autocast on the CPU": lambda: torch.is_autocast_enabled("cpu"),
    "autocast on CUDA": lambda: torch.is_autocast_enabled("cuda"),
}


@dataclass(frozen=True)
class State:
    """What there is in the process at a moment.

    Attributes:
        threads: those of Python, by identity.
        children: process numbers.
        descriptors: what each open descriptor points to, by number.
        switches: torch's global switches.
    """

    threads: frozenset[int]
    children: frozenset[str]
    descriptors: frozenset[tuple[str, str]]
    switches: tuple[tuple[str, object], ...]

    @classmethod
    def now(cls) -> "State":
        """Reads the process."""
        return cls(
            threads=frozenset(t.ident or 0 for t in threading.enumerate() if t.name not in ONE_FOR_ALL),
            children=frozenset(CHILDREN.read_text().split()) if CHILDREN.exists() else frozenset(),
            descriptors=frozenset(_descriptors()),
            switches=tuple((name, read()) for name, read in SWITCHES.items()),
        )

    def left_over(self) -> list[str]:
        """Returns what is there now and was not in this state, once it had time to go; and the switches that moved."""
        end = time.monotonic() + GRACE_S
        while found := self._since(State.now()):
            if time.monotonic() > end:
                return found
            gc.collect()
            time.sleep(0.02)
        return []

    def _since(self, now: "State") -> list[str]:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        found = [f"thread {names.get(ident, ident)!r}" for ident in now.threads - self.threads]
        found += [f"process {child} ({_command(child)})" for child in now.children - self.children]
        found += [f"descriptor {number}: {target}" for number, target in now.descriptors - self.descriptors]
        before = dict(self.switches)
        found += [f"{name}: {before[name]} became {value}" for name, value in now.switches if before[name] != value]
        return found


def _descriptors() -> list[tuple[str, str]]:
    found = []
    for name in os.listdir(FDS) if FDS.exists() else []:
        try:
            found.append((name, os.readlink(FDS / name)))
        except OSError:
            continue  # the one that lists them
    return found


def _command(child: str) -> str:
    try:
        return Path("/proc", child, "cmdline").read_text().replace("\0", " ").strip()[:80]
    except OSError:
        return "gone"
