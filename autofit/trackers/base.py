"""Tracker: sends a search to an experiment tracker, as one run."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from importlib import import_module
from typing import ClassVar, NamedTuple, Self

from autofit.core.errors import UsageError
from autofit.core.wording import install_command

Value = str | int | float
"""A value that every experiment tracker can store."""


class Ending(StrEnum):
    """How a search ended."""

    FINISHED = "finished"  # with an answer
    FAILED = "failed"  # with an error
    INTERRUPTED = "interrupted"


class Conclusion(NamedTuple):
    """What is logged when a search ends: finite figures and texts by name, and text files by file name."""

    metrics: Mapping[str, float]
    texts: Mapping[str, str]
    documents: Mapping[str, str]


class Tracker(ABC):
    """Sends a search to an experiment tracker, as one run. One object per search.

    A tracker is made before the search begins. All other methods are called from one thread of its own, in the process
    that runs the search, in this order: `connect`, `open`, `log` for each step, `conclude`, `close`. `open` is not
    called if the search fails before its first event, and then nothing else is called. `conclude` is not called if the
    user interrupts the search. A method may raise any exception: the user gets one warning, `close` is tried, and
    nothing else is called. A method that blocks delays the search for a bounded time; see
    `autofit.trackers.following`.

    A tracker uses clients of its own: it must not change what the user has configured for the same tracker in this
    process, such as the active run. It must not use the network unless the user asked for it.

    Attributes:
        name: name for `tune(listeners=[name])` and `--track name`. `name:PLACE` gives the place to log to.
        place: what PLACE is, such as "DIR".
        modules: modules to import. They are imported when the tracker is made.
        extra: extra of autofit that installs the modules; "" if there is none.
    """

    name: ClassVar[str]
    place: ClassVar[str] = "PLACE"
    modules: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str] = ""

    def __init__(self, where: str) -> None:
        self.where = where

    @classmethod
    def make(cls, where: str) -> Self:
        """Imports the modules and returns a tracker that logs to `where`; "" for the default place.

        Raises:
            UsageError: a module is not installed or cannot be imported.
        """
        for module in cls.modules:
            try:
                import_module(module)
            except Exception as error:  # noqa: BLE001  # importing a foreign package may raise any exception
                how = install_command(cls.extra) if cls.extra else f"install {module}"
                raise UsageError(
                    f"found no usable package {module.partition('.')[0]} ({type(error).__name__}: {error}); expected "
                    f"it for the tracker {cls.name!r}. Install it: {how}."
                ) from None
        return cls(where)

    def connect(self) -> None:  # noqa: B027  # optional
        """Prepares the place to log to, such as a database, while the workload is being opened."""

    @abstractmethod
    def open(self, title: str, parameters: Mapping[str, Value]) -> None:
        """Starts the run. `title` is what is tuned, or ""; the parameters are the request and the environment."""

    @abstractmethod
    def log(self, step: int, metrics: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Logs one step, the number of a trial. All metrics are finite."""

    @abstractmethod
    def conclude(self, conclusion: Conclusion) -> None:
        """Logs what the search found."""

    @abstractmethod
    def close(self, ending: Ending) -> None:
        """Ends the run and sends what is left."""
