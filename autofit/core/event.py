"""Event: what a search tells its listeners while it runs."""

from dataclasses import dataclass

from autofit.core.trial import Trial


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a search.

    Attributes:
        kind: "trial", "skipped", "stage", "race" or "proof"; "waiting" for what has gone on for long, which comes from
            another thread, while a run goes on.
        text: one line for a person.
        trial: the trial, for "trial", "skipped" and "proof".
        done: trials run so far.
    """

    kind: str
    text: str
    trial: Trial | None = None
    done: int = 0
