"""Event: what a search reports to its listeners while it runs."""

from dataclasses import dataclass

from autofit.core.answer import Ratio
from autofit.core.estimate import Estimate
from autofit.core.plan import Plan
from autofit.core.trial import Trial
from autofit.search.evidence import Placing, SearchEvidence, SearchResult


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a search.

    Attributes:
        kind: "start", when a search begins; "stage", "trial", "skipped", "answer", "race" or "proof"; "running" when a
            probe or a proof begins; "busy" if the device or the study is in use by another tuner, for which the search
            waits;
            "result" for the last event of a search; or "waiting", which comes from another thread if a run makes no
            progress for long.
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
