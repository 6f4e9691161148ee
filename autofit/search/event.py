"""Event: what a search reports to its listeners while it runs."""

from dataclasses import dataclass

from autofit.core.trial import Trial


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a search.

    Attributes:
        kind: "trial", "skipped", "stage", "race" or "proof"; or "waiting", which comes from another thread if a run
            makes no progress for long.
        text: one line of text.
        trial: the trial, for "trial", "skipped" and "proof".
        done: number of trials run so far.
    """

    kind: str
    text: str
    trial: Trial | None = None
    done: int = 0
