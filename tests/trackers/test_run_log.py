"""What is logged of a search, and under which names."""

import math
from dataclasses import replace

import pytest
import yaml

from autofit.core.errors import NothingFits
from autofit.core.outcome import Outcome, Status
from autofit.core.trial import Trial
from autofit.search.evidence import SearchEvidence, SearchResult
from autofit.search.request import Event
from autofit.trackers.base import Ending
from autofit.trackers.run_log import MAX_TEXT, RunLog, parameters_of
from tests.fakes.trackers import KeptTracker, no_documents
from tests.recorded import recorded_search

HOSTILE = "</script>\x1b[31m\ud800\u202e" + 10_000 * "x"


def logged(memory_bytes: int | None = None) -> tuple[KeptTracker, SearchResult, list[Event]]:
    tracker, events, found = KeptTracker(), list[Event](), list[SearchResult]()
    log = RunLog(tracker, lambda result: {"extra.txt": "more"})

    def keep(event: Event) -> None:
        events.append(event)
        found.extend([event.result] if event.result is not None else [])

    try:
        recorded_search(memory_bytes=memory_bytes, listen=[log, keep])
    except NothingFits:
        assert memory_bytes is not None
    log.close()
    return tracker, found[0], events


@pytest.fixture(scope="module")
def whole() -> tuple[KeptTracker, SearchResult, list[Event]]:
    return logged()


def test_a_run_is_opened_concluded_and_closed_once(whole: tuple[KeptTracker, SearchResult, list[Event]]) -> None:
    calls = whole[0].calls
    assert [call for call in calls if call != "log"] == ["open", "conclude", "close"]
    assert (calls[0], calls[-2:]) == ("open", ["conclude", "close"])
    assert whole[0].ending is Ending.FINISHED


def test_parameters_are_the_request_and_the_environment(whole: tuple[KeptTracker, SearchResult, list[Event]]) -> None:
    tracker, result, _ = whole
    found, evidence = tracker.parameters, result.evidence
    assert (tracker.title, found["title"]) == ("train.py:make_resnet", "train.py:make_resnet")
    assert found["memory_budget_bytes"] == evidence.budget.memory_bytes
    assert found["device"] == evidence.environment.device_name
    assert found["version.torch"] == evidence.environment.versions["torch"]
    assert found["baseline.micro_batch_size"] == evidence.baseline.micro_batch_size
    assert "time_budget_s" not in found  # no limit


def test_each_trial_is_one_step(whole: tuple[KeptTracker, SearchResult, list[Event]]) -> None:
    tracker, result, events = whole
    trials = [event.trial for event in events if event.kind in ("trial", "proof")]
    steps = [step for step in tracker.steps if step[2]]
    assert [number for number, _, _ in steps] == list(range(1, len(trials) + 1))
    scale = result.evidence.objective.score
    baseline = next(t for t in trials if t is not None and t.plan == result.evidence.baseline)
    for trial, (_, metrics, texts) in zip(trials, steps, strict=True):
        assert trial is not None
        kind = "proof" if f"{trial.purpose}" == "proof" else "trial"
        assert texts[f"{kind}/status"] == "measured"
        assert trial.outcome.measurement is not None
        assert baseline.outcome.measurement is not None
        assert metrics[f"{kind}/peak_memory_bytes"] == trial.outcome.measurement.memory.judged_bytes
        assert metrics[f"{kind}/throughput_per_s"] == pytest.approx(scale(trial.outcome.measurement))
        gain = scale(trial.outcome.measurement) / scale(baseline.outcome.measurement)
        assert metrics.get(f"{kind}/gain") == (None if kind == "proof" else pytest.approx(gain))
    assert any("proof/throughput_per_s" in metrics for _, metrics, _ in steps)


def test_the_result_has_the_gain_with_its_interval_and_the_files(
    whole: tuple[KeptTracker, SearchResult, list[Event]],
) -> None:
    tracker, result, _ = whole
    found, r = tracker.conclusion, result.answer
    assert found is not None
    assert r is not None
    assert r.gain is not None
    metrics = found.metrics
    assert (metrics["result/gain_low"], metrics["result/gain_high"]) == (r.gain.low, r.gain.high)
    assert metrics["result/peak_memory_bytes"] == r.proof.memory.judged_bytes
    assert metrics["result/throughput_per_s"] == r.rate_per_s
    assert metrics["result/trials"] == len(result.trials) == sum(r.counts.values())
    assert sorted(found.documents) == ["autofit.yaml", "extra.txt"]
    assert yaml.safe_load(found.documents["autofit.yaml"])["plan"]["values"] == dict(r.plan.values)


def test_a_search_without_a_answer_is_a_failed_run() -> None:
    tracker, _, _ = logged(memory_bytes=2**20)
    assert tracker.ending is Ending.FAILED
    assert tracker.conclusion is not None
    assert tracker.conclusion.texts["result/failure"]
    assert "autofit.yaml" not in tracker.conclusion.documents


def asked() -> SearchEvidence:
    return recorded_search().evidence


def test_an_interrupted_search_is_an_interrupted_run() -> None:
    tracker = KeptTracker()
    log = RunLog(tracker, no_documents)
    log(Event("start", "", asked=asked()))
    log.close()
    log.close()
    assert (tracker.calls, tracker.ending) == (["open", "close"], Ending.INTERRUPTED)


def test_without_a_search_nothing_is_called() -> None:
    tracker = KeptTracker()
    RunLog(tracker, no_documents).close()
    assert tracker.calls == []


def test_hostile_texts_are_printable_and_cut() -> None:
    evidence = asked().model_copy(update={"title": HOSTILE})
    tracker = KeptTracker()
    log = RunLog(tracker, no_documents)
    plan = evidence.baseline.replace(**{HOSTILE: HOSTILE})
    trial = Trial(number=0, plan=plan, outcome=Outcome(status=Status.USER_ERROR, reason=HOSTILE))
    log(Event("start", "", asked=evidence))
    log(Event("trial", "", trial, 1))
    log(Event("result", "", result=SearchResult(None, evidence.model_copy(update={"failure": HOSTILE}), (trial,))))
    assert tracker.conclusion is not None
    texts = [*tracker.steps[0][2].values(), *tracker.conclusion.texts.values(), str(tracker.parameters["title"])]
    assert all(len(text) <= MAX_TEXT and text.isprintable() for text in texts)


def test_figures_that_are_not_finite_are_left_out() -> None:
    result = recorded_search()
    r = result.answer
    assert r is not None
    assert r.gain is not None
    endless = r.model_copy(update={"gain": r.gain.model_copy(update={"high": math.inf})})
    tracker = KeptTracker()
    log = RunLog(tracker, no_documents)
    log(Event("start", "", asked=result.evidence))
    log(Event("result", "", result=replace(result, answer=endless)))
    assert tracker.conclusion is not None
    assert {"result/gain", "result/gain_low"} <= tracker.conclusion.metrics.keys()
    assert "result/gain_high" not in tracker.conclusion.metrics


def test_parameters_have_one_line_each() -> None:
    evidence = asked()
    environment = evidence.environment.model_copy(update={"versions": {"a\nb": "1\n2"}})
    found = parameters_of(evidence.model_copy(update={"environment": environment, "title": ""}))
    assert "title" not in found
    assert all("\n" not in f"{name}{value}" for name, value in found.items())


def test_other_events_are_not_logged() -> None:
    tracker = KeptTracker()
    log = RunLog(tracker, no_documents)
    log(Event("stage", "searching"))
    log(replace(Event("skipped", "x"), trial=None))
    assert tracker.calls == []
