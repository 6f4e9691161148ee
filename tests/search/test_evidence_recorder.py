"""The evidence recorder of a search: its evidence is in the study and in the last event, and never costs the answer."""

from pathlib import Path
from typing import Any

import pytest

from autofit.core.budget import Clock
from autofit.core.errors import DevicePoisoned, NothingFits
from autofit.core.plan import Plan
from autofit.core.wording import describe_plan
from autofit.estimators.base import Estimator
from autofit.memory.profile import Profile
from autofit.search.evidence import CLOSED, OPENED, SearchEvidence, SearchResult
from autofit.search.request import Event, Request
from autofit.search.search import EvidenceRecorder, asked, search
from autofit.study import Study
from tests.fakes import briefing_of, opened, small_bench
from tests.recorded import GATES, REFUSED, RecordedBench, recorded_search, table


def test_the_last_event_carries_answer_evidence_and_trials() -> None:
    events: list[Event] = []
    result = recorded_search(listen=[events.append])
    assert [event.kind for event in events].count("result") == 1
    assert events[-1].result == result
    assert result.answer is not None
    assert {t.plan for t in result.trials} >= {c.plan for c in result.answer.alternatives}
    assert (result.answer.title, result.answer.command) == (
        "train.py:make_resnet", "autofit tune train.py:make_resnet"
    )  # fmt: skip


def test_the_first_event_carries_what_was_asked() -> None:
    events: list[Event] = []
    result = recorded_search(listen=[events.append])
    first = events[0]
    assert (first.kind, [event.kind for event in events].count("start")) == ("start", 1)
    assert first.asked is not None
    assert first.asked.answer is None
    names = ("began", "title", "command", "baseline", "budget", "objective", "environment")
    assert all(getattr(first.asked, name) == getattr(result.evidence, name) for name in names)


@pytest.mark.usefixtures("whole_search")
def test_the_evidence_has_what_was_asked_and_what_was_seen() -> None:
    result = recorded_search()
    found, r = result.evidence, result.answer
    assert r is not None
    assert (found.gates, found.refused, found.baseline) == (GATES, REFUSED, table("resnet").space.baseline)
    assert found.stopped == "nothing left that was worth a probe"
    assert {log.plan for log in found.race} >= {r.plan, r.baseline.plan}
    assert all(len(log.log_rates) >= 4 for log in found.race)
    assert found.estimates
    assert all(estimate.is_bounded for estimate in found.estimates.values())
    assert [each.plan for each in found.standings] == [each.plan for each in r.alternatives]
    assert found.omissions
    assert found.profile is not None
    assert found.baseline_profile is not None
    assert found.profile.peak_bytes > found.baseline_profile.peak_bytes


def test_without_traces_there_is_no_profile() -> None:
    found = recorded_search(traces=False).evidence
    assert (found.profile, found.baseline_profile) == (None, None)


def test_a_search_in_which_nothing_fits_leaves_its_evidence() -> None:
    events: list[Event] = []
    with pytest.raises(NothingFits) as error:
        recorded_search(memory_bytes=2**20, listen=[events.append])
    result = events[-1].result
    assert result is not None
    assert result.answer is None
    assert result.evidence.failure == str(error.value)
    assert result.trials
    assert result.evidence.whole_answer(result.trials) is None
    assert result.evidence.baseline_profile is None


def fake_search(**changes: Any) -> list[Event]:
    bench, events = small_bench(), list[Event]()
    search(opened(briefing_of(bench), bench.evaluate), Request(study=":memory:"), [events.append], Clock(bench.time))
    return events


def test_a_recommended_plan_that_the_search_did_not_trace_is_traced_after_its_proof() -> None:
    events, results, bench = list[Event](), list[SearchResult](), RecordedBench(table("resnet"))

    def listen(event: Event) -> None:
        events.append(event)
        results.extend([event.result] if event.result is not None else [])

    search(bench, Request(study=":memory:"), [listen], Clock(bench.device.time))  # it traces the baseline alone
    r = results[0].answer
    assert r is not None
    assert r.plan != r.baseline.plan
    assert [event.text for event in events if event.text.endswith(" for the report")] == [
        f"tracing {describe_plan(r.plan, r.baseline.plan)} for the report"
    ]
    assert results[0].evidence.profile is not None
    assert results[0].evidence.baseline_profile is not None


def test_a_failure_in_collecting_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: EvidenceRecorder, plan: Plan) -> Profile | None:
        raise RuntimeError("no profile today")

    monkeypatch.setattr(EvidenceRecorder, "_profile", broken)
    events = fake_search()
    assert events[-1].result is not None
    assert events[-1].result.answer is not None
    assert events[-1].result.evidence.supports(events[-1].result.answer)
    assert "the evidence for the report is incomplete: RuntimeError: no profile today" in [e.text for e in events]


def test_a_trace_for_the_report_that_fails_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Estimator, plan: Plan) -> None:
        raise DevicePoisoned("the device is in an error state")

    monkeypatch.setattr(Estimator, "show", broken)
    events = fake_search()
    assert events[-1].result is not None
    assert (found := events[-1].result.answer) is not None
    lost = "was not traced for the report: DevicePoisoned: the device is in an error state"
    assert f"{describe_plan(found.plan, found.baseline.plan)} {lost}" in [event.text for event in events]


def test_a_study_that_cannot_be_written_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Study, name: str, value: dict[str, object]) -> None:
        if name in (OPENED, CLOSED):
            raise OSError("disk full")

    monkeypatch.setattr(Study, "note", full)
    events = fake_search()
    assert events[-1].result is not None
    assert [e.text for e in events].count("the evidence for the report was not kept: OSError: disk full") == 2


def test_a_listener_that_fails_does_not_hide_why_the_search_failed() -> None:
    def listen(event: Event) -> None:
        if event.kind == "result":
            raise RuntimeError("tracker away")

    with pytest.raises(NothingFits) as error:
        recorded_search(memory_bytes=2**20, listen=[listen])
    assert error.value.__notes__ == ["a listener failed too: RuntimeError: tracker away"]


def test_the_study_has_both_notes_and_a_killed_search_leaves_the_first(tmp_path: Path) -> None:
    kept: dict[str, object] = {}
    bench = RecordedBench(table("resnet"))
    request = Request(title="what", command="how")
    evidence = asked(bench.briefing, bench.briefing.budget, request, ["a note of the study"])
    EvidenceRecorder(evidence, kept.__setitem__, [], lambda event: None)
    assert list(kept) == [OPENED]
    assert (evidence.title, evidence.command, evidence.stopped, evidence.answer) == ("what", "how", "", None)
    assert evidence.caveats == ("the loss was inferred: cross-entropy", "a note of the study")
    assert isinstance(evidence, SearchEvidence)
    assert isinstance(recorded_search(tmp_path / "study.db"), SearchResult)
