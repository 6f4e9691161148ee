"""Commands in processes of their own, for the tests of the command line."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.probing.remote.fake_worker import is_alive

ROOT = Path(__file__).parents[2]


TARGETS = f"{Path(__file__).parent / 'targets.py'}"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "autofit", *words]


class Running:
    """A real command that is stopped in the middle."""

    def __init__(self, folder: Path) -> None:
        self.marker = folder / "opened"
        arguments = ["--arg", f"marker={self.marker}", "--memory", "64MiB", "--device", "cpu"]
        self.words = command("tune", f"{TARGETS}:make_slow", *arguments, "--strategies", "batching")
        self.folder = folder
        self.process = self.start()

    def start(self) -> "subprocess.Popen[str]":
        # Where the tests run in the background of a shell it is ignored, which a child would inherit.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return self.popen()
        finally:
            signal.signal(signal.SIGINT, before)

    def popen(self) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            self.words,
            cwd=self.folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_trials(self, count: int) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            count -= "samples/s" in line
            if count <= 0:
                return
        raise AssertionError(f"it ended too early with {self.process.wait()}")

    def children_are_gone(self, within_s: float = 60.0) -> bool:
        pids = [int(line) for line in self.marker.read_text().split()]
        assert pids, "no child was started"
        until = time.monotonic() + within_s
        while any(map(is_alive, pids)) and time.monotonic() < until:
            time.sleep(0.05)
        return not any(map(is_alive, pids))
