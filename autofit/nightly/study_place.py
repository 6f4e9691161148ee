"""StudyPlace: where the searches of a night keep their trials."""

import os
from dataclasses import dataclass
from pathlib import Path

from autofit.core.errors import StudyError
from autofit.nightly.history import History
from autofit.reports.counting import counted
from autofit.study.location import Place


@dataclass(frozen=True, slots=True)
class StudyPlace:
    """Where the searches of a night keep their trials: with the history, or in a local file while it is away.

    Attributes:
        history: the history of the night.
        location: path or URL of its storage.
        local: the local file.
    """

    history: History
    location: str
    local: Path

    def now(self) -> str:
        """Returns the path or URL for a search that begins now. Asks the storage of the history whether it answers."""
        return self.location if self.history.answers() else str(self.local)

    def merge(self) -> str:
        """Moves the trials of the local file to the storage of the history, if it answers.

        Returns:
            A note on what was moved, or on why it was not; "" if there is nothing to move.
        """
        moving = self.local.with_name(f"{self.local.name}.merging")
        if not (self.local.exists() or moving.exists()) or not self.history.answers():
            return ""
        from autofit.study.merging import merge  # noqa: PLC0415  # loads Optuna

        try:
            if not moving.exists():
                os.replace(self.local, moving)  # a search that begins now makes a new file
            count = merge(moving, Place.of(self.location))
        except (StudyError, OSError) as error:
            return f"the trials in {moving} were not merged: {error}"
        return f"merged into the study: {counted(count, 'trial')} of searches during which it was not available"
