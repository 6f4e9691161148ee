"""Evidence as notes of a study: whole or not at all, never that of another search."""

import json
from typing import Any

import pytest

from autofit.core.answer import Candidate
from autofit.search.evidence import (
    CLOSED,
    Placing,
    SearchEvidence,
    SearchResult,
    evidence_in,
    notes_of,
    race_logs,
)
from autofit.search.race import Race
from autofit.study.stored_trials import STORED_LETTERS
from tests.recorded import recorded_search


@pytest.fixture(scope="module")
def result() -> SearchResult:
    return recorded_search()


def notes(evidence: SearchEvidence) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(notes_of(evidence, CLOSED)))  # as a database returns them
    return read


def long(evidence: SearchEvidence) -> SearchEvidence:
    return evidence.model_copy(update={"caveats": tuple('"ä\\' * 20_000 for _ in range(3))})


def test_notes_give_back_equal_evidence(result: SearchResult) -> None:
    assert evidence_in(notes(result.evidence), CLOSED) == result.evidence
    assert list(notes(result.evidence)) == [CLOSED]


def test_a_note_has_spaces_at_which_a_browser_can_wrap_it(result: SearchResult) -> None:
    """optuna-dashboard shows notes: a long word makes its page wider than the window. Keys of plans are the longest."""
    words = [word for note in notes_of(result.evidence, CLOSED).values() for word in str(note["text"]).split()]
    assert max(map(len, words)) < 200


def test_long_evidence_is_split_into_notes_that_every_database_takes(result: SearchResult) -> None:
    found = notes(long(result.evidence))
    assert len(found) > 10
    assert max(len(json.dumps(note)) for note in found.values()) < 2**16
    assert evidence_in(found, CLOSED) == long(result.evidence)


def test_a_part_of_another_search_or_a_missing_one_is_not_read(result: SearchResult) -> None:
    found = notes(long(result.evidence))
    other = long(result.evidence).model_copy(update={"began": "2020-01-01T00:00:00+00:00"})
    assert evidence_in({**found, f"{CLOSED}.2": notes(other)[f"{CLOSED}.2"]}, CLOSED) is None
    assert evidence_in({name: note for name, note in found.items() if name != f"{CLOSED}.3"}, CLOSED) is None


@pytest.mark.parametrize(
    "note",
    [None, "text", {}, {"schema": "autofit.evidence/2", "parts": 1}, {"schema": "autofit.evidence/1", "parts": "1"},
     {"schema": "autofit.evidence/1", "began": "x", "parts": 1, "text": "{"},
     {"schema": "autofit.evidence/1", "began": "x", "parts": 1, "text": '{"began": "x"}'}],
)  # fmt: skip
def test_what_is_not_evidence_of_this_version_is_none(note: Any) -> None:
    assert evidence_in({CLOSED: note}, CLOSED) is None
    assert STORED_LETTERS < 2**15


def test_evidence_supports_the_answer_of_its_own_search_alone(result: SearchResult) -> None:
    found, own = result.evidence, result.answer
    assert own is not None
    assert found.supports(own)
    assert not found.supports(own.model_copy(update={"created": "2020-01-01T00:00:00+00:00"}))
    assert not found.supports(own.model_copy(update={"plan": own.baseline.plan}))
    assert not found.model_copy(update={"answer": None}).supports(own)


def test_alternatives_come_back_from_the_trials(result: SearchResult) -> None:
    assert result.answer is not None
    assert result.evidence.answer is not None
    assert result.evidence.answer.alternatives == ()
    assert result.evidence.whole_answer(result.trials) == result.answer
    some = result.evidence.whole_answer([t for t in result.trials if t.plan != result.answer.alternatives[0].plan])
    assert some is not None
    assert some.alternatives == result.answer.alternatives[1:]
    assert all(isinstance(each, Candidate) for each in some.alternatives)


def test_the_logs_of_a_race_say_who_joined_and_who_left(result: SearchResult) -> None:
    first, second = list({trial.plan.key: trial.plan for trial in result.trials}.values())[:2]
    race = Race((first.key,))
    race.add({first.key: 100.0})
    race.join(second.key)
    race.add({first.key: 101.0, second.key: 99.0})
    race.leave(second.key, "failed in the race")
    logs = list(race_logs(race, result.trials))
    assert [(log.plan, log.joined, len(log.log_rates), log.note) for log in logs] == [
        (first, 0, 2, ""), (second, 1, 1, "failed in the race")
    ]  # fmt: skip
    assert list(race_logs(None, result.trials)) == []


def test_a_placing_has_every_field_of_a_candidate_but_its_outcome() -> None:
    assert set(Candidate.model_fields) - set(Placing.model_fields) == {"outcome"}
    assert set(Placing.model_fields) <= set(Candidate.model_fields)
