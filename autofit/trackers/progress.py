"""Progress: shows the events of a search as a bar on a terminal, as lines elsewhere. Writes to stderr only."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Never, TextIO

from tqdm import tqdm

from autofit.core.event import Event
from autofit.core.outcome import Status
from autofit.core.printable import one_line
from autofit.core.summary import describe_outcome


class Progress:
    """Shows events; one object per search."""

    def __init__(self, stream: TextIO, unit: str = "samples") -> None:
        self._stream, self._unit = stream, unit
        self._bar: tqdm[Never] | None = None
        if stream.isatty():
            self._bar = tqdm(
                file=stream, unit=" trials", leave=False, dynamic_ncols=True, bar_format="{n} trials [{elapsed}] {desc}"
            )

    def __call__(self, event: Event) -> None:
        """Shows one event."""
        text = event.text
        if event.trial is not None:
            if event.trial.outcome.status is Status.SKIPPED and self._bar is None:
                return
            proof = "proof of " if event.kind == "proof" else ""
            text = f"{proof}{event.trial.plan}: {describe_outcome(event.trial.outcome, self._unit)}"
        text = one_line(text)  # reasons come from the user's code
        if self._bar is None:
            print(f"autofit: {text}", file=self._stream, flush=True)  # the one place that shows progress
            return
        self._bar.n = max(self._bar.n, event.done)
        self._bar.set_description_str(text)

    def close(self) -> None:
        """Takes the bar off the terminal."""
        if self._bar is not None:
            self._bar.close()

    @classmethod
    @contextmanager
    def of(cls, wanted: bool | Callable[[Event], None], unit: str = "samples") -> Iterator[Callable[[Event], None]]:
        """Gives the listener that `wanted` asks for: a new Progress, nothing, or the caller's own callable."""
        if callable(wanted):
            yield wanted
        elif not wanted:
            yield lambda event: None
        else:
            progress = cls(sys.stderr, unit)
            try:
                yield progress
            finally:
                progress.close()
