"""Request: the options of a search that the bench does not need."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autofit import searchers
from autofit.core.errors import UsageError
from autofit.core.objective import Objective
from autofit.search.event import Event
from autofit.searchers.base import Searcher

DEFAULT_STUDY = Path(".autofit") / "study.journal"

Listen = Callable[[Event], None]
"""Called with each event of a search."""


@dataclass(frozen=True, slots=True)
class Request:
    """The options of a search that the bench does not need.

    Attributes:
        time_s: seconds for the whole call; None for no limit.
        max_trials: maximum number of probes; None for no limit.
        study: storage of the trials: a path, an Optuna storage URL, ":memory:", or None for `DEFAULT_STUDY`.
        searcher: name of the searcher; None for the default.
        objective: the quantity to maximise.
        planned_steps: optimizer steps of the planned training at the baseline's global batch. The warm-up cost of a
            plan is amortised over the samples of these steps. None ignores the warm-up cost, or assumes
            `search.PLANNED_STEPS` if a knob of the space has one.
        seed: makes the search repeatable.
        isolated: whether plans run in a process that is replaced when its device is poisoned.
        title: what is tuned, for reports.
        command: the command or call that started the search, without secrets.

    Raises:
        UsageError: the searcher is unknown, or the planned steps are not a whole number of at least 1.
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
        searcher_of(self.searcher)  # a misspelt name is refused before the bench is opened
        if self.planned_steps is not None and (type(self.planned_steps) is not int or self.planned_steps < 1):
            raise UsageError(
                f"found planned_steps={self.planned_steps!r}; expected the optimizer steps of your training, a whole "
                "number of at least 1, or none to ignore the warm-up cost."
            )


def searcher_of(name: str | None) -> type[Searcher]:
    """Returns the searcher with this name; the default one for None.

    Raises:
        UsageError: no searcher has this name.
    """
    if name is None:
        return searchers.members()[0]
    for member in searchers.members():
        if member.name == name:
            return member
    known = ", ".join(member.name for member in searchers.members())
    raise UsageError(f"unknown searcher {name!r}; expected one of {known}.")
