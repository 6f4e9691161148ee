"""RecordDraft: the record of a job while the job is checked, so that an interrupt loses nothing that has a verdict."""

from collections.abc import Callable
from datetime import datetime
from typing import Any
from uuid import uuid4

from autofit.core.budget import Clock
from autofit.core.plan import Plan
from autofit.core.printable import one_line
from autofit.nightly.plan_runner import CountedBench
from autofit.nightly.records import HistorySegment, NightRecord, Verdict, VerdictKind


class RecordDraft:
    """The record of a job while the job is checked.

    Args:
        job: name of the job.
        night: identifier of the night.
        today: returns the present time, in UTC.
        clock: seconds since the work on the job began.

    Attributes:
        verdict: the verdict; None until there is one.
    """

    def __init__(self, job: str, night: str, today: Callable[[], datetime], clock: Clock) -> None:
        self.verdict: Verdict | None = None
        self._job, self._night = job, night
        self._today, self._clock = today, clock
        self._bench: CountedBench | None = None
        self._fields: dict[str, Any] = {}
        self._notes: list[str] = []

    def opened(self, bench: CountedBench) -> None:
        """Records where the job is measured, and its memory budget."""
        self._bench = bench
        briefing = bench.briefing
        self.update(environment=briefing.environment, budget_bytes=briefing.budget.memory_bytes)

    def measures(self, plan: Plan) -> HistorySegment:
        """Records which plan is measured, and returns its segment of the history."""
        assert self._bench is not None, "a plan is measured on a bench"
        segment = HistorySegment.of(self._bench.briefing.environment, plan)
        self.update(segment=segment)
        return segment

    def update(self, **fields: Any) -> None:
        """Sets fields of the record."""
        self._fields |= fields

    def note(self, text: str) -> None:
        """Adds a note for people."""
        self._notes.append(text)

    def failed(self, error: Exception) -> None:
        """Records that the work on the job ended with an error. A verdict that was reached before is kept."""
        text = one_line(str(error)) or type(error).__name__
        if self.verdict is None:
            self.verdict = Verdict(kind=VerdictKind.ERROR, reason=text.removesuffix("."))
        else:
            self.note(f"the work on this job ended with an error: {text}")

    def record(self) -> NightRecord:
        """Returns the record as it is now. There must be a verdict."""
        assert self.verdict is not None, "a record has a verdict"
        return NightRecord(
            id=uuid4().hex,
            job=self._job,
            night=self._night,
            at=self._today().isoformat(timespec="seconds"),
            duration_s=round(self._clock.elapsed_s, 2),
            probes=0 if self._bench is None else self._bench.runs,
            verdict=self.verdict,
            notes=tuple(self._notes),
            **self._fields,
        )
