"""The records of one real run, from which the picture and the transcript are rendered."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict

from autofit import planfile
from autofit.core.answer import Answer
from autofit.core.trial import Trial
from autofit.reports.report import Report
from autofit.search.request import Event
from scripts.bench import files

FOLDER = Path(__file__).resolve().parent / "records"
PLAN, REPORT, EVENTS = "autofit.yaml", "report.json", "events.jsonl"
SHOWN = ("stage", "waiting", "trial", "proof")
"""Kinds of events that leave a line on the terminal. The others change the live line only, and are not kept."""


class KeptEvent(BaseModel):
    """An event of a search, as a line of `EVENTS`. The fields are those of `autofit.search.request.Event`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: str
    text: str
    phase: str = ""
    done: int = 0
    trial: Trial | None = None

    @classmethod
    def of(cls, event: Event) -> Self:
        """Returns what is kept of an event."""
        return cls(kind=event.kind, text=event.text, phase=event.phase, done=event.done, trial=event.trial)

    @property
    def event(self) -> Event:
        """The event, for a listener."""
        return Event(self.kind, self.text, trial=self.trial, done=self.done, phase=self.phase)


@dataclass(frozen=True, slots=True)
class Records:
    """What is kept of a run.

    Attributes:
        answer: from its plan file.
        report: of the run.
        events: that left a line on the terminal, in order.
    """

    answer: Answer
    report: Report
    events: tuple[KeptEvent, ...]

    @classmethod
    def read(cls, folder: Path = FOLDER) -> Self:
        """Returns the records in a folder."""
        lines = (folder / EVENTS).read_text(encoding="utf-8").splitlines()
        return cls(
            answer=planfile.load(folder / PLAN),
            report=Report.model_validate_json((folder / REPORT).read_text(encoding="utf-8")),
            events=tuple(KeptEvent.model_validate_json(line) for line in lines),
        )


def keep(made: Path, folder: Path = FOLDER) -> None:
    """Copies the records that a run made in the folder `made`."""
    folder.mkdir(exist_ok=True)
    for name in (PLAN, REPORT, EVENTS):
        files.write(folder / name, (made / name).read_text(encoding="utf-8"))
