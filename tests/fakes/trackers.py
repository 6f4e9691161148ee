"""A tracker that keeps what is logged, and does on demand what servers do: fail, or not answer."""

import threading
from collections.abc import Mapping

from autofit.search.evidence import SearchResult
from autofit.trackers.base import Conclusion, Ending, Tracker, Value


def no_documents(result: SearchResult) -> Mapping[str, str]:
    """Attaches nothing to a result."""
    return {}


class KeptTracker(Tracker):
    """Keeps what is logged.

    Attributes:
        calls: names of the methods that were called, in order.
        parameters: those of the run.
        steps: what was logged, by step in order.
        conclusion: what was logged at the end; None if nothing was.
        ending: how the run ended; None if it did not.
        fails: methods that raise.
        hangs: methods that do not return before `free` is set.
    """

    name, place = "kept", "NOWHERE"

    def __init__(self, where: str = "", fails: tuple[str, ...] = (), hangs: tuple[str, ...] = ()) -> None:
        super().__init__(where)
        self.calls: list[str] = []
        self.title = ""
        self.parameters: Mapping[str, Value] = {}
        self.steps: list[tuple[int, Mapping[str, float], Mapping[str, str]]] = []
        self.conclusion: Conclusion | None = None
        self.ending: Ending | None = None
        self.fails, self.hangs, self.free = fails, hangs, threading.Event()

    def connect(self) -> None:
        self._called("connect")

    def open(self, title: str, parameters: Mapping[str, Value]) -> None:
        self._called("open")
        self.title, self.parameters = title, parameters

    def log(self, step: int, metrics: Mapping[str, float], texts: Mapping[str, str]) -> None:
        self._called("log")
        self.steps.append((step, metrics, texts))

    def conclude(self, conclusion: Conclusion) -> None:
        self._called("conclude")
        self.conclusion = conclusion

    def close(self, ending: Ending) -> None:
        self._called("close")
        self.ending = ending

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.hangs:
            self.free.wait(60)
        if name in self.fails:
            raise OSError(f"{name}: no space left on device")
