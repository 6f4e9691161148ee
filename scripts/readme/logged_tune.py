"""Runs the command line of autofit, and writes each event that its progress shows to a file.

python -m scripts.readme.logged_tune EVENTS tune examples/gpt.py:make_workload ...
"""

import sys
from pathlib import Path

from autofit import cli
from autofit.search.request import Event
from autofit.trackers import progress
from scripts.readme.records import SHOWN, KeptEvent

EVENTS = Path(sys.argv[1]).resolve()


class LoggedProgress(progress.Progress):
    """Progress as it is, which also writes the events that leave a line on the terminal."""

    def __call__(self, event: Event) -> None:
        """Shows one event and writes it."""
        if event.kind in SHOWN:
            with EVENTS.open("a", encoding="utf-8") as file:
                file.write(KeptEvent.of(event).model_dump_json(exclude_defaults=True) + "\n")
        super().__call__(event)


if __name__ == "__main__":
    progress.Progress = LoggedProgress  # type: ignore[misc]
    sys.exit(cli.main(sys.argv[2:]))
