"""Request and Event: what a search is asked beside its bench, and what it reports to listeners while it runs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from autofit import searchers
from autofit.core.answer import Ratio
from autofit.core.errors import UsageError
from autofit.core.estimate import Estimate
from autofit.core.objective import Objective
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.search.evidence import Placing, SearchEvidence, SearchResult
from autofit.searchers.base import Searcher


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a search.

    Attributes:
        kind: "start", when a search begins; "stage", "trial", "skipped", "answer", "race" or "proof"; "running" when a
            probe or a proof begins; "busy" if the device or the study is in use by another tuner, for which the search
            waits; "result" for the last event of a search; or "waiting", which comes from another thread if a run
            makes no progress for long.
        text: one line of text.
        trial: the trial, for "trial", "skipped" and "proof".
        done: number of trials run so far.
        result: what the search found, for "result", also if the search failed.
        phase: "survey", "search", "race" or "proof"; "" if unknown.
        plan: the plan that begins to run, for "running"; the answer so far, for "answer"; the leader, for "race" once
            every plan has run enough rounds.
        estimate: estimated peak of `plan`, for "running"; None if there is none.
        gain: throughput of `plan` over the baseline, for "race".
        asked: the request and its environment, for "start".
        so_far: throughput of the answer so far over that of the baseline, by probes; None before there is one.
        standings: the plans of the race, best first, for "race". A gain whose `pairs` is 0 rests on probes alone. The
            `note` is why a plan left the race.
    """

    kind: str
    text: str
    trial: Trial | None = None
    done: int = 0
    result: SearchResult | None = None
    phase: str = ""
    plan: Plan | None = None
    estimate: Estimate | None = None
    gain: Ratio | None = None
    asked: SearchEvidence | None = None
    standings: tuple[Placing, ...] = ()
    so_far: float | None = None


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
        planned_steps: optimizer steps of the planned training at the baseline's global batch. The warm-up cost of a
            plan is amortised over the samples of these steps. None ignores the warm-up cost, or assumes
            `search.PLANNED_STEPS` if a knob of the space has one.
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
