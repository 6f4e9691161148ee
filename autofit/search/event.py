"""Event: what a search reports to its listeners while it runs."""

from dataclasses import dataclass

from autofit.core.trial import Trial
from autofit.search.evidence import SearchResult


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a search.

    Attributes:
        kind: "trial", "skipped", "stage", "race", "proof", or "result", which is the last event of a search; or
            "waiting", which comes from another thread if a run makes no progress for long.
        text: one line of text.
        trial: the trial, for "trial", "skipped" and "proof".
        done: number of trials run so far.
        result: what the search found, for "result", also if the search failed.
    """

    kind: str
    text: str
    trial: Trial | None = None
    done: int = 0
    result: SearchResult | None = None
