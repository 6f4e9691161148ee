"""The record of a job while it is checked: complete at every moment once there is a verdict."""

from datetime import UTC, datetime

from autofit.core.budget import Clock
from autofit.core.errors import NothingFits
from autofit.core.trial import Purpose
from autofit.nightly.plan_runner import CountedBench
from autofit.nightly.record_draft import RecordDraft
from autofit.nightly.records import HistorySegment, Verdict, VerdictKind
from tests.fakes import FakeTime, briefing_of, opened
from tests.nightly.benches import calm, faster

NOW = datetime(2026, 11, 25, 1, 2, 3, tzinfo=UTC)


def draft(time: FakeTime | None = None) -> RecordDraft:
    return RecordDraft("gpt", "2026-11-25T01:00:00+00:00", lambda: NOW, Clock(now=time or FakeTime()))


def test_a_record_has_where_when_how_long_and_how_many_runs() -> None:
    bench = calm()
    there = CountedBench(opened(briefing_of(bench), bench.evaluate))
    found = draft(bench.time)
    found.opened(there)
    segment = found.measures(faster(bench))
    there.evaluate(faster(bench), Purpose.PROBE)
    found.verdict = Verdict(kind=VerdictKind.STEADY, reason="as before")
    found.note("a note")
    record = found.record()
    assert (record.job, record.night, record.at) == ("gpt", "2026-11-25T01:00:00+00:00", "2026-11-25T01:02:03+00:00")
    assert record.environment == there.briefing.environment
    assert record.segment == segment == HistorySegment.of(there.briefing.environment, faster(bench))
    assert record.budget_bytes == bench.budget_bytes
    assert (record.probes, record.notes) == (1, ("a note",))
    assert record.duration_s == round(bench.time.seconds, 2) > 0
    assert record.id != found.record().id


def test_an_error_before_the_verdict_is_the_verdict_and_after_it_a_note() -> None:
    early, late = draft(), draft()
    early.failed(NothingFits("no plan fits.\nSecond line."))
    assert early.record().verdict == Verdict(kind=VerdictKind.ERROR, reason="no plan fits. Second line")
    late.verdict = Verdict(kind=VerdictKind.STEADY, reason="as before")
    late.failed(ValueError())
    assert late.record().verdict.kind is VerdictKind.STEADY
    assert late.record().notes == ("the work on this job ended with an error: ValueError",)
