"""Request: what the caller wants of a search, beside what the bench was opened with."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autofit import searchers
from autofit.core.errors import UsageError
from autofit.core.objective import Objective
from autofit.search.event import Event
from autofit.searchers.base import Searcher

DEFAULT_STUDY = Path(".autofit") / "study.db"

Listen = Callable[[Event], None]
"""Called with each event of a search."""


@dataclass(frozen=True, slots=True)
class Request:
    """What the caller wants of a search, beside what the bench was opened with.

    Attributes:
        time_s: seconds for everything; None for no limit.
        max_trials: probes at most; None for no limit.
        study: where trials are kept: a path, an Optuna storage URL, ":memory:", or None for `DEFAULT_STUDY`.
        searcher: name of the searcher; None for the default.
        objective: what is maximised.
        planned_steps: optimizer steps of the planned training, at the user's own global batch. The warm-up cost of a
            plan is amortised over as many samples. None charges nothing.
        seed: makes the search repeatable.
        isolated: whether plans run in a process that is replaced when its device is poisoned.
        title: what is tuned, for reports.
        command: the command or call that started the search, without secrets.

    Raises:
        UsageError: there is no such searcher, or the planned steps are no whole number of at least 1.
    """

    time_s: float | None = None
    max_trials: int | None = None
    study: str | Path | None = None
    searcher: str | None = None
    objective: Objective = field(default_factory=Objective)
    planned_steps: int | None = None
    seed: int = 0
    isolated: bool = False
    title: str = ""
    command: str = ""

    def __post_init__(self) -> None:
        searcher_of(self.searcher)  # a misspelt name is refused before anything is opened
        if self.planned_steps is not None and (type(self.planned_steps) is not int or self.planned_steps < 1):
            raise UsageError(
                f"found planned_steps={self.planned_steps!r}; expected the optimizer steps of your training, a whole "
                "number of at least 1, or none to charge nothing for the first steps."
            )


def searcher_of(name: str | None) -> type[Searcher]:
    """Returns the searcher of a name; None for the default.

    Raises:
        UsageError: there is none of this name.
    """
    if name is None:
        return searchers.members()[0]
    for member in searchers.members():
        if member.name == name:
            return member
    known = ", ".join(member.name for member in searchers.members())
    raise UsageError(f"unknown searcher {name!r}; expected one of {known}.")
